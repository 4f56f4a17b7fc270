"""`/metrics`: read by Prometheus' own parser, from one process and from several."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cognizes.engine import ConcurrencyConflictError, Engine, PoolTimeoutError, Worker
from cognizes.engine.api.main import create_app
from cognizes.engine.api.metrics import MetricsExport, ProcessGroup
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.notifications import Notifier
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.runs import HandledRun
from tests.engine_parts import database_of
from tests.listeners import kill_listeners
from tests.standbys import Standby, standby_of

DASHBOARD = Path(__file__).parents[3] / "deploy" / "grafana-dashboard.json"


class Samples:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a name that have these labels."""
        return sum(
            value
            for (found, has), value in self.values.items()
            if found == name and labels.items() <= dict(has).items()
        )

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.values}


@pytest.fixture
async def measured(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, metrics=True, embedder="none") as engine:
        yield engine


@pytest.fixture
async def client(measured: Engine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(engine=measured), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as opened:
        yield opened


async def scrape(client: httpx.AsyncClient) -> Samples:
    response = await client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=")
    return Samples(response.text)


async def until_true(condition: object) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # type: ignore[operator]
            await asyncio.sleep(0.02)


async def test_requests_are_counted_by_route_and_status_and_never_by_path(client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    created = await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})
    thread_id = created.json()["thread_id"]
    assert (await client.get(f"/api/sessions/{thread_id}")).status_code == 200
    assert (await client.get("/api/sessions/00000000-0000-0000-0000-000000000000")).status_code == 404
    assert (await client.get("/no/such/page")).status_code == 404
    after = await scrape(client)

    def grown(**labels: str) -> float:
        return after("cognizes_http_requests_total", **labels) - before("cognizes_http_requests_total", **labels)

    assert grown(method="POST", route="/api/sessions", status="201") == 1
    assert grown(method="GET", route="/api/sessions/{thread_id}", status="200") == 1
    assert grown(method="GET", route="/api/sessions/{thread_id}", status="404") == 1
    assert grown(route="none", status="404") == 1
    assert after("cognizes_http_request_duration_seconds_count", route="/api/sessions/{thread_id}") >= 2
    assert thread_id not in (await client.get("/metrics")).text


