"""What a memory service of ADK promises, on ADK's own InMemoryMemoryService where it can, and on ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from google.adk.cli.service_registry import get_service_registry
from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from cognizes.engine.adapters.adk import OpenMemoryService, OpenSessionService, register


def said(text: str, *, author: str = "user", **fields: Any) -> Event:
    return Event(author=author, content=types.Content(role="user", parts=[types.Part(text=text)]), **fields)


def session(user: str, *events: Event, app: str = "shop", session_id: str = "s-1") -> Session:
    return Session(id=session_id, app_name=app, user_id=user, events=list(events))


async def texts(service: BaseMemoryService, user: str, query: str, app: str = "shop") -> list[str]:
    found = await service.search_memory(app_name=app, user_id=user, query=query)
    return ["".join(part.text or "" for part in memory.content.parts or []) for memory in found.memories]


@pytest.fixture
def user() -> str:
    """A user of one test: the folder's tests share a database."""
    return uuid4().hex


@pytest.fixture
async def ours(database_url: str) -> AsyncIterator[OpenMemoryService]:
    """Our service; by words alone, which is the same at every moment."""
    async with OpenMemoryService(database_url, embedder="none") as service:
        yield service


@pytest.fixture(params=["in_memory", "open"])
def service(request: pytest.FixtureRequest) -> BaseMemoryService:
    if request.param == "in_memory":
        return InMemoryMemoryService()
    chosen: BaseMemoryService = request.getfixturevalue("ours")
    return chosen


class TestBoth:
    async def test_a_session_is_found_by_its_words(self, service: BaseMemoryService, user: str) -> None:
        await service.add_session_to_memory(session(user, said("I like green tea")))
        await service.add_session_to_memory(session(user, said("the parcel left"), session_id="s-2"))
        assert await texts(service, user, "parcel") == ["the parcel left"]
        assert await texts(service, user, "unheardof") == []
        assert await texts(service, user, "") == []

    async def test_what_a_memory_carries(self, service: BaseMemoryService, user: str) -> None:
        event = said("I like green tea", author="clerk", timestamp=1_700_000_000.25)
        await service.add_session_to_memory(session(user, event))
        (memory,) = (await service.search_memory(app_name="shop", user_id=user, query="tea")).memories
        assert memory.author == "clerk"
        assert memory.content == event.content
        assert memory.id
        assert (memory.timestamp or "").startswith("2023-11-1")

    async def test_users_and_apps_are_kept_apart(self, service: BaseMemoryService, user: str) -> None:
        await service.add_session_to_memory(session(user, said("secret tea")))
        assert await texts(service, user + "x", "tea") == []
        assert await texts(service, user, "tea", app="bank") == []

    async def test_a_session_that_is_added_again_is_there_once(self, service: BaseMemoryService, user: str) -> None:
        first, second = said("one cup of tea", id="1"), said("two cups of tea", id="2")
        await service.add_session_to_memory(session(user, first))
        await service.add_session_to_memory(session(user, first, second))
        assert sorted(await texts(service, user, "tea")) == ["one cup of tea", "two cups of tea"]

    async def test_events_are_added_to_what_is_there(self, service: BaseMemoryService, user: str) -> None:
        for event in (said("one tea", id="1"), said("two tea", id="2"), said("two tea", id="2")):
            await service.add_events_to_memory(app_name="shop", user_id=user, events=[event], session_id="s-1")
        await service.add_events_to_memory(app_name="shop", user_id=user, events=[said("three tea", id="3")])
        assert sorted(await texts(service, user, "tea")) == ["one tea", "three tea", "two tea"]

    async def test_events_without_text_are_no_memories(self, service: BaseMemoryService, user: str) -> None:
        call = types.Part(function_call=types.FunctionCall(name="tea", args={}))
        events = [Event(author="a"), Event(author="a", content=types.Content(parts=[call])), said("")]
        await service.add_session_to_memory(session(user, *events))
        assert await texts(service, user, "tea") == []

    async def test_chinese_is_found(self, service: BaseMemoryService, user: str) -> None:
        await service.add_session_to_memory(session(user, said("我们的退款政策是三十天")))
        await service.add_session_to_memory(session(user, said("他喜欢绿茶"), session_id="s-2"))
        assert await texts(service, user, "退款政策") == ["我们的退款政策是三十天"]

    async def test_deletion_deletes_for_good(self, service: BaseMemoryService, user: str) -> None:
        event = said("forget the tea", id="1")
        await service.add_session_to_memory(session(user, event, said("keep the tea", id="2")))
        found = await service.search_memory(app_name="shop", user_id=user, query="forget")
        memory_id = next(memory.id for memory in found.memories if memory.content == event.content)
        await service.delete_memory(app_name="shop", user_id=user + "x", memory_id=memory_id)
        assert "forget the tea" in await texts(service, user, "tea")
        await service.delete_memory(app_name="shop", user_id=user, memory_id=memory_id)
        await service.delete_memory(app_name="shop", user_id=user, memory_id=memory_id)
        await service.add_session_to_memory(session(user, event))
        assert "forget the tea" not in await texts(service, user, "tea")
        for nothing in (None, "", "unknown", "9" * 30):
            await service.delete_memory(app_name="shop", user_id=user, memory_id=nothing)

    async def test_not_everything_is_returned(self, service: BaseMemoryService, user: str) -> None:
        await service.add_session_to_memory(session(user, *(said(f"tea {n}", id=str(n)) for n in range(30))))
        assert len(await texts(service, user, "tea")) == 10


