"""Metrics for Prometheus: what an engine reports at a scrape, and the metrics of all processes of one `serve`.

Counters and histograms of a process are in `telemetry`. This module adds what the parts of the engine know at the
moment of the scrape: connections, subscribers, notifications, runs, the embedding queue.

With `serve --workers N` a scrape reaches one process of N. Each process answers the others on a unix socket in a
private directory; the one that is scraped asks them and returns the samples of all, with the label `process`. The
samples are not added up: a sum would go down when a process restarts, which Prometheus takes for a reset of the whole
counter.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from cognizes.engine.database.tenancy import acting_as_engine
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.telemetry import enable_metrics
from cognizes.engine.version import __version__

logger = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST
_DATABASE_SECONDS = 3.0
_PEER_SECONDS = 2.0
_LARGEST_ANSWER = 16 * 1024 * 1024
_ONLY_PROCESS = "0"

Connections = Callable[[], Mapping[str, int]]
"""Returns the number of open HTTP streams by kind."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one `serve`: the directory of their sockets, and the name of this one, a number."""

    directory: Path
    name: str


class MetricsExport:
    """Renders the metrics of an engine and of the other processes of its group."""

    def __init__(
        self, engine: Engine, *, connections: Connections | None = None, group: ProcessGroup | None = None
    ) -> None:
        self._engine = engine
        self._process = enable_metrics().registry
        self._connections = connections or dict
        self._group = group
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer the other processes of the group."""
        if self._group is not None:
            path = self._socket_of(self._group)
            # A process of the same number was killed.
            path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._answer, path)

    async def close(self) -> None:
        if self._server is not None and self._group is not None:
            self._server.close()
            self._socket_of(self._group).unlink(missing_ok=True)
            self._server = None

    async def render(self) -> bytes:
        """Return the metrics of all processes, and those of the database, in Prometheus' text format."""
        of_database, others = await asyncio.gather(self._ask_database(), self._ask_others())
        own = self._group.name if self._group is not None else _ONLY_PROCESS
        of_processes = {own: [_as_json(family) for family in self._collect()]} | others
        merged: dict[str, Metric] = {}
        up = GaugeMetricFamily("cognizes_process_up", "1 if the process answered the scrape.", labels=["process"])
        for process, families in sorted(of_processes.items()):
            up.add_metric([process], 0 if families is None else 1)
            for name, documentation, kind, samples in families or ():
                family = merged.setdefault(name, Metric(name, documentation, kind))
                for sample, labels, value in samples:
                    family.add_sample(sample, labels | {"process": process}, value)
        return generate_latest(_Families([up, *merged.values(), *of_database]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve `/metrics` and nothing else, as an ASGI application for a port of its own."""
        if scope["type"] != "http":
            return
        is_metrics = scope["path"] == "/metrics" and scope["method"] == "GET"
        body = await self.render() if is_metrics else b"the metrics are at GET /metrics\n"
        headers = [(b"content-type", CONTENT_TYPE.encode() if is_metrics else b"text/plain")]
        status = 200 if is_metrics else 404
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    @asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve the metrics on a socket for the length of a block."""
        server = _MetricsServer(uvicorn.Config(self, lifespan="off", log_config=None, access_log=False))
        task = asyncio.create_task(server.serve(sockets=[listening]), name="serve-metrics")
        try:
            yield
        finally:
            server.should_exit = True
            await task

    def _collect(self) -> Iterator[Metric]:
        yield from self._process.collect()
        yield from _pool(self._engine)
        yield from _live(self._engine, self._connections())
        yield from _reads(self._engine)
        yield from _tasks(self._engine)

    async def _ask_database(self) -> list[Metric]:
        """Read what is the same in every process, with one connection."""
        up = GaugeMetricFamily("cognizes_database_up", "1 if PostgreSQL answered the scrape.")
        try:
            with acting_as_engine():
                async with asyncio.timeout(_DATABASE_SECONDS):
                    families = await _read_database(self._engine)
        except (EngineError, TimeoutError) as error:
            logger.warning("the metrics have no values of the database: %s", error or "no answer in time")
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, *families]

    async def _ask_others(self) -> dict[str, Any]:
        if self._group is None:
            return {}
        own = self._socket_of(self._group)
        paths = [path for path in self._group.directory.glob("*.sock") if path != own]
        answers = await asyncio.gather(*map(_ask, paths))
        return {path.stem: answer for path, answer in zip(paths, answers, strict=True) if answer is not _GONE}

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(json.dumps([_as_json(family) for family in self._collect()]).encode() + b"\n")
            await writer.drain()
        writer.close()

    @staticmethod
    def _socket_of(group: ProcessGroup) -> Path:
        return group.directory / f"{group.name}.sock"


class _MetricsServer(uvicorn.Server):
    """uvicorn without its signal handlers, which belong to the command."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_GONE: Any = object()


async def _ask(path: Path) -> Any:
    """Return the families of another process; None if it does not answer in time, `_GONE` if it has ended."""
    try:
        async with asyncio.timeout(_PEER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST_ANSWER)
            try:
                return json.loads(await reader.readline())
            finally:
                writer.close()
    except (ConnectionRefusedError, FileNotFoundError):
        return _GONE
    except (OSError, TimeoutError, ValueError) as error:
        logger.warning("process %s does not answer a scrape: %s", path.stem, error or "no answer in time")
        return None


@dataclass(frozen=True)
class _Families(Collector):
    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _as_json(family: Metric) -> tuple[str, str, str, list[tuple[str, dict[str, str], float]]]:
    samples = [
        (sample.name, dict(sample.labels), float(sample.value))
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    return family.name, family.documentation, family.type, samples


def _gauge(name: str, documentation: str, values: Mapping[str, float] | float, label: str = "") -> Metric:
    if isinstance(values, Mapping):
        family = GaugeMetricFamily(name, documentation, labels=[label])
        for value_of, value in values.items():
            family.add_metric([value_of], value)
        return family
    return GaugeMetricFamily(name, documentation, value=values)


def _pool(engine: Engine) -> Iterator[Metric]:
    database = engine._database
    used = GaugeMetricFamily(
        "cognizes_pool_connections", "Open connections by pool and state.", labels=["pool", "state"]
    )
    for name, pool in database.pools.items():
        idle = pool.get_idle_size()
        used.add_metric([name, "idle"], idle)
        used.add_metric([name, "used"], pool.get_size() - idle)
    yield used
    sizes = {name: float(pool.get_max_size()) for name, pool in database.pools.items()}
    yield _gauge("cognizes_pool_connections_limit", "Largest number of connections of a pool.", sizes, "pool")
    yield _gauge("cognizes_pool_waiting_tasks", "Tasks that wait for a connection.", database.waiting)


def _live(engine: Engine, connections: Mapping[str, int]) -> Iterator[Metric]:
    feed, listener, notifier = engine.feed, engine._listener, engine._notifier
    kinds = {kind: float(count) for kind, count in connections.items()}
    yield _gauge("cognizes_http_streams", "Open streams of clients by kind.", kinds, "kind")
    yield _gauge("cognizes_message_streams", "Messages that this process streams now.", engine.streams.live_messages)
    yield _gauge("cognizes_feed_subscribers", "Subscribers of feeds, of clients and of code.", feed.subscribers)
    yield _gauge("cognizes_feed_threads", "Threads that have subscribers.", len(feed.followed_threads))
    yield CounterMetricFamily(
        "cognizes_notifications_missed",
        "Threads whose new events a sweep found without a notification.",
        value=feed.missed_notifications,
    )
    yield CounterMetricFamily(
        "cognizes_notifications_recovered",
        "Threads whose events were read after their notification was missed.",
        value=feed.recovered_notifications,
    )
    yield CounterMetricFamily(
        "cognizes_notifications_dropped",
        "Notifications that were not sent, because PostgreSQL was away for too long or refused them.",
        value=notifier.dropped,
    )
    yield _gauge("cognizes_notifications_waiting", "Notifications that are not sent yet.", notifier.waiting)
    yield CounterMetricFamily(
        "cognizes_listener_reconnections",
        "Times that the listener replaced its connection.",
        value=listener.reconnections,
    )
    yield _gauge("cognizes_listener_connected", "1 if the listener receives notifications.", listener.is_running)


def _reads(engine: Engine) -> Iterator[Metric]:
    counters = engine._reads.counters
    reads = CounterMetricFamily(
        "cognizes_replica_reads", "Reads for replicas: answered by one, or why the primary answered.", labels=["answer"]
    )
    for name, value in vars(counters).items():
        reads.add_metric([name], value)
    yield reads


def _tasks(engine: Engine) -> Iterator[Metric]:
    supervisor = engine._supervisor
    yield _gauge("cognizes_background_tasks", "Background tasks of the process.", len(supervisor.names))
    yield _gauge("cognizes_background_tasks_failing", "Background tasks that fail now.", len(supervisor.failures))
    yield _gauge("cognizes_runs_held", "Runs whose lease this process holds.", len(engine.runs.leases.held))
    yield _gauge("cognizes_build_info", "1, with the version as label.", {__version__: 1}, "version")


async def _read_database(engine: Engine) -> list[Metric]:
    rows = await engine._database.fetch("count_open_runs")
    runs = dict.fromkeys(("pending", "running", "waiting"), 0.0) | {row["status"]: float(row["runs"]) for row in rows}
    families = [_gauge("cognizes_runs", "Runs that have not ended, by status.", runs, "status")]
    lags = await engine._reads.lags()
    families.append(_gauge("cognizes_replica_lag_seconds", "Seconds that a replica is behind.", lags, "replica"))
    if engine.memory.queue is not None:
        length = await engine.memory.queue.length()
        states = {"waiting": float(length.waiting), "parked": float(length.parked)}
        families.append(_gauge("cognizes_embedding_queue_texts", "Memories without a vector.", states, "state"))
    return families
