"""Large values are cut, small ones are as they were."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cognizes.engine.monitor.queries import Preview, preview


@pytest.mark.parametrize("value", [None, True, 1.5, "text", [], {}, {"a": [1, {"b": "c"}]}, [[[]]]])
def test_small_values_stay(value: Any) -> None:
    cutting = Preview()
    assert cutting.of(value) == value
    assert not cutting.has_cut


def test_what_is_large_is_marked() -> None:
    assert preview("x" * 2001) == {"$cut": "text", "length": 2001, "preview": "x" * 500}
    assert preview(list(range(1000)))[-1] == {"$cut": "list", "length": 1000}
    wide = preview({f"k{number}": number for number in range(1000)})
    assert (wide["k0"], wide["$cut"], wide["length"]) == (0, "object", 1000)


def test_deep_and_broad_values_stay_within_the_budget() -> None:
    deep: Any = "end"
    for _ in range(150):
        deep = {"next": deep}
    broad = {f"k{number}": ["y" * 1000] * 100 for number in range(100)}
    for value in (deep, broad):
        cutting = Preview(budget=5000)
        assert len(json.dumps(cutting.of(value))) < 20_000
        assert cutting.has_cut
