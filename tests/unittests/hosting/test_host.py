"""What the host itself decides about an input."""

from __future__ import annotations

from cognizes.engine.hosting.agent import client_state_delta


def test_a_client_writes_only_the_sessions_own_keys() -> None:
    state = {"a": 1, "b": [2], "app:x": 1}
    assert client_state_delta({"a": 1, "b": [3], "c": None, "app:x": 9, "user:y": 9, "temp:z": 9}, state) == {
        "b": [3], "c": None,
    }  # fmt: skip
    assert client_state_delta(None, state) == client_state_delta([1], state) == client_state_delta({}, state) == {}
