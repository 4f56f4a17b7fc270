"""Grouping a state by prefix."""

from cognizes.engine.pulse.state_debug import StateDebugInfo, group_by_prefix


def test_grouping() -> None:
    state = {"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}
    assert group_by_prefix(state) == {"session": {"a": 1}, "user": {"b": 2}, "app": {"c": 3}, "temp": {"d": 4}}


def test_nothing_is_still_four_groups() -> None:
    assert group_by_prefix({}) == {"session": {}, "user": {}, "app": {}, "temp": {}}


def test_an_unknown_thread_is_empty() -> None:
    info = StateDebugInfo(thread_id="t")
    assert (info.current_state, info.state_history) == ({}, [])
