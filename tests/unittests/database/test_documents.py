"""JSON text for `json` and `jsonb` columns: what goes in comes out, as far as text can tell (no database here)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cognizes.engine import DELETE, InvalidInputError
from cognizes.engine.database.documents import (
    check_depth,
    dump_json,
    dump_jsonb,
    escape_text,
    load_json,
    load_jsonb,
    parse_json,
    unescape_text,
)

AWKWARD = "\x00\ud800\udbff\udc00\udfff\ue000\ue001\ufffd😀'\"\\0d%{}$"
texts = st.text(st.sampled_from(AWKWARD) | st.characters(codec=None))
integers = st.integers() | st.integers(min_value=-(10**4000), max_value=10**4000)
numbers = integers | st.floats() | st.sampled_from([1e16, 1e22, 1e23, 1e308, -0.0, 5e-324])
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(texts, below, max_size=4),
    max_leaves=12,
)
LOOKS_LIKE_A_MARK = [
    {"$delete": True},
    {"$delete": 1},
    {"$float": "x"},
    {"$float": 1},
    {"$float": "NaN", "other": 1},
    {"$float": ["NaN"]},
    {"other": "$float"},
    '"$float"',
    "\ue000",
    "\ue0000000",
    "\ue000d800",
    "\ue000e000",
    "\\u0000",
    "\\ue000",
]
ROUND_TRIPS: list[Any] = [
    pytest.param(dump_json, load_json, id="json"),
    pytest.param(dump_jsonb, load_jsonb, id="jsonb"),
]
Dump = Callable[[Any], str]
Load = Callable[[str], Any]


def exact(value: Any) -> Any:
    """A value that compares strictly: NaN is NaN, True is not 1, -0.0 is not 0.0, the order of keys counts."""
    if isinstance(value, dict):
        return ("dict", [(key, exact(item)) for key, item in value.items()])
    if isinstance(value, list):
        return ("list", [exact(item) for item in value])
    if isinstance(value, str):
        return ("str", value)
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)


def has_surrogate_pair(value: Any) -> bool:
    """Whether a text holds two lone surrogates that JSON's `\\u` escapes would join into one character."""
    if isinstance(value, dict):
        return any(has_surrogate_pair(item) for pair in value.items() for item in pair)
    if isinstance(value, list):
        return any(map(has_surrogate_pair, value))
    return isinstance(value, str) and value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") != value


@pytest.mark.parametrize(("dump", "load"), ROUND_TRIPS)
@given(value=json_values)
@example(value={"b": 1, "a": [math.nan, {"\x00": "\ud800\ue000"}], "": -0.0})
def test_every_json_value_comes_back(dump: Dump, load: Load, value: Any) -> None:
    if dump is dump_json and has_surrogate_pair(value):
        return
    assert exact(load(dump(value))) == exact(value)


@given(value=json_values, is_ascii=st.booleans())
@example(value={"b": 1, "a": "\ud800", "": [1e400, -0.0, 5e-324]}, is_ascii=True)
def test_parsing_agrees_with_the_standard_library(value: Any, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    assert exact(parse_json(text)) == exact(json.loads(text))


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 3}', "1e400", "-0", " [1E+2] ", "[" * 300 + "]" * 300])
def test_parsing_agrees_where_dumps_does_not_lead(text: str) -> None:
    assert exact(parse_json(text)) == exact(json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "01", "[1,]", "nul", "{'a': 1}", "\ufeff{}"])
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


@pytest.mark.parametrize("text", ["\ud83d\ude00", "x\ud800\udc00y"])
def test_two_lone_surrogates_side_by_side_do_not_become_one_character(text: str) -> None:
    assert load_json(dump_json({text: text})) == {text: text}
    assert load_jsonb(dump_jsonb({text: text})) == {text: text}


@pytest.mark.parametrize(("dump", "load"), ROUND_TRIPS)
@pytest.mark.parametrize("value", LOOKS_LIKE_A_MARK, ids=ascii)
def test_values_that_look_like_our_marks_come_back(dump: Dump, load: Load, value: Any) -> None:
    assert exact(load(dump({"k": value, "l": [value]}))) == exact({"k": value, "l": [value]})
    beside_a_marked_float = [math.nan, value]
    assert exact(load(dump(beside_a_marked_float))) == exact(beside_a_marked_float)


