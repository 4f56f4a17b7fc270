"""The schema of seed 000 §3 and §6.3, on the embedded server."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from cognizes.engine import Engine, SetupError
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import binaries
from cognizes.engine.database.migrations import whole_schema
from cognizes.engine.database.queries import Queries, quote_schema
from tests.engine_parts import database_of

TABLES = ["threads", "events", "runs", "messages", "snapshots", "user_states", "app_states"]


async def test_the_server_is_16_or_newer_with_pgvector(engine: Engine) -> None:
    assert await database_of(engine).pool.fetchval("SELECT current_setting('server_version_num')::int >= 160000")
    await database_of(engine).pool.execute("CREATE EXTENSION IF NOT EXISTS vector")
    assert await database_of(engine).pool.fetchval("SELECT '[1,2,3]'::vector <-> '[1,2,4]'::vector") == 1


def test_the_database_is_named_cognizes_engine(postgres_server: EmbeddedPostgres) -> None:
    """As seed 000 §4.2 types it: psql -d cognizes-engine, here with the host and user of the embedded server."""
    address = urlsplit(postgres_server.url)
    host = parse_qs(address.query)["host"][0]
    psql = [str(binaries() / "psql"), "-X", "-A", "-t", "-h", host, "-U", str(address.username)]
    done = subprocess.run(
        [*psql, "-d", "cognizes-engine", "-c", "SELECT current_database()"], check=True, capture_output=True, text=True
    )
    assert done.stdout == "cognizes-engine\n"
    assert address.path == "/cognizes-engine"


# Columns of seed 000 §3.1. Where the type differs: `text` for `varchar` and for ids that are the caller's (not only
# UUIDs), `bigint` for `integer`, `json` where key order and NUL characters must come back as they were stored.
COLUMNS = {
    "threads": "id uuid!, app_name text!, user_id text!, state jsonb!, version bigint!, metadata jsonb!,"
    " created_at timestamptz!, updated_at timestamptz!",
    "events": "id text!, thread_id uuid!, invocation_id text!, author text!, event_type text!, content json!,"
    " actions json!, sequence_num bigint!, created_at timestamptz!",
    "runs": "id text!, thread_id uuid!, status text!, thinking_steps jsonb!, tool_calls jsonb!, error text,"
    " started_at timestamptz, completed_at timestamptz",
    "messages": "id text!, thread_id uuid!, event_id text!, role text!, content text!, embedding vector(256),"
    " metadata jsonb!, created_at timestamptz!",
    "snapshots": "id uuid!, thread_id uuid!, version bigint!, state jsonb!, events_summary jsonb!,"
    " created_at timestamptz!",
    "user_states": "user_id text!, app_name text!, state jsonb!, updated_at timestamptz!",
    "app_states": "app_name text!, state jsonb!, updated_at timestamptz!",
}


@pytest.mark.parametrize("table", TABLES)
async def test_table(engine: Engine, table: str) -> None:
    rows = await database_of(engine).pool.fetch(
        "SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull FROM pg_attribute"
        " WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped",
        f"public.{table}",
    )
    actual = {
        row["attname"]: row["type"].replace("timestamp with time zone", "timestamptz") + "!" * row["attnotnull"]
        for row in rows
    }
    expected = dict(column.split(" ") for column in COLUMNS[table].split(", "))
    assert {name: actual.get(name) for name in expected} == expected


CASCADE = "FOREIGN KEY (thread_id) REFERENCES threads(id) ON DELETE CASCADE"
CONSTRAINTS = {
    "threads": ["PRIMARY KEY (id)"],
    "events": ["PRIMARY KEY (thread_id, sequence_num)", CASCADE],
    "runs": ["PRIMARY KEY (thread_id, id)", CASCADE],
    "messages": ["PRIMARY KEY (thread_id, sequence_num)", CASCADE],
    "snapshots": ["PRIMARY KEY (thread_id, version)", CASCADE],
    "user_states": ["PRIMARY KEY (user_id, app_name)"],
    "app_states": ["PRIMARY KEY (app_name)"],
}


@pytest.mark.parametrize("table", TABLES)
async def test_keys(engine: Engine, table: str) -> None:
    rows = await database_of(engine).pool.fetch(
        "SELECT pg_get_constraintdef(oid) AS definition FROM pg_constraint"
        " WHERE conrelid = $1::text::regclass AND contype IN ('p', 'f')",
        table,
    )
    assert sorted(row["definition"] for row in rows) == sorted(CONSTRAINTS[table])


THREAD = "(SELECT id FROM threads WHERE user_id = 'u')"
REFUSED = {
    "two sessions of one id": "INSERT INTO threads (app_name, user_id, session_id) VALUES ('a', 'u', 's')",
    "a session of no app": "INSERT INTO threads (app_name, user_id) VALUES ('', 'u')",
    "two events of one number": "INSERT INTO events (thread_id, sequence_num, app_name, event_type, version)"
    f" VALUES ({THREAD}, 1, 'a', 'note', 1)",
    "two events of one id": f"INSERT INTO events (thread_id, id, event_type) VALUES ({THREAD}, 'e', 'note')",
    "two runs of one id": f"INSERT INTO runs (thread_id, id) VALUES ({THREAD}, 'r')",
    "a status that is none": f"INSERT INTO runs (thread_id, status) VALUES ({THREAD}, 'lost')",
    "a role that is none": "INSERT INTO messages (thread_id, event_id, role, content)"
    f" VALUES ({THREAD}, 'e', 'robot', 'x')",
    "two messages of one event": "INSERT INTO messages (thread_id, event_id, role, content)"
    f" VALUES ({THREAD}, 'e', 'user', 'x')",
    "two snapshots of one version": f"INSERT INTO snapshots (thread_id) VALUES ({THREAD})",
    "two states of one user": "INSERT INTO user_states (user_id, app_name) VALUES ('u', 'a')",
    "two states of one app": "INSERT INTO app_states (app_name) VALUES ('a')",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_constraints_refuse(engine: Engine, what: str) -> None:
    pool = database_of(engine).pool
    await pool.execute("INSERT INTO threads (app_name, user_id, session_id) VALUES ('a', 'u', 's')")
    await pool.execute(f"INSERT INTO events (thread_id, id, event_type) VALUES ({THREAD}, 'e', 'note')")
    await pool.execute(f"INSERT INTO runs (thread_id, id) VALUES ({THREAD}, 'r')")
    message = f"INSERT INTO messages (thread_id, event_id, role, content) VALUES ({THREAD}, 'e', 'user', 'x')"
    if what != "a role that is none":
        await pool.execute(message)
    await pool.execute(f"INSERT INTO snapshots (thread_id) VALUES ({THREAD})")
    await pool.execute("INSERT INTO user_states (user_id, app_name) VALUES ('u', 'a')")
    await pool.execute("INSERT INTO app_states (app_name) VALUES ('a')")
    with pytest.raises((asyncpg.UniqueViolationError, asyncpg.CheckViolationError)):
        await pool.execute(REFUSED[what])


async def test_what_belongs_to_a_thread_is_deleted_with_it_and_wider_state_is_not(engine: Engine) -> None:
    session = await engine.sessions.create("a", "u", state={"k": 1, "user:k": 1, "app:k": 1})
    await engine.sessions.append(session, author="user", kind="user_message", text="hi", state={"k": 2})
    async with engine.runs.start(session):
        pass
    await engine.sessions.snapshot(session)
    count = "SELECT " + ", ".join(f"(SELECT count(*) > 0 FROM {table}) AS {table}" for table in TABLES)
    assert set((await database_of(engine).pool.fetchrow(count)).values()) == {True}
    await engine.sessions.delete(session)
    left = dict(await database_of(engine).pool.fetchrow(count))
    assert [table for table in TABLES if left[table]] == ["user_states", "app_states"]


# What each index of seed 000 §3.1 is for: the question that it answers.
PURPOSES = {
    "idx_threads_app_user": "SELECT FROM threads WHERE app_name = 'a' AND user_id = 'u'",
    "events_pkey": f"SELECT FROM events WHERE thread_id = {THREAD} AND sequence_num > 5 ORDER BY sequence_num",
    "idx_runs_thread": f"SELECT FROM runs WHERE thread_id = {THREAD} ORDER BY created_at",
    "idx_runs_status": "SELECT FROM runs WHERE status = 'running' ORDER BY created_at",
    "messages_pkey": f"SELECT FROM messages WHERE thread_id = {THREAD} ORDER BY sequence_num",
    "snapshots_pkey": f"SELECT FROM snapshots WHERE thread_id = {THREAD} AND version = 1",
    "idx_user_states_state": """SELECT FROM user_states WHERE state @> '{"lang": "de"}'""",
    "idx_app_states_state": """SELECT FROM app_states WHERE state @> '{"theme": "dark"}'""",
}


@pytest.mark.parametrize("index", PURPOSES)
async def test_an_index_answers_its_question(engine: Engine, index: str) -> None:
    async with database_of(engine).pool.acquire() as connection:
        await connection.execute("SET enable_seqscan = off; SET enable_sort = off")
        plan = await connection.fetch(f"EXPLAIN {PURPOSES[index]}")
        await connection.execute("RESET ALL")
    assert f" {index}" in "\n".join(row[0] for row in plan)


@pytest.mark.parametrize(("trigger", "table"), [("notify_event_insert", "events"), ("update_updated_at", "threads")])
async def test_trigger(engine: Engine, trigger: str, table: str) -> None:
    found = await database_of(engine).pool.fetchval(
        "SELECT p.proname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE t.tgname = $1 AND t.tgrelid = $2::text::regclass",
        trigger,
        table,
    )
    assert found == trigger


async def test_indexes(engine: Engine) -> None:
    rows = await database_of(engine).pool.fetch(
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    )
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
        column = await database_of(engine).pool.fetchval(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'messages'::regclass AND attname = 'embedding'"
        )
    assert column == "vector(1536)"


def test_agent_schema_is_what_the_migrations_make() -> None:
    stored = files("cognizes.engine.schema").joinpath("agent_schema.sql").read_text(encoding="utf-8")
    assert stored == whole_schema(), "run: uv run python scripts/stamp_schema.py"


def test_every_query_has_a_purpose_and_a_name() -> None:
    queries = Queries("public")
    assert 'FROM "public".events' in queries["read_events"]
    assert "{schema}" not in "".join(queries.values())


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
    pool = database_of(engine).pool
    await pool.execute(
        "INSERT INTO threads (app_name, user_id) SELECT 'a', 'u' || n FROM generate_series(1, 5000) n;"
        "INSERT INTO events (thread_id, sequence_num, app_name, author, event_type, version) "
        "SELECT (SELECT id FROM threads LIMIT 1), n, 'a', 'u', 'm', 1 FROM generate_series(1, 5000) n;"
        "ANALYZE threads; ANALYZE events"
    )
    # Of many sessions of one user none is known to the planner yet; one of them must still be found by its own key.
    await pool.execute("INSERT INTO threads (app_name, user_id) SELECT 'a', 'many' FROM generate_series(1, 5000)")
    found = await pool.fetch(f"EXPLAIN {database_of(engine).queries['read_session']}", "a", "many", "x")
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
        plan = await pool.fetch(f"EXPLAIN {database_of(engine).queries[query]}", *arguments)
        text = "\n".join(row[0] for row in plan)
        assert "Seq Scan on threads" not in text, (query, text)
        assert "Seq Scan on events" not in text, (query, text)
