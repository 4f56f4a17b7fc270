"""Streamed fragments of arguments become the text of the whole arguments."""

from __future__ import annotations

import json
from typing import Any

from google.adk.utils.streaming_utils import _JsonPathTracker
from hypothesis import given
from hypothesis import strategies as st

from cognizes.engine.agui.call_arguments import ArgumentsWriter, arranged, parse_path
from cognizes.engine.agui.frames import to_json

_LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
_TEXT = st.text(st.characters(exclude_categories=("Cs",)))
_VALUES = st.recursive(_LEAVES | _TEXT, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner), max_leaves=12)


@given(st.dictionaries(_TEXT, _VALUES), st.integers(1, 9))
def test_what_adk_streams_is_a_prefix_of_the_whole(arguments: dict[str, Any], step: int) -> None:
    """ADK's own tracker makes the fragments of a model's text; the writer makes a text of these again."""
    given_text, tracker, writer = json.dumps(arguments), _JsonPathTracker(), ArgumentsWriter()
    streamed = ""
    for place in range(0, len(given_text), step):
        fragments = tracker.handle_chunk(given_text[place : place + step])
        streamed += writer.write([fragment.model_dump(exclude_none=True) for fragment in fragments])
    assert streamed == writer.text
    whole = arranged(arguments, writer.value)
    assert whole == arguments
    assert streamed + writer.rest(to_json(whole)) == to_json(whole)


def test_nested_values_and_the_order_of_the_stream() -> None:
    writer = ArgumentsWriter()
    fragments = [
        {"json_path": "$.title", "string_value": 'A "b"'},
        {"json_path": "$.title", "string_value": "\n"},
        {"json_path": "$.rows[0]['a key']", "number_value": 3.0},
        {"json_path": "$.rows[1].x", "bool_value": False},
        {"json_path": "$.note", "null_value": "NULL_VALUE"},
    ]
    text = "".join(writer.write([fragment]) for fragment in fragments)
    assert text == '{"title":"A \\"b\\"\\n","rows":[{"a key":3},{"x":false}],"note":null'
    whole = {"note": None, "rows": [{"a key": 3.0}, {"x": False, "y": 1}], "title": 'A "b"\n', "more": {}}
    assert to_json(arranged(whole, writer.value)) == (
        '{"title":"A \\"b\\"\\n","rows":[{"a key":3},{"x":false,"y":1}],"note":null,"more":{}}'
    )
    assert (
        writer.rest(to_json(arranged({**whole, "rows": [{"a key": 3.0}, {"x": False}]}, writer.value))) == ',"more":{}}'
    )
    assert writer.rest('{"another":1}') == ""


def test_a_fragment_out_of_order_ends_the_streaming() -> None:
    writer = ArgumentsWriter()
    first = writer.write([{"json_path": "$.a.b", "string_value": "x"}, {"json_path": "$.c", "bool_value": True}])
    assert first == '{"a":{"b":"x"},"c":true'
    assert (
        writer.write([{"json_path": "$.a.d", "string_value": "late"}, {"json_path": "$.e", "bool_value": True}]) == ""
    )
    assert writer.rest(to_json({"a": {"b": "x"}, "c": True, "e": True})) == ',"e":true}'


def test_paths() -> None:
    assert parse_path("$.a.b[0]['c d'][\"e\"]") == ("a", "b", 0, "c d", "e")
    assert parse_path("$['it\\'s\\n']") == ("it's\n",)
    assert parse_path("a") == parse_path("$..a") == parse_path(None) == parse_path("$[*]") == ()
