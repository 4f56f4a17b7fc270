"""The schema of seed 000 §3 and §6.3, on the embedded server."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import asyncpg
import pytest

from cognizes.engine import Engine, SetupError
from cognizes.engine.database.embedded import binaries
from cognizes.engine.database.migrations import whole_schema
from cognizes.engine.database.queries import Queries, quote_schema

TABLES = ["threads", "events", "runs", "messages", "snapshots", "user_states", "app_states"]


async def test_the_server_is_16_or_newer_with_pgvector(engine: Engine) -> None:
    assert await engine.database.pool.fetchval("SELECT current_setting('server_version_num')::int >= 160000")
    await engine.database.pool.execute("CREATE EXTENSION IF NOT EXISTS vector")
    assert await engine.database.pool.fetchval("SELECT '[1,2,3]'::vector <-> '[1,2,4]'::vector") == 1


@pytest.mark.parametrize("table", TABLES)
async def test_table(engine: Engine, table: str) -> None:
    assert await engine.database.pool.fetchval("SELECT to_regclass($1)::text", f"public.{table}") == table


@pytest.mark.parametrize(("trigger", "table"), [("notify_event_insert", "events"), ("update_updated_at", "threads")])
async def test_trigger(engine: Engine, trigger: str, table: str) -> None:
    found = await engine.database.pool.fetchval(
        "SELECT p.proname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE t.tgname = $1 AND t.tgrelid = $2::text::regclass",
        trigger,
        table,
    )
    assert found == trigger


async def test_indexes(engine: Engine) -> None:
    rows = await engine.database.pool.fetch("SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'")
    defined = {(row["tablename"], row["indexdef"].split(" USING ", 1)[1]) for row in rows}
    for expected in [
        ("threads", "btree (app_name, user_id, md5(session_id))"),
        ("events", "btree (thread_id, sequence_num)"),
        ("runs", "btree (thread_id, id)"),
        ("runs", "btree (status, created_at)"),
        ("messages", "btree (thread_id, sequence_num)"),
        ("snapshots", "btree (thread_id, version)"),
        ("user_states", "gin (state jsonb_path_ops)"),
        ("app_states", "gin (state jsonb_path_ops)"),
    ]:
        assert expected in defined


async def test_the_embedding_column_has_the_configured_dimension(empty_database_url: str) -> None:
    async with Engine.open(empty_database_url, embedding_dimension=1536) as engine:
        column = await engine.database.pool.fetchval(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'messages'::regclass AND attname = 'embedding'"
        )
    assert column == "vector(1536)"


def test_agent_schema_is_what_the_migrations_make() -> None:
    stored = files("cognizes.engine.schema").joinpath("agent_schema.sql").read_text(encoding="utf-8")
    assert stored == whole_schema(), "run: cognizes migrate --sql > src/cognizes/engine/schema/agent_schema.sql"


def test_every_query_has_a_purpose_and_a_name() -> None:
    queries = Queries("public")
    assert 'FROM "public".events' in queries["read_events"]
    assert "{schema}" not in "".join(queries[name] for name in queries.names())


async def test_psql_deploys_the_schema_twice_and_the_engine_agrees(empty_database_url: str) -> None:
    script = Path(str(files("cognizes.engine.schema").joinpath("agent_schema.sql")))
    for _ in range(2):
        subprocess.run(
            [str(binaries() / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script), empty_database_url],
            check=True, capture_output=True,
        )  # fmt: skip
    async with Engine.open(empty_database_url) as engine:
        assert await engine.migrate() == []
        session = await engine.sessions.create("app", "user")
        await engine.sessions.append(session, author="user", kind="message", text="hi", state={"a": 1})


async def test_two_schemas_in_one_database(empty_database_url: str) -> None:
    async with (
        Engine.open(empty_database_url, db_schema="one") as one,
        Engine.open(empty_database_url, db_schema="Two-2") as two,
    ):
        session = await one.sessions.create("app", "user", session_id="s", state={"app:k": 1})
        await one.sessions.append(session, author="user", kind="user_message", text="hi", state={"a": 1})
        assert await two.sessions.get("app", "user", "s") is None
        assert (await two.sessions.create("app", "user", session_id="s")).state == {}
        assert (await one.sessions.at(session, sequence=1)).state == {"a": 1, "app:k": 1}
    connection = await asyncpg.connect(empty_database_url)
    assert await connection.fetchval("SELECT to_regclass('public.threads')") is None
    await connection.close()


@pytest.mark.parametrize("name", ["", "a b", 'x"; DROP', "1abc", "é", "a" * 64])
def test_a_schema_name_that_needs_guessing_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match="COGNIZES_DB_SCHEMA"):
        quote_schema(name)


async def test_hot_queries_use_their_indexes(engine: Engine) -> None:
    """A sequential scan in one of these would make cost grow with the number of threads or events."""
    pool = engine.database.pool
    await pool.execute(
        "INSERT INTO threads (app_name, user_id) SELECT 'a', 'u' || n FROM generate_series(1, 5000) n;"
        "INSERT INTO events (thread_id, sequence_num, app_name, author, event_type, version) "
        "SELECT (SELECT id FROM threads LIMIT 1), n, 'a', 'u', 'm', 1 FROM generate_series(1, 5000) n;"
        "ANALYZE threads; ANALYZE events"
    )
    # Of many sessions of one user none is known to the planner yet; one of them must still be found by its own key.
    await pool.execute("INSERT INTO threads (app_name, user_id) SELECT 'a', 'many' FROM generate_series(1, 5000)")
    found = await pool.fetch(f"EXPLAIN {engine.database.queries['read_session']}", "a", "many", "x")
    assert "md5(session_id) =" in "\n".join(row[0] for row in found).split("Index Cond:")[1].split("\n")[0]
    thread = await pool.fetchval("SELECT thread_id FROM events LIMIT 1")
    for query, arguments in {
        "read_session": ("a", "u7", "x"),
        "read_thread": (thread,),
        "find_thread": ("a", "u7", "x"),
        "read_events": (thread, 4000, 100, 1000),
        "read_recent_events": (thread, 5000, 20, 1000),
        "read_event": (thread, "x"),
        "read_messages": (thread, 0, 10, 10, 1000),
        "read_state_history": (thread, 0, 10, 1000),
        "list_sessions": ("a", "u7", None, None, True, 10, 1000),
    }.items():
        plan = await pool.fetch(f"EXPLAIN {engine.database.queries[query]}", *arguments)
        text = "\n".join(row[0] for row in plan)
        assert "Seq Scan on threads" not in text, (query, text)
        assert "Seq Scan on events" not in text, (query, text)