@pytest.mark.parametrize(("dump", "load"), ROUND_TRIPS)
@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_an_object_spelled_like_a_marked_float_is_not_taken_for_one(dump: Dump, load: Load, name: str) -> None:
    assert exact(load(dump({"k": {"$float": name}}))) == exact({"k": {"$float": name}})


@given(value=json_values)
def test_json_text_is_valid_for_postgresql_and_utf8(value: Any) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for text in (dump_json(value), dump_jsonb(value)):
        text.encode()
        json.loads(text, parse_constant=refuse)


@given(value=json_values)
def test_jsonb_text_holds_nothing_that_jsonb_refuses(value: Any) -> None:
    plain = json.loads(dump_jsonb(value))

    def strings(item: Any) -> list[str]:
        if isinstance(item, dict):
            return [text for pair in item.items() for half in pair for text in strings(half)]
        if isinstance(item, list):
            return [text for below in item for text in strings(below)]
        return [item] if isinstance(item, str) else []

    for text in strings(plain):
        assert "\x00" not in text
        text.encode()


@given(keys=st.lists(texts.filter(lambda text: not has_surrogate_pair(text)), unique=True, max_size=8))
def test_json_keeps_the_order_of_keys(keys: list[str]) -> None:
    assert list(load_json(dump_json({"nested": dict.fromkeys(keys)}))["nested"]) == keys


def test_delete_is_spelled_as_documented() -> None:
    assert load_json(dump_json({"k": DELETE})) == load_jsonb(dump_jsonb({"k": DELETE})) == {"k": {"$delete": True}}
    assert load_jsonb(dump_jsonb({"\x00": DELETE, "n": math.nan}))["\x00"] == {"$delete": True}


def test_tuples_become_lists_and_number_keys_become_text() -> None:
    assert load_jsonb(dump_jsonb({"t": (1, (math.nan, "\x00"))}))["t"][0] == 1
    assert load_json(dump_json({"t": (1, (2,))})) == {"t": [1, [2]]}
    assert load_json(dump_json({1: 2})) == {"1": 2}


@given(text=texts)
def test_escaped_text_comes_back_and_suits_a_text_column(text: str) -> None:
    escaped = escape_text(text)
    assert "\x00" not in escaped
    escaped.encode()
    assert unescape_text(escaped) == text


def nested(depth: int, leaf: Any, kind: type) -> Any:
    for _ in range(depth):
        leaf = {"k": leaf} if kind is dict else [leaf]
    return leaf


@pytest.mark.parametrize("kind", [dict, list])
@pytest.mark.parametrize("leaf", [1, math.nan, "\x00", "\ud800"], ids=ascii)
@pytest.mark.parametrize("depth", [199, 300, 400, 500, 600, 700, 800, 900, 950, 990, 10_000])
@pytest.mark.parametrize(("dump", "load"), ROUND_TRIPS)
def test_deep_nesting_works_or_is_refused_as_bad_input(
    dump: Dump, load: Load, depth: int, leaf: Any, kind: type
) -> None:
    value = nested(depth, leaf, kind)
    try:
        text = dump(value)
    except InvalidInputError:
        assert depth >= 300
    else:
        assert depth < 1000
        if depth == 199:
            assert exact(load(text)) == exact(value)


@pytest.mark.parametrize("kind", [dict, list])
def test_the_depth_limit_is_exact(kind: type) -> None:
    fits, too_deep = nested(200, [], kind), nested(201, [], kind)
    check_depth(dump_json(fits), fits, 201)
    with pytest.raises(InvalidInputError, match="201 levels"):
        check_depth(dump_json(too_deep), too_deep, 201)
    many_but_flat = [[]] * 1000 + [{}] * 1000
    check_depth(dump_json(many_but_flat), many_but_flat, 2)


@pytest.mark.parametrize(
    "value", [{1}, b"x", object(), 1j, {(1, 2): 3}, 10**5000], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("dump", [dump_json, dump_jsonb])
def test_what_is_not_json_is_refused(dump: Dump, value: Any) -> None:
    with pytest.raises(InvalidInputError, match="not JSON"):
        dump({"k": [value]})
    with pytest.raises(InvalidInputError, match="not JSON"):
        dump({"k": ["\x00", math.nan, value]})


@pytest.mark.parametrize("dump", [dump_json, dump_jsonb])
def test_a_document_that_holds_itself_is_refused(dump: Dump) -> None:
    circle: list[Any] = ["\x00"]
    circle.append(circle)
    with pytest.raises(InvalidInputError):
        dump(circle)
