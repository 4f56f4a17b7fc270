"""Counting events and sampling their latency."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from cognizes.engine.monitor.pulse_meter import PulseMeter


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


def _payload(age: timedelta) -> str:
    return json.dumps({"created_at": (datetime.now(UTC) - age).isoformat()})


def test_events_per_second(clock: list[float]) -> None:
    meter = PulseMeter(clock=lambda: clock[0])
    for moment, count in ((1000.0, 3), (1001.5, 1), (1004.2, 2)):
        clock[0] = moment
        for _ in range(count):
            meter.count("{}")
    clock[0] = 1005.0
    assert meter.per_second(6) == [0, 3, 1, 0, 0, 2]
    assert meter.events == 6
    clock[0] = 2000.0
    assert meter.per_second(6) == [0] * 6


def test_latency_of_samples(clock: list[float]) -> None:
    meter = PulseMeter(clock=lambda: clock[0])
    assert meter.latency().samples == 0
    for payload in (
        "not json",
        "[]",
        '{"created_at": 5}',
        '{"created_at": "yesterday"}',
        '{"created_at": "2020-01-01"}',
    ):
        clock[0] += 1
        meter.count(payload)
    assert meter.latency().samples == 0
    clock[0] += 1
    for _ in range(100):
        meter.count(_payload(timedelta(seconds=2)))
    latency = meter.latency()
    assert latency.samples == 1, "only a sample is parsed"
    assert latency.p50 is not None
    assert latency.p50 >= 2000
    clock[0] += 1
    meter.count(_payload(timedelta(seconds=2)))
    assert meter.latency().samples == 2


def test_an_event_of_the_future_has_no_negative_latency(clock: list[float]) -> None:
    meter = PulseMeter(clock=lambda: clock[0])
    meter.count(_payload(timedelta(seconds=-60)))
    assert meter.latency().p50 == 0
