"""Messages are indexed in the background and found by words and by meaning, in a session, of a user, in an app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from cognizes.engine import Engine, Event, InvalidInputError, LimitExceededError, NotFoundError, Session
from cognizes.engine.access import Permission
from cognizes.engine.api.main import create_app
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.memory.embedders.embedder import EmbedderUnavailableError
from cognizes.engine.memory.message_search import MessageFilters, MessageIndex, MessageSearch
from tests.engine_parts import database_of
from tests.integration.memory.test_embedding_queue import FussyEmbedder


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[Engine]:
    """An engine that leaves indexing to the test."""
    async with Engine.open(database_url, memory_background=False) as opened:
        yield opened


async def talk(engine: Engine, app: str, user: str, *texts: str, role: str = "user") -> Session:
    session = await engine.sessions.create(app, user)
    for text in texts:
        await engine.sessions.append(session, author=role, kind=f"{role}_message", text=text)
    return session


async def index(engine: Engine) -> None:
    while await engine.memory.message_index.work():
        pass


async def found(engine: Engine, query: str, **where: Any) -> list[str]:
    return [hit.message.content for hit in await engine.memory.search_messages(query, **{"app": "shop", **where})]


async def test_a_message_is_embedded_and_found_in_the_background(database_url: str) -> None:
    async with Engine.open(database_url) as engine:
        await talk(engine, "shop", "ada", "my car broke down on the motorway")
        async with asyncio.timeout(30):
            while not await found(engine, "motorway"):
                await asyncio.sleep(0.05)
        row = await database_of(engine).pool.fetchrow(
            "SELECT vector_dims(embedding) AS size, embedding_model FROM messages WHERE embedding IS NOT NULL"
        )
        assert (row["size"], row["embedding_model"]) == (256, "wordllama-256")


async def test_an_append_stores_neither_words_nor_a_vector(engine: Engine) -> None:
    await talk(engine, "shop", "ada", "hello")
    rows = await database_of(engine).pool.fetch("SELECT terms, embedding, embedding_model FROM messages")
    assert [tuple(row) for row in rows] == [(None, None, None)]
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memory_embedding_queue") == 0


async def test_words_and_meaning_within_a_session_a_user_and_an_app(engine: Engine) -> None:
    first = await talk(engine, "shop", "ada", "order ORD-4711 is late", "my car broke down")
    await talk(engine, "shop", "ada", "order ORD-4712 came", "grün ist die Heide")
    await talk(engine, "shop", "bob", "order ORD-4713 is lost")
    await talk(engine, "other", "ada", "order ORD-4714 is secret")
    await index(engine)

    assert (await found(engine, "ORD-4711"))[0] == "order ORD-4711 is late"
    assert (await found(engine, "automobile accident", user="ada"))[0] == "my car broke down"
    assert (await found(engine, "HEIDE grun"))[0] == "grün ist die Heide"
    in_session = await found(engine, "order", user="ada", session_id=first.id)
    assert in_session[0] == "order ORD-4711 is late"
    assert set(in_session) <= {"order ORD-4711 is late", "my car broke down"}
    of_user = set(await found(engine, "order", user="ada"))
    assert {"order ORD-4711 is late", "order ORD-4712 came"} <= of_user
    assert "order ORD-4713 is lost" not in of_user
    in_app = set(await found(engine, "order"))
    assert {"order ORD-4711 is late", "order ORD-4712 came", "order ORD-4713 is lost"} <= in_app
    assert "order ORD-4714 is secret" not in in_app
    (hit,) = await engine.memory.search_messages("order", app="shop", user="bob", k=1)
    assert (hit.app_name, hit.user_id, hit.message.role, hit.message.sequence_num) == ("shop", "bob", "user", 1)
    assert hit.scores["words"] > 0
    total = hit.scores["words"] + hit.scores["meaning"]
    assert hit.score == pytest.approx(total / (1 + total))
    assert hit.why.startswith("contains order (")
    assert await engine.memory.search_messages("order", app="shop", user="bob", min_score=hit.score + 0.01) == []
    assert await found(engine, "quantum chromodynamics", user="ada") == []


async def test_filters(engine: Engine) -> None:
    session = await talk(engine, "shop", "ada", "tea for two")
    await engine.sessions.append(session, author="agent", kind="assistant_message", text="tea is ready")
    await index(engine)
    assert await found(engine, "tea", roles=["assistant"]) == ["tea is ready"]
    moment = (await engine.sessions.messages(session))[1].created_at
    assert await found(engine, "tea", since=moment) == ["tea is ready"]
    assert await found(engine, "tea", until=moment) == ["tea for two"]
    assert await found(engine, "tea", until=moment - timedelta(days=1)) == []
    assert len(await found(engine, "tea", k=1)) == 1
    assert await found(engine, "") == []


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (InvalidInputError, {"session_id": "s"}),
        (InvalidInputError, {"roles": ["unknown"]}),
        (InvalidInputError, {"k": 0}),
        (NotFoundError, {"user": "ada", "session_id": "s"}),
        (LimitExceededError, {"query": "x" * 10_001}),
    ],
)
async def test_a_search_that_cannot_be_answered(
    engine: Engine, error: type[Exception], options: dict[str, Any]
) -> None:
    with pytest.raises(error):
        await engine.memory.search_messages(**{"query": "tea", "app": "shop", **options})


async def test_very_frequent_words_and_a_rare_one(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    texts = [f"the order number {n} is ready" for n in range(1500)]
    texts[700] = "the order with the zeppelin is ready"
    await asyncio.gather(
        *(engine.sessions.append_to_thread(UUID(session.thread_id), _said(session.thread_id, text)) for text in texts)
    )
    await index(engine)
    assert (await found(engine, "zeppelin order ready"))[0] == texts[700]


def _said(thread_id: str, text: str) -> Event:
    return Event(
        id="", thread_id=thread_id, invocation_id="", author="user", event_type="user_message", content={"text": text}
    )


async def test_the_vector_index_is_built_and_used(engine: Engine) -> None:
    await talk(engine, "shop", "ada", "my car broke down", "green tea")
    await talk(engine, "shop", "bob", "his automobile is new")
    await engine.memory.message_index.build_vector_index()
    graphs = "SELECT indexdef FROM pg_indexes WHERE tablename = 'messages' AND indexdef LIKE '%hnsw%'"
    assert await database_of(engine).pool.fetch(graphs) == []
    await index(engine)
    await engine.memory.message_index.build_vector_index()
    ((definition,),) = await database_of(engine).pool.fetch(graphs)
    assert "halfvec(256)" in definition
    exact = await found(engine, "vehicle")
    # Very many events: the graph is walked.
    await database_of(engine).pool.execute("UPDATE threads SET last_sequence = 30000")
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname LIKE 'messages_graph_%'"
    assert await found(engine, "vehicle") == exact
    assert (await found(engine, "vehicle", user="bob"))[0] == "his automobile is new"
    async with asyncio.timeout(20):
        while not await database_of(engine).pool.fetchval(used):
            await asyncio.sleep(0.05)
    await talk(engine, "shop", "ada", "the lorry is red")
    await index(engine)
    assert "the lorry is red" in await found(engine, "truck lorry", user="ada")


async def test_one_process_at_a_time_indexes(engine: Engine) -> None:
    await talk(engine, "shop", "ada", "hello")
    first, second = (MessageIndex(database_of(engine), engine.memory.embedder) for _ in range(2))
    assert await first.work() == 1
    await talk(engine, "shop", "ada", "hello again")
    assert await second.work() == 0
    assert await first.work() == 1
    await talk(engine, "shop", "ada", "and again")
    await database_of(engine).pool.execute(
        "UPDATE maintenance_jobs SET last_run_at = now() WHERE name = 'index_messages'"
    )
    assert await second.work() == 1


async def test_words_are_found_while_the_embedder_is_unavailable(engine: Engine) -> None:
    await talk(engine, "shop", "ada", "green tea")
    embedder = FussyEmbedder("fussy-256", 256)
    embedder.is_away = True
    away = MessageIndex(database_of(engine), embedder)
    with pytest.raises(EmbedderUnavailableError):
        await away.work()
    by_words = MessageSearch(database_of(engine), embedder)
    (hit,) = await by_words.search("tea", app="shop", k=10, filters=MessageFilters())
    assert hit.message.content == "green tea"
    assert (await away.count()).without_vector == 1
    embedder.is_away = False
    assert await away.work() == 1
    assert await database_of(engine).pool.fetchval("SELECT embedding_model FROM messages") == "fussy-256"
    assert await away.work() == 0


async def test_a_refused_text_is_found_by_words_and_does_not_stop_others(engine: Engine) -> None:
    await talk(engine, "shop", "ada", "green tea", "poison ivy", "black tea")
    fussy = MessageIndex(database_of(engine), FussyEmbedder("fussy-256", 256))
    assert await fussy.work() == 3
    assert await fussy.work() == 0
    rows = await database_of(engine).pool.fetch("SELECT content FROM messages WHERE embedding IS NULL")
    assert [row["content"] for row in rows] == ["poison ivy"]
    (hit,) = await MessageSearch(database_of(engine), None).search("ivy", app="shop", k=10, filters=MessageFilters())
    assert hit.message.content == "poison ivy"


async def test_an_embedder_of_another_dimension(engine: Engine) -> None:
    await talk(engine, "shop", "ada", "green tea")
    await index(engine)
    await engine.memory.message_index.build_vector_index()
    await talk(engine, "shop", "ada", "black tea")
    other = MessageIndex(database_of(engine), FussyEmbedder("fussy-8", 8))
    await database_of(engine).pool.execute(
        "UPDATE maintenance_jobs SET last_run_at = now() WHERE name = 'index_messages'"
    )
    assert await other.work() == 1
    assert await other.work() == 0
    assert len(await found(engine, "tea")) == 2
    await other.queue_all()
    while await other.work():
        pass
    rows = await database_of(engine).pool.fetch("SELECT embedding_model, vector_dims(embedding) FROM messages")
    assert [tuple(row) for row in rows] == [("fussy-8", 8)] * 2
    await other.build_vector_index()
    search = MessageSearch(database_of(engine), FussyEmbedder("fussy-8", 8))
    assert len(await search.search("tea", app="shop", k=10, filters=MessageFilters())) == 2


async def test_forks_and_deleted_sessions(engine: Engine) -> None:
    session = await talk(engine, "shop", "ada", "green tea")
    await index(engine)
    fork = await engine.sessions.fork(session)
    await index(engine)
    assert await found(engine, "tea", user="ada", session_id=fork.id) == ["green tea"]
    await engine.sessions.delete(session)
    assert await found(engine, "tea") == ["green tea"]
    await engine.sessions.delete(fork)
    assert await found(engine, "tea") == []


async def test_over_rest_and_apart_by_tenant(database_url: str) -> None:
    async with Engine.open(database_url, auth="required", memory_background=False) as engine:
        await talk(engine, "shop", "ada", "green tea")
        await talk(engine, "shop", "bob", "black tea")
        await talk(engine, "other", "ada", "secret tea")
        await index(engine)
        transport = httpx.ASGITransport(app=create_app(engine=engine, agents=[]))

        async def ask(caller: str | None = None, **body: Any) -> httpx.Response:
            _, key = await engine.access.keys.create(permissions=[Permission.READ], app_names=["shop"], user_id=caller)
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers=headers) as client:
                return await client.post("/api/memory/messages/search", json={"query": "tea", **body})

        answer = await ask(app_name="shop")
        assert answer.status_code == 200, answer.text
        assert {hit["content"] for hit in answer.json()["hits"]} == {"green tea", "black tea"}
        assert {"score", "scores", "thread_id", "session_id", "user_id", "role"} <= answer.json()["hits"][0].keys()
        assert (await ask(app_name="other")).status_code == 403
        assert (await ask("ada", app_name="shop")).status_code == 403
        own = await ask("ada", app_name="shop", user_id="ada")
        assert [hit["content"] for hit in own.json()["hits"]] == ["green tea"]
        assert (await ask(app_name="shop", session_id="s")).status_code == 422
        # Row level security alone: whatever is asked for, a tenant sees its own messages.
        with acting_for(["other"]):
            assert await found(engine, "tea") == []
            assert await found(engine, "tea", app="other") == ["secret tea"]


async def test_a_batch_is_indexed_in_slices_with_a_pause_after_each(engine: Engine) -> None:
    """Requests are served between two slices, however long the backlog is."""
    await talk(engine, "shop", "ada", *[f"message {number}" for number in range(70)])
    embedder = FussyEmbedder("fussy-256", 256)
    messages = MessageIndex(database_of(engine), embedder)
    indexed: list[int] = []

    async def pause() -> None:
        indexed.append(70 - (await messages.count()).waiting)

    assert await messages.work(pause=pause) == 70
    assert indexed == [32, 64, 70]
    assert [len(texts) for texts in embedder.asked] == [32, 32, 6]


async def test_a_batch_of_long_messages_is_bounded(engine: Engine) -> None:
    await talk(engine, "shop", "ada", *["word " * 20_000] * 12, "short")
    embedder = FussyEmbedder("fussy-256", 256)
    messages = MessageIndex(database_of(engine), embedder)
    assert await messages.work() == 13
    assert sum(len(text) for texts in embedder.asked for text in texts) <= 500_000
    assert 0 < (await messages.count()).waiting < 13
