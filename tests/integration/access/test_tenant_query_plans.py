"""Behind row level security a question reads no more rows than it must: its index is not lost to what might leak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from cognizes.engine import Engine
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.memory.filters import Filters, Range
from cognizes.engine.memory.records import EventSource, MemoryScope, Remembered
from tests.engine_parts import database_of

ROWS = 2000
FEW = 50
THREAD = UUID(int=7)
_FILL = f"""
INSERT INTO threads (id, app_name, user_id, session_id, last_sequence) VALUES ('{THREAD}', 'a', 'u', 'known', {ROWS});
INSERT INTO threads (app_name, user_id, session_id, updated_at)
SELECT app, 'u', 's' || n, now() - n * interval '1 second'
  FROM generate_series(1, {ROWS}) n, unnest('{{a,b}}'::text[]) app;
INSERT INTO events (thread_id, sequence_num, id, app_name, author, event_type, content, actions, run_id, invocation_id,
                    version)
SELECT '{THREAD}', n, 'e' || n, 'a', 'user', 'user_message', '{{}}', '{{}}', 'r' || n / 10, '', 1
  FROM generate_series(1, {ROWS}) n;
INSERT INTO messages (thread_id, sequence_num, id, event_id, app_name, role, content)
SELECT '{THREAD}', n, 'e' || n, 'e' || n, 'a', 'user', 'x' FROM generate_series(1, {ROWS}) n;
INSERT INTO runs (thread_id, id, app_name, status)
SELECT '{THREAD}', 'r' || n, 'a', 'completed' FROM generate_series(1, {ROWS}) n;
INSERT INTO agent_long_term_memory (app_name, user_id, agent_id, namespace, key, value)
SELECT 'a', 'u', 'a', 'n', 'k' || n, '1' FROM generate_series(1, {ROWS}) n;
INSERT INTO message_streams (thread_id, message_id, app_name, role, author, status)
SELECT '{THREAD}', 'm' || n, 'a', 'assistant', 'x', 'completed' FROM generate_series(1, {ROWS}) n;
ANALYZE;
"""
_READ = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables"
_NOTHING = (None,) * 4
QUESTIONS: dict[str, tuple[Any, ...]] = {
    "find_thread": ("a", "u", "known"),
    "find_context": ("known", None, ["a"], "u"),
    "read_session": ("a", "u", "known"),
    "read_thread": (THREAD,),
    "list_sessions": ("a", "u", None, None, True, 20, 1000),
    "read_events": (THREAD, ROWS - 5, 100, 1000),
    "read_event": (THREAD, "e100"),
    "read_recent_events": (THREAD, ROWS, 5, 1000),
    "read_messages_by_id": (THREAD, ["e100"], 10, 1000),
    "read_body": (THREAD, "e100"),
    "find_stream": (THREAD, "m100"),
    "read_events_of_threads": ([THREAD], [ROWS - 5], 100, 1000, [None]),
    "read_run": (THREAD, "r100"),
    "find_runs": ("r100", ["a"], "u"),
    "find_run": ("r100", None),
    "find_thread_of_run": ("r100", ["a"], "u"),
    "get_long_term": ("a", "u", "a", "n", "k100"),
    "append_event": (
        THREAD,
        "e100",
        None,
        "",
        "u",
        "m",
        "{}",
        "{}",
        *_NOTHING,
        *(None,) * 3,
        True,
        True,
        0,
        99,
        *(None,) * 7,
    ),
}


@pytest.fixture
async def grown(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, auth="required", embedder="none") as engine:
        assert database_of(engine).has_row_level_security
        await database_of(engine).pool.execute(_FILL)
        notes = [Remembered(str(n), f"topic{n} word") for n in range(ROWS)]
        await engine.memory.remember(MemoryScope("a", "u"), notes)
        await database_of(engine).pool.execute("VACUUM ANALYZE memories")
        yield engine


async def _rows_read(connection: Any, sql: str, *arguments: Any) -> int:
    """How many rows a question has PostgreSQL look at."""
    async with connection.transaction():
        before = await connection.fetchval(_READ)
        assert await connection.fetch(sql, *arguments)
        read: int = await connection.fetchval(_READ) - before
        return read


async def test_a_question_of_a_tenant_reads_few_rows(grown: Engine) -> None:
    """As few as one of the engine itself, for which no wall stands."""
    database = database_of(grown)
    read = {}
    async with database.connection(for_tenants=True) as tenant, database.connection() as engine:
        for name, arguments in QUESTIONS.items():
            by_tenant = await _rows_read(tenant, database.tenant_statement(name), *arguments, ["a"])
            by_engine = await _rows_read(engine, database.queries[name], *arguments)
            read[name] = by_tenant, by_engine
    assert {name: both for name, both in read.items() if both[0] > both[1] + FEW} == {}
    assert len([name for name, both in read.items() if both[0] <= FEW]) >= len(read) - 1


async def test_filters_and_sources_of_a_tenant_read_few_rows(grown: Engine) -> None:
    database = database_of(grown)
    others = [
        Remembered(str(n), f"note {n}", tags=[f"tag{n}"], metadata={"n": n}, sources=[EventSource("s", f"e{n}")])
        for n in range(ROWS)
    ]
    await grown.memory.remember(MemoryScope("a", "other"), others)
    await grown.memory.remember(MemoryScope("a", "u"), [replace(others[7], source_id="mine")])
    await database.pool.execute("VACUUM ANALYZE memories, memory_metadata")
    filters = [Filters(tags=["tag7"]).document, Filters(metadata={"n": Range(gte=7, lt=8)}).document]
    async with database.connection(for_tenants=True) as tenant:
        for filtered in filters:
            asked = ("a", "u", filtered, 100)
            assert await _rows_read(tenant, database.tenant_statement("select_memories"), *asked, ["a"]) <= FEW
        asked_event = ("a", "u", "s", "e7")
        assert await _rows_read(tenant, database.tenant_statement("list_memories_of_event"), *asked_event, ["a"]) <= FEW
    with acting_for(["a"]):
        assert [hit.text for hit in await grown.memory.recall("note", app="a", user="u", tags=["tag7"])] == ["note 7"]
        (one,) = await grown.memory.upkeep.memories_of_event("a", "u", session_id="s", event_id="e7")
        assert one.source_id == "mine"
    with acting_for(["b"]):
        assert await grown.memory.recall("note", app="a", user="u", tags=["tag7"]) == []
        assert await grown.memory.upkeep.memories_of_event("a", "u", session_id="s", event_id="e7") == []
        assert await database.fetch_value("select_memories", "a", "u", filters[0], 100) == []


async def test_recall_of_a_tenant_reads_few_rows(grown: Engine) -> None:
    asked = ("a", "u", None, None, 10, False, "topic77", "")
    with acting_for(["a"]):
        assert [hit.text for hit in await grown.memory.recall("topic77", app="a", user="u", k=1)] == ["topic77 word"]
        assert len(await database_of(grown).fetch("recall_by_words", *asked)) == 1
    with acting_for(["b"]):
        assert await grown.memory.recall("topic77", app="a", user="u") == []
        assert await database_of(grown).fetch("recall_by_words", *asked) == []
    async with database_of(grown).connection(for_tenants=True) as tenant:
        assert await _rows_read(tenant, database_of(grown).tenant_statement("recall_by_words"), *asked, ["a"]) <= FEW