async def test_appends_conflicts_and_batches_are_counted(measured: Engine, client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    session = await measured.sessions.create("shop", "ada")
    await asyncio.gather(
        *(measured.sessions.append(session, author="u", kind="message", text=str(n)) for n in range(20))
    )
    stale = await measured.sessions.get("shop", "ada", session.id)
    await measured.sessions.append(session, author="u", kind="state", state={"a": 1})
    with pytest.raises(ConcurrencyConflictError):
        await measured.sessions.append(stale, author="u", kind="state", state={"a": 2})
    after = await scrape(client)

    def grown(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert grown("cognizes_appends_total", result="stored") == 21
    assert grown("cognizes_appends_total", result="conflict") == 1
    assert grown("cognizes_append_duration_seconds_count") == 22
    batches = grown("cognizes_append_batch_events_count")
    assert grown("cognizes_append_batch_events_sum") == 22
    assert batches < 22, "concurrent appends share batches"
    assert after("cognizes_pool_connections", pool="engine") >= 1
    assert after("cognizes_pool_acquire_duration_seconds_count") > 0


async def test_feed_lag_and_missed_notifications(
    measured: Engine, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await measured.sessions.create("shop", "ada")
    await measured.sessions.append(session, author="u", kind="message", text="history")
    before = await scrape(client)
    received: list[str] = []

    async def follow() -> None:
        async with aclosing(measured.live(session)) as events:
            async for event in events:
                received.append(event.content["text"])

    following = asyncio.create_task(follow())
    await until_true(lambda: _done(received == ["history"]))
    assert (await scrape(client))("cognizes_feed_subscribers") == 1
    await measured.sessions.append(session, author="u", kind="message", text="live")
    await until_true(lambda: _done(received[-1] == "live"))
    # The process loses the next notification; the sweep finds the event.
    monkeypatch.setattr(Notifier, "notify", lambda *_: None)
    await measured.sessions.append(session, author="u", kind="message", text="missed")
    await until_true(lambda: _done(received[-1] == "missed"))
    after = await scrape(client)
    following.cancel()
    await asyncio.wait([following])
    assert after("cognizes_feed_lag_seconds_count") - before("cognizes_feed_lag_seconds_count") == 2, (
        "history is not live"
    )
    for name in ("cognizes_notifications_missed_total", "cognizes_notifications_recovered_total"):
        assert after(name) - before(name) == 1, name


async def _done(value: bool) -> bool:
    return value


async def test_a_lost_listener_is_counted(measured: Engine, client: httpx.AsyncClient) -> None:
    assert (await scrape(client))("cognizes_listener_connected") == 1
    await kill_listeners(database_of(measured).pool)

    async def reconnected() -> bool:
        return (await scrape(client))("cognizes_listener_reconnections_total") >= 1

    await until_true(reconnected)


async def test_runs_claims_waits_and_lost_leases(measured: Engine, client: httpx.AsyncClient) -> None:
    before = await scrape(client)
    session = await measured.sessions.create("shop", "ada")

    async def handler(run: HandledRun) -> str:
        await run.wait(kind="timer", correlation_key="t", expires_at=datetime.now(UTC) + timedelta(seconds=0.3))
        return "done"

    run = await measured.runs.enqueue(session, "slow", run_id="r1")
    await measured.runs.enqueue(session, "unknown", run_id="r2")
    async with Worker(measured, {"slow": handler}):
        await until_true(lambda: _status(measured, run.thread_id, "r1", "completed"))
    after = await scrape(client)

    def grown(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert after("cognizes_runs", status="pending") == 1
    assert after("cognizes_runs", status="waiting") == 0
    assert grown("cognizes_runs_ended_total", status="completed") == 1
    assert grown("cognizes_run_claim_delay_seconds_count") == 1
    assert grown("cognizes_run_wait_duration_seconds_count", kind="timer") == 1
    assert grown("cognizes_run_wait_duration_seconds_sum", kind="timer") >= 0.2

    leased = await measured.runs.begin_leased(session, run_id="r3")
    lost = asyncio.Event()
    measured.runs.leases.hold(RunFence(UUID(leased.thread_id), "r3", leased.attempt), lost.set)
    await measured.runs.cancel(leased.thread_id, "r3")
    await asyncio.wait_for(lost.wait(), 30)
    assert (await scrape(client))("cognizes_run_leases_lost_total") - before("cognizes_run_leases_lost_total") == 1


async def _status(engine: Engine, thread_id: str, run_id: str, status: str) -> bool:
    return (await engine.runs.get(thread_id, run_id)).status == status


async def test_retries_and_pool_timeouts(database_url: str) -> None:
    settings = {"pool_size": 2, "pool_timeout": 0.2, "embedder": "none", "memory_background": False}
    async with Engine.open(database_url, metrics=True, **settings) as engine:
        export = MetricsExport(engine)
        session = await engine.sessions.create("shop", "ada")
        before = Samples((await export.render()).decode())
        # The server ends the connection of an append that waits for the lock of its thread: the append is sent again.
        administrator = await asyncpg.connect(database_url)
        try:
            async with administrator.transaction():
                await administrator.execute("SELECT FROM threads FOR UPDATE")
                append = engine.sessions.append(session, author="u", kind="message", text="x")
                appending = asyncio.create_task(append)

                async def has_ended() -> bool:
                    return await administrator.fetchval(
                        "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND datname = current_database() AND pid <> pg_backend_pid()"
                    )

                await until_true(has_ended)
            await appending
        finally:
            await administrator.close()
        database = database_of(engine)
        async with database.connection(), database.connection():
            with pytest.raises(PoolTimeoutError):
                await engine.sessions.get("shop", "ada", session.id)
        after = Samples((await export.render()).decode())
    for name in ("cognizes_database_retries_total", "cognizes_pool_timeouts_total"):
        assert after(name) - before(name) >= 1, name


async def test_errors_of_the_stream_backend(database_url: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        redis_url = f"redis://127.0.0.1:{unused.getsockname()[1]}/0"
        async with Engine.open(database_url, metrics=True, embedder="none", redis_url=redis_url) as engine:
            export = MetricsExport(engine)
            session = await engine.sessions.create("shop", "ada")
            before = Samples((await export.render()).decode())
            async with engine.stream_message(session) as message:
                await message.write("token")

                async def has_failed() -> bool:
                    after = Samples((await export.render()).decode())
                    assert after("cognizes_message_streams") == 1
                    name = "cognizes_stream_backend_errors_total"
                    return after(name, operation="write") > before(name, operation="write")

                await until_true(has_failed)


async def test_a_scrape_without_the_database_still_answers(measured: Engine, client: httpx.AsyncClient) -> None:
    await database_of(measured).pool.close()
    after = await scrape(client)
    assert after("cognizes_database_up") == 0
    assert "cognizes_runs" not in after.names
    assert after("cognizes_process_up", process="0") == 1


@pytest.fixture
def standby(postgres_server: EmbeddedPostgres) -> Iterator[Standby]:
    with standby_of(postgres_server) as started:
        yield started


async def test_reads_on_a_standby_and_its_lag(standby: Standby, database_url: str) -> None:
    def lag(samples: Samples) -> float:
        return samples.values["cognizes_replica_lag_seconds", (("replica", "0"),)]

    await standby.catch_up()
    settings = {"read_url": standby.url_for(database_url), "read_timeout": 20, "embedder": "none"}
    async with Engine.open(database_url, metrics=True, **settings) as engine:
        session = await engine.sessions.create("shop", "ada")
        await engine.sessions.append(session, author="user", kind="user_message", text="x")
        await standby.catch_up()
        await engine.timeline.read(session.thread_id)
        export = MetricsExport(engine)
        current = Samples((await export.render()).decode())
        assert current("cognizes_replica_reads_total", answer="replica") >= 1
        assert lag(current) == 0
        await standby.pause()
        await engine.sessions.append(session, author="user", kind="user_message", text="y")
        await engine.timeline.read(session.thread_id)

        async def is_behind() -> bool:
            return lag(Samples((await export.render()).decode())) > 0

        await until_true(is_behind)
        assert Samples((await export.render()).decode())("cognizes_replica_reads_total", answer="behind") >= 1
        await standby.resume()


async def test_metrics_are_off_by_default(engine: Engine) -> None:
    transport = httpx.ASGITransport(app=create_app(engine=engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        response = await client.get("/metrics")
    assert response.status_code == 404
    assert "COGNIZES_METRICS=1" in response.json()["detail"]


async def test_a_scrape_has_the_samples_of_every_process_of_the_group(measured: Engine, tmp_path: Path) -> None:
    exports = [MetricsExport(measured, group=ProcessGroup(tmp_path, number)) for number in "02"]
    for export in exports:
        await export.start()
    # The second was killed and left its socket; the fourth accepts and never answers.
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "1.sock"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "3.sock"))
        silent.listen()
        samples = Samples((await exports[0].render()).decode())
    for export in exports:
        await export.close()
    up = {process: samples("cognizes_process_up", process=process) for process in "023"}
    assert up == {"0": 1, "2": 1, "3": 0}
    assert ("cognizes_process_up", (("process", "1"),)) not in samples.values
    assert samples("cognizes_listener_connected", process="2") == 1
    assert ("cognizes_database_up", ()) in samples.values, "a value of the database has no process"


async def test_names_follow_the_conventions_and_the_dashboard_uses_only_these(
    measured: Engine, client: httpx.AsyncClient
) -> None:
    session = await measured.sessions.create("shop", "ada")
    await measured.sessions.append(session, author="u", kind="message", text="x")
    samples = await scrape(client)
    for family in samples.families:
        if family.name.startswith(("process_", "python_")):
            continue
        assert family.name.startswith("cognizes_"), family.name
        assert family.documentation.endswith("."), family.name
        if family.type == "counter":
            assert {sample.name for sample in family.samples} <= {f"{family.name}_total"}, family.name
        assert not family.name.endswith(("_ms", "_milliseconds", "_kb")), family.name
    exposed = {family.name for family in samples.families}
    exposed |= {f"{family.name}_total" for family in samples.families if family.type == "counter"}
    exposed |= {
        f"{family.name}_{part}"
        for family in samples.families
        if family.type == "histogram"
        for part in ("bucket", "count", "sum")
    }
    used = _metrics_of(json.loads(DASHBOARD.read_text()))
    assert len(used) > 20
    assert used - exposed - {"cognizes_embedding_queue_texts"} == set(), "the dashboard names metrics that do not exist"


def _metrics_of(node: object) -> set[str]:
    """Return the names of metrics in the queries of a dashboard."""
    if isinstance(node, dict):
        found = {name for child in node.values() for name in _metrics_of(child)}
        for key in ("expr", "query", "definition"):
            if isinstance(text := node.get(key), str):
                found |= set(re.findall(r"\b(?:cognizes|process)_[a-z_]+\b", text))
        return found
    return {name for child in node for name in _metrics_of(child)} if isinstance(node, list) else set()
