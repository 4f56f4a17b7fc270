"""Notifications of streams fit into a NOTIFY payload."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cognizes.engine.streams.chunks import StreamKey, StreamStatus, format_notifications, parse_notifications


def test_many_streams_are_announced_in_payloads_that_postgresql_accepts() -> None:
    keys = [StreamKey(uuid4(), "é" * 1000) for _ in range(500)]
    payloads = list(format_notifications((key.address, 2**62) for key in keys))
    assert max(len(payload.encode()) for payload in payloads) < 8000
    found = [item for payload in payloads for item in parse_notifications(payload)]
    assert [item.address for item in found] == [key.address for key in keys]
    assert {(item.sequence, item.status) for item in found} == {(2**62, StreamStatus.STREAMING)}


@pytest.mark.parametrize("payload", ["", "nonsense", "{}", "[1]", "[[1,2]]", '[["x","y",1,"streaming"]]', "null"])
def test_a_payload_in_another_format_is_ignored(payload: str) -> None:
    assert parse_notifications(payload) == []
