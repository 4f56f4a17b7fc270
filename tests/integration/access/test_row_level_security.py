"""Row level security: what a request of a tenant asks the database for is held back there too, whatever it forgot."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cognizes.engine import DatabaseError, Engine, EngineError, NotFoundError
from cognizes.engine.concurrency import create_shared_task
from cognizes.engine.database import Database
from cognizes.engine.database.queries import Queries, quote_schema
from cognizes.engine.database.tenancy import (
    acting_as_engine,
    acting_for,
    as_tenant_statement,
    current_apps,
    serving_request,
)
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.models import Event
from tests.engine_parts import database_of


@pytest.fixture
async def two_tenants(database_url: str) -> AsyncIterator[Engine]:
    """An engine with authentication, and rows of the apps a and b in most tables."""
    async with Engine.open(database_url, auth="required", pool_size=2, snapshot_every=1) as engine:
        assert database_of(engine).has_row_level_security
        for app in ("a", "b"):
            session = await engine.sessions.create(app, "u", state={"k": 1, "user:k": 1, "app:k": 1})
            await engine.sessions.append(session, author="user", kind="user_message", text=f"of {app}")
            async with engine.runs.start(session):
                pass
        yield engine


@asynccontextmanager
async def tenant_connections(engine: Engine) -> AsyncIterator[list[Any]]:
    """All connections that serve requests of tenants."""
    async with AsyncExitStack() as acquired:
        yield [
            await acquired.enter_async_context(database_of(engine).connection(for_tenants=True))
            for _ in range(engine.settings.pool_size)
        ]


def ask(engine: Engine, sql: str) -> str:
    """Add a query without a filter, under its own text."""
    database_of(engine).queries[sql] = sql
    return sql


async def test_every_table_with_an_app_name_is_behind_the_wall(two_tenants: Engine) -> None:
    rows = await database_of(two_tenants).pool.fetch(
        "SELECT c.relname, c.relrowsecurity, c.relforcerowsecurity FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'app_name'"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'"
    )
    assert {"threads", "events", "messages", "runs", "snapshots", "user_states", "app_states"} <= {
        row["relname"] for row in rows
    }
    assert [row["relname"] for row in rows if not (row["relrowsecurity"] and row["relforcerowsecurity"])] == []


async def test_a_query_without_a_filter_returns_nothing_of_others(two_tenants: Engine) -> None:
    names = await database_of(two_tenants).pool.fetch(
        "SELECT attrelid::regclass::text AS name FROM pg_attribute"
        " WHERE attname = 'app_name' AND attrelid IN (SELECT oid FROM pg_class WHERE relkind = 'r')"
    )
    seen = set()
    for (name,) in names:
        everything = await database_of(two_tenants).pool.fetch(f"SELECT app_name FROM {name}")
        with acting_for(["a"]):
            found = await database_of(two_tenants).fetch(ask(two_tenants, f"SELECT app_name FROM {name}"))
        assert {row["app_name"] for row in found} <= {"a"}
        assert len(found) == sum(row["app_name"] == "a" for row in everything)
        if any(row["app_name"] == "b" for row in everything):
            seen.add(name)
    assert {"threads", "events", "messages", "runs", "user_states", "app_states", "state_writes"} <= seen


async def test_a_key_for_two_apps_sees_both_and_one_for_none_sees_nothing(two_tenants: Engine) -> None:
    query = ask(two_tenants, "SELECT DISTINCT app_name FROM events ORDER BY app_name")
    for apps in (["a", "b"], [], ['a", "b'], ["{a,b}"], ["a' OR true"], ["*"]):
        with acting_for(apps):
            found = [row["app_name"] for row in await database_of(two_tenants).fetch(query)]
        assert found == (["a", "b"] if apps == ["a", "b"] else [])


async def test_strange_names_of_apps_are_names(two_tenants: Engine) -> None:
    for name in ['quo"te', "com,ma", "{}", "NULL", "ünï", "a\\b"]:
        await two_tenants.sessions.create(name, "u")
        with acting_for([name]):
            rows = await database_of(two_tenants).fetch(ask(two_tenants, "SELECT app_name FROM threads"))
        assert [row["app_name"] for row in rows] == [name]


async def test_rows_of_others_cannot_be_written(two_tenants: Engine) -> None:
    with acting_for(["a"]), pytest.raises(DatabaseError):
        await database_of(two_tenants).fetch_value(
            ask(two_tenants, "INSERT INTO threads (app_name, user_id) VALUES ('b', 'u') RETURNING id")
        )
    for statement in ("UPDATE threads SET title = 'mine' RETURNING app_name", "DELETE FROM threads RETURNING app_name"):
        with acting_for(["a"]):
            changed = await database_of(two_tenants).fetch(ask(two_tenants, statement))
        assert {row["app_name"] for row in changed} == {"a"}
    left = await database_of(two_tenants).pool.fetch("SELECT app_name, title FROM threads")
    assert [(row["app_name"], row["title"]) for row in left] == [("b", None)]


async def test_functions_are_held_back_too(two_tenants: Engine) -> None:
    thread = await database_of(two_tenants).pool.fetchval("SELECT id FROM threads WHERE app_name = 'b'")
    with acting_for(["a"]):
        assert await database_of(two_tenants).fetch("adk_list_sessions", "b", None) == []
        with pytest.raises(NotFoundError):
            await database_of(two_tenants).fetch_value(
                *("create_run", thread, "mine", "running", None, "null", 1, None, "w", timedelta(1), "e", "{}"),
                *("", 0, None),
            )
        with pytest.raises(NotFoundError):
            await two_tenants.sessions.store.get_thread(thread)
    assert await database_of(two_tenants).pool.fetchval("SELECT count(*) FROM runs WHERE id = 'mine'") == 0


async def test_nothing_stays_behind_on_a_connection(two_tenants: Engine) -> None:
    database = database_of(two_tenants)
    with acting_for(["a"]):
        assert await database.fetch("list_open_streams", []) == []
        await database.fetch_value(ask(two_tenants, "DELETE FROM threads WHERE false RETURNING id"))
    async with tenant_connections(two_tenants) as held:
        for connection in held:
            assert not await connection.fetchval("SELECT current_setting('cognizes.apps', true)")
            assert await connection.fetchval("SELECT count(*) FROM threads") == 0


async def test_two_tenants_on_two_connections_never_mix(two_tenants: Engine) -> None:
    query = ask(two_tenants, "SELECT app_name FROM events")

    async def look(app: str) -> set[str]:
        with acting_for([app]):
            return {row["app_name"] for row in await database_of(two_tenants).fetch(query)}

    asked = ["a", "b"] * 100
    assert await asyncio.gather(*map(look, asked)) == [{app} for app in asked]


async def test_one_question_is_one_round_trip(two_tenants: Engine) -> None:
    warming_up = [_look(two_tenants) for _ in range(4 * two_tenants.settings.pool_size)]
    await asyncio.gather(*warming_up)  # asyncpg reads the types once for each connection
    sent = await _sent_by_tenants(two_tenants)
    await _look(two_tenants)
    assert len(sent) == 1


async def _look(engine: Engine) -> None:
    with acting_for(["a"]):
        await database_of(engine).fetch("list_open_streams", [])


async def test_consecutive_reads_of_several_tenants_reuse_a_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine.open(database_url, auth="required", pool_size=4) as engine:
        for app in ("a", "b"):
            await engine.sessions.create(app, "u")
        database = database_of(engine)
        query = ask(engine, "SELECT app_name FROM threads")
        tenants = database.tenant_connections
        assert tenants is not None
        tenants.reuse_seconds = 3600
        acquired: list[object] = []
        acquire = asyncpg.Pool.acquire

        def count(pool: asyncpg.Pool, **options: float) -> object:
            acquired.append(pool)
            return acquire(pool, **options)

        monkeypatch.setattr(asyncpg.Pool, "acquire", count)
        for app in ("a", "b", "a"):
            with acting_for([app]):
                assert [row["app_name"] for row in await database.fetch(query)] == [app]
        readers = [_read_apps(database, query, app) for app in ("a", "b") * 10]
        assert await asyncio.gather(*readers) == [[[app]] * 5 for app in ("a", "b") * 10]
        assert [pool for pool in acquired if pool is tenants.pool] == [tenants.pool] * 2


async def _read_apps(database: Database, query: str, app: str) -> list[list[str]]:
    with acting_for([app]):
        return [[row["app_name"] for row in await database.fetch(query)] for _ in range(5)]


async def test_without_authentication_there_is_no_wall_to_pay_for(engine: Engine) -> None:
    assert not database_of(engine).has_row_level_security


async def test_a_task_of_a_request_has_its_tenant_and_a_shared_task_engine_privileges() -> None:
    """A batch or a loop that one tenant starts serves all of them."""
    with acting_for(["a"]):
        assert current_apps() == ("a",)
        assert await asyncio.create_task(_apps()) == ("a",)
        assert await create_shared_task(_apps(), name="shared") is None
    assert current_apps() is None


async def test_a_database_call_of_a_request_without_a_tenant_is_an_error(two_tenants: Engine) -> None:
    with serving_request():
        with pytest.raises(RuntimeError, match="without a tenant"):
            await database_of(two_tenants).fetch_value("ping")
        with pytest.raises(RuntimeError, match="without a tenant"):
            await asyncio.gather(database_of(two_tenants).fetch_value("ping"))
        with acting_as_engine():
            assert await database_of(two_tenants).fetch_value("ping") is not None
        assert await database_of(two_tenants).without_tenants().fetch_value("ping") is not None
    assert await database_of(two_tenants).fetch_value("ping") is not None


async def _apps() -> tuple[str, ...] | None:
    return current_apps()


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


NOT_FOR_TENANTS = ["api_keys", "access_tickets", "maintenance_jobs", "run_queues", "schema_migrations"]


async def _explain(connection: Any, name: str, sql: str) -> str:
    await connection.execute(f"PREPARE {name} AS {sql}")
    arguments = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", sql))))
    explained: str = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name} ({arguments})")
    return explained


async def test_no_scan_of_any_query_can_start_before_the_apps_are_named(two_tenants: Engine) -> None:
    """The plan of every named query: a nested loop whose outer side is `enter_tenant` alone, all else inside."""
    queries = Queries("public")
    looked_at = 0
    async with database_of(two_tenants).connection(for_tenants=True) as connection, connection.transaction():
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        for name in sorted(queries):
            sql = as_tenant_statement(queries[name], quote_schema("public"))
            if sql is None or " cron." in sql:
                continue
            try:
                async with connection.transaction():
                    explained = await _explain(connection, name, sql)
            except asyncpg.InsufficientPrivilegeError:
                assert any(table in sql for table in NOT_FOR_TENANTS), name
                continue
            plan = json.loads(explained)[0]["Plan"]
            assert plan["Node Type"] == "Nested Loop", name
            children = {child["Parent Relationship"]: child for child in plan["Plans"]}
            assert children["Outer"].get("Function Name") == "enter_tenant", name
            assert set(children) == {"Outer", "Inner"}, name
            assert len(list(_nodes(children["Outer"]))) == 1, name
            for node in _nodes(children["Inner"]):
                assert node.get("Function Name") != "enter_tenant"
            looked_at += 1
    assert looked_at > 50


def _said(text: str = "mine") -> Event:
    return Event(id="", thread_id="", invocation_id="", author="user", event_type="message", content={"text": text})


async def _threads(engine: Engine) -> dict[str, UUID]:
    rows = await database_of(engine).pool.fetch("SELECT app_name, id FROM threads ORDER BY created_at DESC")
    return {row["app_name"]: row["id"] for row in rows}


async def test_batched_appends_are_held_back_too(two_tenants: Engine) -> None:
    threads = await _threads(two_tenants)
    with acting_for(["a"]):
        assert await two_tenants.sessions.append_to_thread(threads["a"], _said())
        with pytest.raises(NotFoundError):
            await two_tenants.sessions.append_to_thread(threads["b"], _said())
    rows = await database_of(two_tenants).pool.fetch("SELECT app_name FROM events WHERE content->>'text' = 'mine'")
    assert [row["app_name"] for row in rows] == ["a"]


async def test_created_sessions_are_held_back_too(two_tenants: Engine) -> None:
    with acting_for(["a"]):
        await two_tenants.sessions.create("a", "new", state={"k": 1, "user:k": 1, "app:k": 2})
        with pytest.raises(EngineError):
            await two_tenants.sessions.create("b", "new", state={"app:k": 2})
    rows = await database_of(two_tenants).pool.fetch("SELECT app_name FROM threads WHERE user_id = 'new'")
    assert [row["app_name"] for row in rows] == ["a"]
    assert (
        await database_of(two_tenants).pool.fetchval("SELECT state->>'k' FROM app_states WHERE app_name = 'b'") == "1"
    )


async def test_batches_of_many_tenants_never_mix(two_tenants: Engine) -> None:
    """Each writes to its own thread and to the other's, all at once, among writes of the engine itself."""
    threads = await _threads(two_tenants)
    append = two_tenants.sessions.append_to_thread
    other = {"a": "b", "b": "a"}

    async def write(app: str, number: int) -> None:
        with acting_for([app]):
            await append(threads[app], _said(f"{app}{number}"))
            with pytest.raises(NotFoundError):
                await append(threads[other[app]], _said(f"of {app}"))
            await two_tenants.sessions.create(app, "many")
            with pytest.raises(EngineError):
                await two_tenants.sessions.create(other[app], "many")
        await append(threads[app], _said(f"engine{number}"))

    await asyncio.gather(*(write(app, number) for number in range(20) for app in ("a", "b")))
    for app in ("a", "b"):
        rows = await database_of(two_tenants).pool.fetch(
            "SELECT content->>'text' AS text FROM events WHERE app_name = $1 AND event_type = 'message'", app
        )
        expected = sorted([f"{app}{n}" for n in range(20)] + [f"engine{n}" for n in range(20)])
        assert sorted(row["text"] for row in rows) == expected
    created = await database_of(two_tenants).pool.fetch(
        "SELECT app_name, count(*) AS n FROM threads WHERE user_id = 'many' GROUP BY app_name ORDER BY app_name"
    )
    assert [tuple(row) for row in created] == [("a", 20), ("b", 20)]


