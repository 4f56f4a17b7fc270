"""Documents through real `json` and `jsonb` columns."""

from __future__ import annotations

import math
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cognizes.engine.database.documents import dump_json, dump_jsonb, escape_text, load_json, load_jsonb, unescape_text

AWKWARD = "\x00\ud800\udc00\udfff\ue000\ue001\ufffd😀'\"\\0d%{}$"
texts = st.text(st.sampled_from(AWKWARD) | st.characters(codec=None), max_size=8)
integers = st.integers() | st.integers(min_value=-(10**4000), max_value=10**4000)
json_values = st.recursive(
    st.none() | st.booleans() | integers | st.floats() | texts,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(texts, below, max_size=4),
    max_leaves=20,
)
LOOKS_LIKE_A_MARK = [{"$delete": True}, {"$delete": 1}, {"$float": "x"}, {"$float": "NaN", "b": 1}, "\ue000d800"]


def exact(value: Any, *, with_order: bool) -> Any:
    """A value that compares strictly: NaN is NaN, True is not 1, 1 is not 1.0; the order of keys counts if asked."""
    if isinstance(value, dict):
        pairs = [(key, exact(item, with_order=with_order)) for key, item in value.items()]
        return ("dict", pairs if with_order else sorted(pairs, key=lambda pair: pair[0]))
    if isinstance(value, list):
        return ("list", [exact(item, with_order=with_order) for item in value])
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)


def holds(value: Any, found: Any) -> bool:
    """Whether any scalar or key of a document is one that `found` recognises."""
    if isinstance(value, dict):
        return any(found(key) or holds(item, found) for key, item in value.items())
    if isinstance(value, list):
        return any(holds(item, found) for item in value)
    return bool(found(value))


def is_surrogate_pair(value: Any) -> bool:
    """Lone surrogates that stand side by side like a pair: see the unit tests."""
    return isinstance(value, str) and value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") != value


def is_awkward_float(value: Any) -> bool:
    """Floats that JSONB's decimal numbers tell apart differently: they have a test of their own."""
    return isinstance(value, float) and math.isfinite(value) and (abs(value) >= 1e16 or repr(value) == "-0.0")


async def through_json(pool: asyncpg.Pool, value: Any) -> Any:
    return load_json(await pool.fetchval("SELECT $1::text::json::text", dump_json(value)))


async def through_jsonb(pool: asyncpg.Pool, value: Any) -> Any:
    return load_jsonb(await pool.fetchval("SELECT $1::text::jsonb::text", dump_jsonb(value)))


@settings(deadline=None, database=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(value=json_values)
async def test_a_json_column_returns_every_document_with_its_order(pool: asyncpg.Pool, value: Any) -> None:
    if not holds(value, is_surrogate_pair):
        assert exact(await through_json(pool, value), with_order=True) == exact(value, with_order=True)


@settings(deadline=None, database=None, max_examples=300, suppress_health_check=list(HealthCheck))
@given(value=json_values)
async def test_a_jsonb_column_returns_every_document(pool: asyncpg.Pool, value: Any) -> None:
    if not holds(value, is_awkward_float):
        assert exact(await through_jsonb(pool, value), with_order=False) == exact(value, with_order=False)


@pytest.mark.parametrize("value", [1e15, 1e16, 1e22, 1e23, 1.5e300, -1e23, 1e-7, 5e-324, 1.7976931348623157e308])
async def test_a_jsonb_column_returns_a_float_as_the_same_float(pool: asyncpg.Pool, value: float) -> None:
    found = await through_jsonb(pool, {"k": value})
    assert exact(found, with_order=True) == exact({"k": value}, with_order=True)


async def test_a_jsonb_column_keeps_the_sign_of_zero(pool: asyncpg.Pool) -> None:
    assert math.copysign(1, (await through_jsonb(pool, {"k": -0.0}))["k"]) == -1


@pytest.mark.parametrize("value", LOOKS_LIKE_A_MARK, ids=ascii)
async def test_values_that_look_like_our_marks_come_back(pool: asyncpg.Pool, value: Any) -> None:
    document = {"k": value, "nan": math.nan, "nul\x00": [value]}
    assert exact(await through_json(pool, document), with_order=True) == exact(document, with_order=True)
    assert exact(await through_jsonb(pool, document), with_order=False) == exact(document, with_order=False)


@settings(deadline=None, database=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(text=texts)
async def test_a_text_column_returns_every_text(pool: asyncpg.Pool, text: str) -> None:
    assert unescape_text(await pool.fetchval("SELECT $1::text", escape_text(text))) == text


async def test_nesting_up_to_the_limit_comes_back(pool: asyncpg.Pool) -> None:
    value: Any = [math.nan, "\x00\ud800"]
    for _ in range(199):
        value = {"k": [value]} if isinstance(value, list) and len(value) == 1 else [value]
    assert exact(await through_json(pool, value), with_order=True) == exact(value, with_order=True)
    assert exact(await through_jsonb(pool, value), with_order=True) == exact(value, with_order=True)