class TestOurs:
    async def test_thoughts_are_not_recalled(self, ours: OpenMemoryService, user: str) -> None:
        thought = types.Part(text="secret tea plan", thought=True)
        event = Event(author="a", content=types.Content(parts=[thought, types.Part(text="hello")]))
        await ours.add_session_to_memory(session(user, event))
        assert await texts(ours, user, "plan") == []

    async def test_memories_as_they_are(self, ours: OpenMemoryService, user: str) -> None:
        def entry(text: str, **fields: Any) -> MemoryEntry:
            return MemoryEntry(content=types.Content(parts=[types.Part(text=text)]), **fields)

        kept = entry("Ada drinks tea", author="clerk", timestamp="2026-01-02T03:04:05", custom_metadata={"a": 1})
        for _ in range(2):
            await ours.add_memory(app_name="shop", user_id=user, memories=[kept], custom_metadata={"b": [2]})
        (found,) = (await ours.search_memory(app_name="shop", user_id=user, query="tea")).memories
        assert (found.author, found.timestamp) == ("clerk", "2026-01-02T03:04:05")
        assert (found.custom_metadata["a"], found.custom_metadata["b"]) == (1, [2])
        await ours.add_memory(app_name="shop", user_id=user, memories=[entry("coffee at noon", id="x")])
        await ours.add_memory(app_name="shop", user_id=user, memories=[entry("water at noon", id="x")])
        assert await texts(ours, user, "noon") == ["water at noon"]

    async def test_metadata_of_events_comes_back(self, ours: OpenMemoryService, user: str) -> None:
        await ours.add_events_to_memory(
            app_name="shop", user_id=user, events=[said("tea")], session_id="s-9", custom_metadata={"topic": "drinks"}
        )
        (found,) = (await ours.search_memory(app_name="shop", user_id=user, query="tea")).memories
        assert found.custom_metadata["topic"] == "drinks"
        assert found.custom_metadata["session_id"] == "s-9"

    async def test_odd_characters(self, ours: OpenMemoryService, user: str) -> None:
        event = said("tea \x00 \ud800 NaN")
        await ours.add_session_to_memory(session(user, event))
        assert await texts(ours, user, "tea") == ["tea \x00 \ud800 NaN"]

    async def test_the_agents_facts_are_found_too(self, ours: OpenMemoryService, user: str) -> None:
        from cognizes.engine.memory.records import MemoryScope

        engine = await ours.engine()
        await engine.memory.long_term.set(MemoryScope("shop", user), "preferences", "drink", "green tea")
        assert await texts(ours, user, "tea") == ["drink: green tea"]

    async def test_it_shares_the_engine_of_the_session_service(
        self, ours: OpenMemoryService, database_url: str
    ) -> None:
        async with OpenSessionService(database_url, embedder="none") as sessions:
            assert await sessions.engine() is await ours.engine()

    async def test_the_scheme_makes_one(self, database_url: str, user: str) -> None:
        register()
        made = get_service_registry().create_memory_service(
            database_url.replace("postgresql:", "cognizes:") + "&max_results=1",
            agents_dir="/tmp",
        )
        assert isinstance(made, OpenMemoryService)
        async with made:
            await made.add_session_to_memory(session(user, said("one tea", id="1"), said("two tea", id="2")))
            assert len(await texts(made, user, "tea")) == 1
