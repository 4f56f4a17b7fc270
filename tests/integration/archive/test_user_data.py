"""Export and erasure of one user: every table, and nothing of any other user."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pydantic_ai import Conversation, ModelRequest, UserPromptPart
from redis.asyncio import Redis

from cognizes.engine import Engine, EngineError, NotFoundError, Settings
from cognizes.engine.adapters.langgraph import OpenCheckpointSaver, OpenStore
from cognizes.engine.adapters.pydantic_ai import OpenConversationStore
from cognizes.engine.database.maintenance import jobs
from cognizes.engine.memory.records import MemoryScope, Remembered
from tests.integration.adapters.langgraph.graphs import two_nodes
from tests.integration.archive.filled import (
    WORD,
    fill_access,
    fill_artifacts,
    fill_memory,
    fill_schedules,
    fill_session,
    fill_streams,
    fill_webhooks,
    rows_with,
)
from tests.integration.runs.conditions import until
from tests.integration.streams.redis_server import RedisServer

NOT_FILLED = {
    "memory_vectors": "vectors of the background task",
}
"""Tables of users that the test leaves empty. They hold numbers."""
WITHOUT_WORDS = {
    "agent_episodes_due": "ids of runs",
    "branch_segments": "names of branches",
    "branches": "names of branches",
    "graph_item_vectors": "names of models, and vectors",
    "graph_namespaces": "ids of threads",
    "conversation_records": "ids of entries, which hold the messages",
    "hidden_events": "ranges of sequence numbers",
    "memory_consolidations": "sequence numbers",
    "memory_deletions": "digests of sources",
    "memory_embedding_queue": "ids of memories",
    "memory_scopes": "counters of words",
    "message_counts": "counters",
    "message_streams": "ids of messages, and lengths of chunks",
    "schedule_firings": "ids of runs, and times",
}
"""Tables of users with columns for texts into which the words of a user do not come."""
ERASED_BY_NAME = {
    "access_tickets": "deleted by user and apps",
    "api_keys": "deleted by user and apps",
    "artifact_blobs": "deleted when no artifact refers to them",
    "audit_log": "names become a pseudonym",
    "conversation_entries": "deleted with the last conversation that contains them, by a trigger",
}
"""Tables that `erase_user` and the artifacts handle themselves."""
WITHOUT_USERS = {
    "app_states": "the state of an app belongs to the app",
    "maintenance_jobs": "times of jobs",
    "run_queues": "limits of an operator",
    "schema_migrations": "names of scripts",
    "shared_buckets": "digests of callers, for seconds",
    "shared_streams": "digests of callers, for seconds",
    "webhook_secrets": "keys of an operator",
    "webhooks": "URLs of an operator",
}


async def test_every_table_is_erased_or_holds_nothing_of_users(database_url: str) -> None:
    """A new table fails here until it is found by `user_tables`, or named above with a reason."""
    connection = await asyncpg.connect(database_url)
    tables = {
        row[0]
        for row in await connection.fetch(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
        )
    }
    found = {row["name"] for row in await connection.fetch("SELECT name FROM user_tables()")}
    await connection.close()
    assert not found & (ERASED_BY_NAME.keys() | WITHOUT_USERS.keys())
    assert tables == found | ERASED_BY_NAME.keys() | WITHOUT_USERS.keys()


async def test_a_new_table_of_users_is_found_exported_and_erased(quiet_engine: Engine, database_url: str) -> None:
    """By its columns, or by its foreign key to such a table."""
    ada = await quiet_engine.sessions.create("shop", "ada")
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "CREATE TABLE notes (id bigint PRIMARY KEY, app_name text, user_id text, note text);"
        "CREATE TABLE note_parts (note_id bigint REFERENCES notes (id) ON DELETE CASCADE, part text);"
        "CREATE TABLE note_lines (part bytea, note_id bigint REFERENCES notes ON DELETE CASCADE);"
        "CREATE TABLE marks (app_name text, thread_id uuid, mark text);"
        "INSERT INTO notes VALUES (1, 'shop', 'ada', 'quokka'), (2, 'shop', 'bob', 'wombat');"
        "INSERT INTO note_parts VALUES (1, 'quokka'), (2, 'wombat');"
        "INSERT INTO note_lines VALUES ('quokka', 1), ('wombat', 2);"
    )
    await connection.execute("INSERT INTO marks VALUES ('shop', $1::uuid, 'quokka')", ada.thread_id)
    _, rows = await export(quiet_engine, "shop", "ada")
    new = {"notes", "note_parts", "note_lines", "marks"}
    assert {line["table"] for line in rows} >= new
    assert "wombat" not in json.dumps(rows)
    counts = await quiet_engine.user_data.erase("shop", "ada")
    assert {name: counts[name] for name in new} == dict.fromkeys(new, 1)
    assert await rows_with(connection, "quokka") == {}
    assert await rows_with(connection, "wombat") == {"notes": 1, "note_parts": 1, "note_lines": 1}
    await connection.close()


async def test_an_erased_user_leaves_no_word_in_redis(database_url: str, redis_server: RedisServer) -> None:
    async with Engine.open(database_url, redis_url=redis_server.url, memory_background=False) as engine:
        session = await engine.sessions.create("shop", "ada")
        redis = Redis.from_url(redis_server.url)

        async def found() -> list[bytes]:
            keys = [key async for key in redis.scan_iter() if str(session.thread_id).encode() in key]
            return [key for key in keys if WORD.encode() in repr(await redis.dump(key)).encode()] or keys

        message = engine.stream_message(session)
        await message.__aenter__()
        await message.write(f"The {WORD} sleeps.")
        await until(found)
        await engine.user_data.erase("shop", "ada")
        with pytest.raises(EngineError):
            await message.__aexit__(None, None, None)
        assert await found() == []
        await redis.aclose()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer.on_socket() as server:
        yield server


@pytest.fixture
async def quiet_engine(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    settings = {
        "memory_background": False,
        "artifact_store": str(tmp_path),
        "artifact_database_bytes": 2000,
        "webhook_networks": "127.0.0.1",
    }
    async with Engine.open(database_url, **settings) as engine:
        yield engine


async def export(engine: Engine, app: str, user: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header, *rows = [json.loads(line) async for line in engine.user_data.export(app, user)]
    return header, rows


async def test_an_erased_user_leaves_no_word_in_any_table_or_file(
    quiet_engine: Engine, database_url: str, tmp_path: Path
) -> None:
    engine = quiet_engine
    ada = await fill_session(engine, "shop", "ada-lovelace")
    await fill_memory(engine, ada)
    await fill_access(engine, ada)
    await fill_artifacts(engine, ada)
    await fill_schedules(engine, ada)
    await fill_webhooks(engine, ada)
    await fill_streams(engine, ada)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()]
    async with OpenCheckpointSaver(app_name="shop", engine=engine) as saver:
        graph = two_nodes().compile(checkpointer=saver)
        config = {"configurable": {"thread_id": ada.thread_id}, "metadata": {"about": WORD}}
        await graph.ainvoke({"log": [WORD]}, config)
    async with OpenStore(app_name="shop", engine=engine) as store:
        await store.aput(("users", "ada-lovelace", "notes"), "animal", {"text": WORD})
        await store.aput(("users", "bob"), "animal", {"text": "wombat"})
        await store.aput(("animals",), "list", {"text": "wombat"})
    async with OpenConversationStore(app_name="shop", engine=engine) as conversations:
        message = ModelRequest(parts=[UserPromptPart(WORD)])
        await conversations.save(Conversation(conversation_id="c", messages=[message]), scope="ada-lovelace")
    bob = await fill_session(engine, "shop", "bob", word="wombat")
    await fill_memory(engine, bob, word="wombat")
    other = await fill_session(engine, "library", "ada-lovelace", word="numbat")
    connection = await asyncpg.connect(database_url)
    tables = {row["name"] for row in await connection.fetch("SELECT name FROM user_tables()")}
    written = await rows_with(connection, WORD)
    texts = await tables_with_texts(connection)
    missing = (texts & tables) - written.keys()
    assert missing == (WITHOUT_WORDS.keys() | NOT_FILLED.keys()) & texts, "fill a new table with the word of the user"
    before_bob, before_other = await rows_with(connection, "wombat"), await rows_with(connection, "numbat")

    header, exported = await export(engine, "shop", "ada-lovelace")
    assert (header["format"], header["version"], header["user_id"]) == ("cognizes-user", 1, "ada-lovelace")
    filled = {line["table"] for line in exported} - {"audit_log", "artifact_blobs", "conversation_entries"}
    assert filled == tables - NOT_FILLED.keys(), "a table with user data is not filled here, or not exported"
    assert sum(line["table"] == "audit_log" for line in exported) == 2

    counts = await engine.user_data.erase("shop", "ada-lovelace")
    assert counts.keys() == filled | {"access_tickets", "api_keys", "audit_log"}
    assert counts["threads"] == 2, "the session, and that of a scheduled run"
    assert counts["events"] == ada.last_sequence + 1
    assert await rows_with(connection, WORD) == {}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()]
    assert await rows_with(connection, str(ada.thread_id)) == {}
    left = await rows_with(connection, "ada-lovelace")
    assert left == {**await rows_of_app(connection, "library", "ada-lovelace"), "audit_log": 1}
    assert (await rows_with(connection, "wombat"), await rows_with(connection, "numbat")) == (before_bob, before_other)
    audit = await connection.fetch("SELECT actor, target FROM audit_log ORDER BY created_at")
    pseudonym = audit[0]["actor"]
    assert pseudonym.startswith("erased-")
    assert [tuple(row) for row in audit] == [
        (pseudonym, "/api/memory/facts"),
        (pseudonym, f"/api/sessions/{pseudonym}"),
        ("key:admin", f"/api/users/{pseudonym}/x"),
        ("anyone", f"/api/sessions/{pseudonym}"),
        ("anyone", "/apps/bank/users/ada-lovelace"),  # a user of another app
    ]
    with pytest.raises(NotFoundError, match="no data of a user 'ada-lovelace'"):
        await export(engine, "shop", "ada-lovelace")
    assert (await engine.sessions.get("library", "ada-lovelace", other.id)) is not None
    await connection.close()


async def tables_with_texts(connection: asyncpg.Connection) -> set[str]:
    """Return the tables that have a column for texts, documents or bytes."""
    rows = await connection.fetch(
        "SELECT DISTINCT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT a.attisdropped"
        "   AND a.atttypid::regtype::text IN ('text', 'text[]', 'json', 'jsonb', 'bytea', 'tsvector')"
        "   AND a.attname NOT IN ('app_name', 'user_id')"
    )
    return {row[0] for row in rows}


async def rows_of_app(connection: asyncpg.Connection, app: str, text: str) -> dict[str, int]:
    found = {}
    for table in await rows_with(connection, text):
        found[table] = await connection.fetchval(
            f'SELECT count(*) FROM "{table}" r WHERE app_name = $1 AND strpos(r::text, $2) > 0', app, text
        )
    return found


async def test_a_writer_that_read_a_session_before_the_erasure_stores_nothing(quiet_engine: Engine) -> None:
    engine = quiet_engine
    ada = await fill_session(engine, "shop", "ada")
    await fill_memory(engine, ada)
    await engine.user_data.erase("shop", "ada")
    turns = [Remembered(source_id="e", text=WORD, session_id=ada.id)]
    assert await engine.memory.remember_turns(MemoryScope("shop", "ada"), turns) == 0
    with pytest.raises(NotFoundError):
        await export(engine, "shop", "ada")


async def test_a_user_who_returns_is_remembered_again(quiet_engine: Engine) -> None:
    engine = quiet_engine
    ada = await fill_session(engine, "shop", "ada")
    await engine.user_data.erase("shop", "ada")
    again = await engine.sessions.create("shop", "ada", session_id=ada.id)
    await engine.sessions.append(again, author="user", kind="user_message", text="hello again")
    assert await engine.memory.remember_session(again) == 1


async def test_an_unknown_user_or_app_changes_nothing(quiet_engine: Engine) -> None:
    await quiet_engine.sessions.create("shop", "ada")
    for app, user in (("shop", "eve"), ("nothing", "ada")):
        with pytest.raises(NotFoundError, match=f"the app '{app}' has no data of a user '{user}'"):
            await quiet_engine.user_data.erase(app, user)
    assert (await quiet_engine.sessions.list("shop")).items


async def test_idle_threads_are_deleted_by_the_rule_of_their_app(database_url: str) -> None:
    (job,) = [job for job in jobs(Settings(threads_kept_days="shop=30, *=365")) if job.name == "prune_threads"]
    rules = job.arguments[0]
    async with Engine.open(database_url) as engine:
        made = {}
        for app, days in (("shop", 31), ("shop", 29), ("other", 31), ("other", 366)):
            made[app, days] = await engine.sessions.create(app, "ada")
        waiting = await fill_session(engine, "shop", "waits")
        connection = await asyncpg.connect(database_url)
        for (_, days), session in [*made.items(), (("", 100), waiting)]:
            await connection.execute(
                "UPDATE threads SET updated_at = now() - make_interval(days => $2) WHERE id = $1::uuid",
                session.thread_id,
                days,
            )
        await connection.fetchval("SELECT prune_threads($1, 1000)", rules)
        await connection.close()
        left = {session.thread_id for app in ("shop", "other") for session in (await engine.sessions.list(app)).items}
        assert left == {made["shop", 29].thread_id, made["other", 31].thread_id, waiting.thread_id}
