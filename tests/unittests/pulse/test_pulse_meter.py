"""Counting heartbeats."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from cognizes.engine.pulse import pulse_meter
from cognizes.engine.pulse.pulse_meter import PulseMeter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(pulse_meter.time, "monotonic", lambda: now[0])
    return now


def _payload(age: timedelta) -> str:
    return json.dumps({"created_at": (datetime.now(UTC) - age).isoformat()})


def test_events_per_second(clock: list[float]) -> None:
    meter = PulseMeter()
    for moment, count in ((1000.0, 3), (1001.5, 1), (1004.2, 2)):
        clock[0] = moment
        for _ in range(count):
            meter.heard("{}")
    clock[0] = 1005.0
    assert meter.per_second(6) == [0, 3, 1, 0, 0, 2]
    assert meter.events == 6
    clock[0] = 2000.0
    assert meter.per_second(6) == [0] * 6


def test_latency_of_samples(clock: list[float]) -> None:
    meter = PulseMeter()
    assert meter.latency().samples == 0
    for payload in (
        "not json",
        "[]",
        '{"created_at": 5}',
        '{"created_at": "yesterday"}',
        '{"created_at": "2020-01-01"}',
    ):
        clock[0] += 1
        meter.heard(payload)
    assert meter.latency().samples == 0
    clock[0] += 1
    for _ in range(100):
        meter.heard(_payload(timedelta(seconds=2)))
    latency = meter.latency()
    assert latency.samples == 1, "every append of every process passes by: only some are looked into"
    assert latency.p50 is not None
    assert latency.p50 >= 2000
    clock[0] += 1
    meter.heard(_payload(timedelta(seconds=-60)))
    assert meter.latency().samples == 2
    assert min(meter._latencies) == 0
