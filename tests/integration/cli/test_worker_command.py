"""`cognizes worker`: errors at the start. `faults/test_run_faults.py` tests its work."""

from __future__ import annotations

import pytest

from cognizes.engine.cli.worker import load_handlers
from tests.faults import run_handlers
from tests.integration.cli.running_command import QuickCognizes

MODULE = "tests.faults.run_handlers"


def test_handlers_have_the_name_of_their_function_or_one_of_their_own() -> None:
    loaded = load_handlers([f"{MODULE}:journey", f"a=b={MODULE}:stubborn"])
    assert loaded == {"journey": run_handlers.journey, "a=b": run_handlers.stubborn}


@pytest.mark.parametrize(
    ("handlers", "complaint"),
    [
        (["nonsense"], "is not a handler"),
        ([f"={MODULE}:journey"], "is not a handler"),
        (["no.such.module:handler"], "cannot be loaded"),
        ([f"{MODULE}:unknown"], "cannot be loaded"),
        ([f"{MODULE}:_folder"], "not an `async def` function"),
        ([f"{MODULE}:journey", f"{MODULE}:journey"], "two handlers"),
    ],
)
def test_an_invalid_handler_is_a_clear_error(quick: QuickCognizes, handlers: list[str], complaint: str) -> None:
    assert complaint in quick.fail("worker", *(f"--handler={handler}" for handler in handlers))
