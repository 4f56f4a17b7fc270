"""Memories that the users of an app or of an agent share, and that nothing else crosses."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cognizes.engine import Engine, InvalidInputError
from cognizes.engine.access import Permission
from cognizes.engine.api.main import create_app
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.records import VISIBILITIES, MemoryScope, Remembered
from tests.engine_parts import database_of

SCOPES = {
    "ada": MemoryScope("shop", "ada"),
    "ada of the clerk": MemoryScope("shop", "ada", "clerk"),
    "bob": MemoryScope("shop", "bob"),
    "ada of the bank": MemoryScope("bank", "ada"),
    "shop": MemoryScope.app_wide("shop"),
    "bank": MemoryScope.app_wide("bank"),
    "agent of the shop": MemoryScope.agent_wide("shop"),
    "clerk of the shop": MemoryScope.agent_wide("shop", "clerk"),
    "clerk of the bank": MemoryScope.agent_wide("bank", "clerk"),
}


def may_see(scope: MemoryScope, app: str, user: str, agent: str | None, visibility: str) -> bool:
    """Say again, in other words than the engine, what a recall may return."""
    if scope.app_name != app or scope.visibility != visibility:
        return False
    if visibility == "user":
        return scope.user_id == user and agent in (None, scope.agent_id)
    return visibility == "app" or scope.agent_id == (agent or app)


_words = st.sampled_from(["tea", "coffee", "order", "dog", "garden"])
_writes = st.lists(st.tuples(st.sampled_from(sorted(SCOPES)), _words), min_size=1, max_size=15)


@pytest.mark.parametrize("embedder", ["none", "wordllama"])
async def test_a_recall_returns_what_its_visibility_names_and_nothing_else(database_url: str, embedder: str) -> None:
    async with Engine.open(database_url, embedder=embedder, memory_background=False) as engine:
        loop = asyncio.get_running_loop()

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            writes=_writes,
            word=_words,
            app=st.sampled_from(["shop", "bank"]),
            user=st.sampled_from(["ada", "bob"]),
            agent=st.sampled_from([None, "clerk"]),
            visibility=st.sets(st.sampled_from(VISIBILITIES), min_size=1),
        )
        def check(**drawn: object) -> None:
            asyncio.run_coroutine_threadsafe(run(**drawn), loop).result(120)  # type: ignore[arg-type]

        async def run(
            writes: list[tuple[str, str]], word: str, app: str, user: str, agent: str | None, visibility: set[str]
        ) -> None:
            await database_of(engine).pool.execute("DELETE FROM memories")
            for name, text in writes:
                await engine.memory.remember(SCOPES[name], [Remembered(text, f"{text} of {name}")])
            while engine.memory.queue is not None and await engine.memory.queue.work():
                pass
            asked = {"app": app, "user": user, "agent": agent, "visibility": sorted(visibility)}
            seen = {
                one: {(text, name) for name, text in writes if may_see(SCOPES[name], app, user, agent, one)}
                for one in visibility
            }
            everything = {f"{text} of {name}" for found in seen.values() for text, name in found}
            expected = {f"{text} of {name}" for found in seen.values() for text, name in found if text == word}
            hits = await engine.memory.recall(word, **asked, k=100)
            if embedder == "none":
                assert {hit.text for hit in hits} == expected
            else:
                assert expected <= {hit.text for hit in hits} <= everything
            assert {hit.memory.visibility for hit in hits} <= visibility
            assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
            context = await engine.memory.context(word, **asked, budget_tokens=5000, k=100, min_score=0)
            assert {item.text for item in context.items} <= everything
            assert bool(context.items) >= bool(expected)
            for one, found in seen.items():
                listed = await engine.memory.list(app, user, filters=Filters(agent), visibility=one)
                assert {memory.text for memory in listed} == {f"{text} of {name}" for text, name in found}
                assert all(memory.visibility == one for memory in listed)

        await asyncio.to_thread(check)


async def test_sharing_is_explicit_when_writing_and_when_reading(engine: Engine) -> None:
    await engine.memory.remember(MemoryScope.app_wide("shop"), [Remembered("1", "the shop opens at nine")])
    assert await engine.memory.recall("shop opens", app="shop", user="ada") == []
    (hit,) = await engine.memory.recall("shop opens", app="shop", user="ada", visibility=["user", "app"])
    assert hit.memory.visibility == "app"
    assert not await engine.memory.forget("shop", "ada", hit.memory.id)
    assert await engine.memory.list("shop", "ada") == []
    assert [one.id for one in await engine.memory.list("shop", "", visibility="app")] == [hit.memory.id]
    assert await engine.memory.forget("shop", "", hit.memory.id, visibility="app")


async def test_a_user_cannot_have_the_id_of_a_shared_scope(engine: Engine) -> None:
    shared = MemoryScope.app_wide("shop").user_id
    await engine.memory.remember(MemoryScope.app_wide("shop"), [Remembered("1", "the shop opens at nine")])
    (memory,) = await engine.memory.list("shop", "", visibility="app")
    with pytest.raises(InvalidInputError, match="reserved"):
        MemoryScope("shop", shared)
    with pytest.raises(InvalidInputError, match="reserved"):
        await engine.memory.recall("shop", app="shop", user=shared)
    with pytest.raises(InvalidInputError, match="reserved"):
        await engine.memory.forget("shop", shared, memory.id)
    with pytest.raises(InvalidInputError, match="reserved"):
        await engine.memory.list("shop", shared)
    with pytest.raises(InvalidInputError, match="reserved"):
        await engine.memory.upkeep.sources("shop", shared, memory.id)
    session = await engine.sessions.create("shop", shared)
    with pytest.raises(InvalidInputError, match="reserved"):
        await engine.memory.remember_session(session)
    with pytest.raises(InvalidInputError, match="visibility"):
        MemoryScope("shop", "ada", visibility="app")
    with pytest.raises(InvalidInputError, match="visibility"):
        await engine.memory.recall("shop", app="shop", user="ada", visibility=["everyone"])


async def test_facts_and_episodes_are_shared_too(engine: Engine) -> None:
    shop = MemoryScope.app_wide("shop")
    await engine.memory.long_term.set(shop, "hours", "opening", "nine")
    assert (await engine.memory.long_term.list_by_agent(shop))[0].value == "nine"
    assert await engine.memory.long_term.list_by_agent(SCOPES["ada"]) == []
    (hit,) = await engine.memory.recall("opening", app="shop", user="bob", visibility=["app"])
    assert hit.memory.kind == "long_term"


async def test_row_level_security_hides_shared_memories_of_other_apps(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        for app in ("a", "b"):
            await engine.memory.remember(MemoryScope.app_wide(app), [Remembered("1", f"the secret of {app}")])
        for acting, asked, found in [("a", "a", 1), ("a", "b", 0), ("b", "a", 0)]:
            with acting_for([acting]):
                hits = await engine.memory.recall("secret", app=asked, user="u", visibility=VISIBILITIES)
                assert len(hits) == found


async def test_a_caller_bound_to_a_user_reads_shared_memories_and_does_not_write_them(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        permissions = (Permission.READ, Permission.WRITE)
        _, agents = await engine.access.keys.create(app_names=["shop"], permissions=permissions)
        _, bound = await engine.access.keys.create(app_names=["shop"], user_id="ada", permissions=permissions)
        transport = httpx.ASGITransport(app=create_app(engine=engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def send(key: str, method: str, path: str, **options: object) -> httpx.Response:
                return await client.request(method, path, headers={"x-api-key": key}, **options)  # type: ignore[arg-type]

            note = {"source_id": "1", "text": "the shop opens at nine"}
            body = {"app_name": "shop", "visibility": "app", "memories": [note]}
            asked = {"app_name": "shop", "visibility": "app"}
            assert (await send(bound, "POST", "/memory/shared", json=body)).status_code == 403
            assert (await send(agents, "POST", "/memory/shared", json=body)).json() == {"stored": 1}
            listed = await send(agents, "GET", "/memory/shared", params=asked)
            (memory,) = listed.json()["memories"]
            assert (await send(bound, "GET", "/memory/shared", params=asked)).status_code == 403
            path = f"/memory/shared/{memory['id']}"
            assert (await send(bound, "DELETE", path, params=asked)).status_code == 403
            question = {"app_name": "shop", "user_id": "ada", "query": "shop opens"}
            assert (await send(bound, "POST", "/memory/recall", json=question)).json() == {"hits": []}
            question = {**question, "visibility": ["user", "app"]}
            (hit,) = (await send(bound, "POST", "/memory/recall", json=question)).json()["hits"]
            assert (hit["id"], hit["visibility"]) == (memory["id"], "app")
            assert (await send(agents, "DELETE", path, params=asked)).status_code == 204