async def test_a_batched_append_is_one_round_trip(two_tenants: Engine) -> None:
    threads = await _threads(two_tenants)
    sent = await _sent_by_tenants(two_tenants)
    with acting_for(["a"]):
        await two_tenants.sessions.append_to_thread(threads["a"], _said())
    # asyncpg asks for types once for each connection.
    assert [sql for sql in sent if "pg_catalog" not in sql] == [
        database_of(two_tenants).tenant_statement("append_event")
    ]


async def _sent_by_tenants(engine: Engine) -> list[str]:
    """Return a list that receives every statement that tenants send from now on."""
    sent: list[str] = []
    async with tenant_connections(engine) as held:
        for connection in held:
            connection.add_query_logger(lambda record: sent.append(record.query))
    return sent


async def test_recall_asks_everything_behind_the_wall(two_tenants: Engine) -> None:
    await two_tenants.memory.remember(MemoryScope("a", "u"), [Remembered("one", "the secret of a")])
    sent = await _sent_by_tenants(two_tenants)
    with acting_for(["a"]):
        assert len(await two_tenants.memory.recall("secret", app="a", user="u")) == 1
    for query in ("recall_by_words", "read_memory_neighbours", "read_memories"):
        assert database_of(two_tenants).tenant_statement(query) in sent


