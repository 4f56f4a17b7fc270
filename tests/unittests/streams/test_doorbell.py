"""Doorbells fit into a NOTIFY, whatever they tell of."""

from __future__ import annotations

from uuid import uuid4

import pytest

from cognizes.engine.streams.delta_stream import StreamKey, StreamStatus
from cognizes.engine.streams.postgres_deltas import parse_movements, spell_movements


def test_many_streams_ring_in_payloads_that_postgresql_takes() -> None:
    keys = [StreamKey(uuid4(), "é" * 1000) for _ in range(500)]
    payloads = list(spell_movements((key.address, 2**62) for key in keys))
    assert max(len(payload.encode()) for payload in payloads) < 8000
    movements = [movement for payload in payloads for movement in parse_movements(payload)]
    assert [movement.address for movement in movements] == [key.address for key in keys]
    assert {(movement.sequence, movement.status) for movement in movements} == {(2**62, StreamStatus.STREAMING)}


@pytest.mark.parametrize("payload", ["", "nonsense", "{}", "[1]", "[[1,2]]", '[["x","y",1,"streaming"]]', "null"])
def test_what_is_no_doorbell_of_ours_is_ignored(payload: str) -> None:
    assert parse_movements(payload) == []
