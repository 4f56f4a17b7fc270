"""The context of a prompt, from PostgreSQL: in Python, in a run and over REST."""

from __future__ import annotations

from uuid import UUID

import httpx
import pytest

from cognizes.engine import Engine, InvalidInputError
from cognizes.engine.api.main import create_app
from cognizes.engine.memory.records import MemoryScope, Remembered
from cognizes.engine.models import Session
from tests.engine_parts import database_of

ADA = MemoryScope("shop", "ada")


@pytest.fixture
async def session(engine: Engine) -> Session:
    session = await engine.sessions.create("shop", "ada", session_id="s", state={"cart": ["tea"]})
    for author, kind, text in (
        ("user", "user_message", "I would like to order green tea"),
        ("agent", "assistant_message", "How much green tea?"),
    ):
        await engine.sessions.append(session, author=author, kind=kind, text=text)
    await engine.memory.remember_session(session)
    await engine.memory.long_term.set(ADA, "preferences", "tea", "green tea without sugar")
    await engine.memory.remember(MemoryScope.app_wide("shop"), [Remembered("1", "green tea is sold by the kilo")])
    await engine.memory.remember(MemoryScope("shop", "bob"), [Remembered("1", "bob hates green tea")])
    return session


async def test_a_context_has_working_memory_recalled_memories_and_recent_turns(
    engine: Engine, session: Session
) -> None:
    context = await engine.memory.context(
        "green tea", app="shop", user="ada", session=session, visibility=["user", "app"]
    )
    sections = {item.citation[0]: item.section for item in context.items}
    assert sections == {"s": "working memory", "m": "memories", "t": "recent turns"}
    texts = [item.text for item in context.items]
    assert texts[0] == '["tea"]'
    assert set(texts[1:3]) == {"tea: green tea without sugar", "green tea is sold by the kilo"}
    # The messages are recalled, too, and stand in the context once.
    assert texts[3:] == ["user: I would like to order green tea", "assistant: How much green tea?"]
    assert not any("bob" in text for text in texts)
    again = await engine.memory.context(
        "green tea", app="shop", user="ada", session=session, visibility=["user", "app"]
    )
    assert again.text == context.text
    for item in context.items:
        if item.memory_id is not None and item.visibility == "user":
            assert isinstance(await engine.memory.upkeep.sources("shop", "ada", item.memory_id), list)


async def test_a_budget_a_run_and_a_foreign_session(engine: Engine, session: Session) -> None:
    small = await engine.memory.context("green tea", app="shop", user="ada", session=session, budget_tokens=40)
    assert small.tokens <= 40
    assert small.left_out > 0
    words = await engine.memory.context(
        "green tea",
        app="shop",
        user="ada",
        session=session,
        budget_tokens=40,
        count_tokens=lambda text: len(text.split()),
    )
    assert len(words.text.split()) <= 40
    async with engine.runs.start(session) as run:
        assert "green tea without sugar" in (await run.memory.context("green tea", budget_tokens=500)).text
    with pytest.raises(InvalidInputError, match="belongs to another"):
        await engine.memory.context("green tea", app="shop", user="bob", session=session)
    with pytest.raises(InvalidInputError, match="recent_turns"):
        await engine.memory.context("green tea", app="shop", user="ada", recent_turns=-1)
    assert (await engine.memory.context("zyzzyva", app="shop", user="ada")).text == ""


async def test_recalled_memories_are_filtered(engine: Engine, session: Session) -> None:
    await engine.memory.remember(ADA, [Remembered("n", "green tea in the afternoon", tags=["daily"])])
    context = await engine.memory.context("green tea", app="shop", user="ada", tags=["daily"])
    assert [item.text for item in context.items] == ["green tea in the afternoon"]
    transport = httpx.ASGITransport(app=create_app(engine=engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"app_name": "shop", "user_id": "ada", "query": "green tea", "kinds": ["long_term"], "min_score": 0}
        items = (await client.post("/memory/context", json=body)).json()["items"]
        assert [item["kind"] for item in items] == ["long_term"]
        assert "said" not in items[0]


async def test_long_turns_are_read_only_as_far_as_the_budget(engine: Engine, session: Session) -> None:
    for _ in range(20):
        await engine.sessions.append(session, author="user", kind="user_message", text="word " * 20_000)
    thread_id = UUID(session.thread_id)
    rows = await database_of(engine).fetch("read_recent_turns", thread_id, 20, 800)
    assert [len(row["content"]) for row in rows] == [800, 800]
    context = await engine.memory.context("tea", app="shop", user="ada", session=session, budget_tokens=100)
    assert context.items[-1].text.endswith("\u2026")
    # Pages of a session are bounded, too.
    assert len(await database_of(engine).fetch("read_session_turns", thread_id, 0, 500, 250_000)) == 4
    assert await engine.memory.remember_session(session) == 20


async def test_a_long_message_of_the_user_is_a_query(engine: Engine, session: Session) -> None:
    query = "green tea, please. " * 6000
    context = await engine.memory.context(query, app="shop", user="ada", min_score=0)
    assert "green tea without sugar" in context.text
    transport = httpx.ASGITransport(app=create_app(engine=engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"app_name": "shop", "user_id": "ada", "query": query, "min_score": 0}
        answer = await client.post("/memory/context", json=body)
        assert answer.json()["text"] == context.text


async def test_a_context_over_rest(engine: Engine, session: Session) -> None:
    transport = httpx.ASGITransport(app=create_app(engine=engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"app_name": "shop", "user_id": "ada", "query": "green tea", "session_id": session.id}
        answer = await client.post("/memory/context", json={**body, "budget_tokens": 300})
        assert answer.status_code == 200
        document = answer.json()
        assert document["tokens"] <= 300
        cited = [item["citation"] for item in document["items"]]
        assert all(f"[{citation}] " in document["text"] for citation in cited)
        for wrong in ({"session_id": "x"}, {"user_id": "bob"}):
            assert (await client.post("/memory/context", json={**body, **wrong})).status_code == 404