async def test_recall_is_held_back_too(two_tenants: Engine) -> None:
    for app in ("a", "b"):
        await two_tenants.memory.remember(MemoryScope(app, "u"), [Remembered("one", f"the secret of {app}")])
    for acting, asked, found in [("a", "a", 1), ("a", "b", 0), ("b", "a", 0)]:
        with acting_for([acting]):
            assert len(await two_tenants.memory.recall("secret", app=asked, user="u")) == found
    assert len(await two_tenants.memory.recall("secret", app="b", user="u")) == 1


async def test_following_a_foreign_thread_is_refused_while_its_owner_follows_it(two_tenants: Engine) -> None:
    threads = await _threads(two_tenants)
    async with aclosing(two_tenants.feed.events(threads["b"])) as engines, asyncio.timeout(60):
        assert (await anext(engines)).sequence_num == 1
        with acting_for(["a"]):
            async with aclosing(two_tenants.feed.events(threads["b"])) as strangers:
                with pytest.raises(NotFoundError):
                    await anext(strangers)
            async with aclosing(two_tenants.feed.events(threads["a"])) as own:
                assert (await anext(own)).sequence_num == 1


async def test_a_task_keeps_the_tenant_with_which_it_was_started() -> None:
    with acting_for(["a"]):
        task = asyncio.create_task(_apps_twice())
    assert await task == (("a",), ("a",))
    assert await asyncio.create_task(_apps_twice()) == (None, None)


async def _apps_twice() -> tuple[Any, Any]:
    before = current_apps()
    await asyncio.sleep(0)
    return before, current_apps()
