"""Named queries and their call sites agree on the number of parameters."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import cognizes.engine
from cognizes.engine.database.queries import Queries

_QUERIES = Queries()
_PACKAGE = Path(cognizes.engine.__file__).parent
_ADDED = {"fetch": 0, "fetch_row": 0, "fetch_value": 0, "fetch_page": 2, "fetch_value_within": 0}
"""How many parameters each method adds to its positional arguments."""


def _calls() -> Iterator[tuple[str, str, int]]:
    """Yield the place, the query and the number of parameters of each call with a literal name and no unpacking."""
    for path in sorted(_PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or any(isinstance(argument, ast.Starred) for argument in node.args):
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            arguments = node.args[1:] if name == "fetch_value_within" else node.args
            if name not in _ADDED or not arguments or not isinstance(arguments[0], ast.Constant):
                continue
            query = arguments[0].value
            if isinstance(query, str) and query in _QUERIES:
                yield f"{path.relative_to(_PACKAGE)}:{node.lineno}", query, len(arguments) - 1 + _ADDED[name]


def test_each_call_passes_as_many_arguments_as_its_query_has_parameters() -> None:
    calls = list(_calls())
    assert len(calls) > 100
    wrong = {
        place: (query, given, wanted)
        for place, query, given in calls
        if given != (wanted := max((int(n) for n in re.findall(r"\$(\d+)", _QUERIES[query])), default=0))
    }
    assert not wrong
