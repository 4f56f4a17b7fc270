"""The counters and histograms of this process, for Prometheus.

They belong to the process, not to an engine: one scrape describes one process. They do not exist until
`enable_metrics` is called, which `COGNIZES_METRICS=1` does; `instruments()` returns None until then, so that the code
that measures costs one call. Values that a part of the engine has anyway (the pool, subscribers, reconnections) are not
counted here: `api/metrics.py` reads them at each scrape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_Result = TypeVar("_Result")


class Instruments:
    """What the parts of the engine count and measure. Each attribute is an instrument of `prometheus_client`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A late import: the extra `metrics` has the package.
        from prometheus_client import Counter, Histogram  # noqa: PLC0415

        self.registry = registry
        self.requests = Counter(
            "cognizes_http_requests",
            "HTTP requests by method, route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "cognizes_http_request_duration_seconds",
            "Duration of HTTP requests that are not streams.",
            ["method", "route"],
            buckets=_SHORT,
            registry=registry,
        )
        self.appends = Counter(
            "cognizes_appends",
            "Appended events by result: stored, duplicate, conflict, missing or fenced.",
            ["result"],
            registry=registry,
        )
        self.append_seconds = Histogram(
            "cognizes_append_duration_seconds",
            "Seconds from the submission of an event to the answer after its commit.",
            buckets=_SHORT,
            registry=registry,
        )
        self.append_batch = Histogram(
            "cognizes_append_batch_events",
            "Events of one transaction of group commit.",
            buckets=_ITEMS,
            registry=registry,
        )
        self.retries = Counter(
            "cognizes_database_retries",
            "Calls that were repeated because PostgreSQL was unavailable.",
            registry=registry,
        )
        self.feed_lag = Histogram(
            "cognizes_feed_lag_seconds",
            "Seconds from the time of a stored event to its delivery to a subscriber.",
            buckets=_SHORT,
            registry=registry,
        )
        self.pool_acquire_seconds = Histogram(
            "cognizes_pool_acquire_duration_seconds",
            "Seconds that a task waited for a connection of the pool.",
            buckets=_SHORT,
            registry=registry,
        )
        self.pool_timeouts = Counter(
            "cognizes_pool_timeouts", "Tasks that got no connection of the pool in time.", registry=registry
        )
        self.runs_ended = Counter(
            "cognizes_runs_ended", "Runs that this process ended, by status.", ["status"], registry=registry
        )
        self.run_claim_delay = Histogram(
            "cognizes_run_claim_delay_seconds",
            "Seconds from the time at which a run became claimable to its first claim.",
            buckets=_LONG,
            registry=registry,
        )
        self.run_wait_seconds = Histogram(
            "cognizes_run_wait_duration_seconds",
            "Seconds that a run waited, observed when it resumes, by kind of wait.",
            ["kind"],
            buckets=_LONG,
            registry=registry,
        )
        self.leases_lost = Counter(
            "cognizes_run_leases_lost",
            "Leases of runs that this process lost while it executed the runs.",
            registry=registry,
        )
        self.stream_errors = Counter(
            "cognizes_stream_backend_errors",
            "Failed calls of the backend of token streams, by operation.",
            ["operation"],
            registry=registry,
        )

    async def time_append(self, submit: Callable[[], Awaitable[_Result]]) -> _Result:
        """Await an append and observe its duration."""
        started = perf_counter()
        answer = await submit()
        self.append_seconds.observe(perf_counter() - started)
        return answer


_instruments: Instruments | None = None


def instruments() -> Instruments | None:
    """Return the instruments of this process; None while metrics are off."""
    return _instruments


def enable_metrics() -> Instruments:
    """Create the instruments of this process, once. `ImportError` without the extra `metrics`."""
    global _instruments  # noqa: PLW0603 - one scrape describes one process
    if _instruments is None:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        _instruments = Instruments(registry)
    return _instruments


def count_run_end(status: str) -> None:
    if _instruments is not None:
        _instruments.runs_ended.labels(status).inc()


def observe_claim(attempt: int, claimable_since: datetime | None, claimed_at: datetime | None) -> None:
    """Observe how long a run was claimable: only for the first claim, whose beginning is known."""
    if _instruments is not None and attempt == 1 and claimable_since is not None and claimed_at is not None:
        _instruments.run_claim_delay.observe(_seconds(claimable_since, claimed_at))


def observe_wait(kind: str, since: datetime | None, until: datetime | None) -> None:
    if _instruments is not None and since is not None and until is not None:
        _instruments.run_wait_seconds.labels(kind).observe(_seconds(since, until))


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())
