"""An append is one round trip and a read is one, counted on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig

from cognizes.engine.adapters.adk import OpenSessionService
from tests.counting_proxy import CountingProxy, counting_proxy
from tests.engine_parts import maintenance_of


@asynccontextmanager
async def counted(database_url: str) -> AsyncIterator[tuple[OpenSessionService, CountingProxy]]:
    async with (
        counting_proxy(database_url) as (url, proxy),
        OpenSessionService(url, memory_background=False) as service,
    ):
        engine = await service.engine()
        await maintenance_of(engine).close()
        yield service, proxy


@pytest.mark.parametrize("delta", [{}, {"a": 1}, {"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}])
async def test_an_append_is_one_round_trip(database_url: str, delta: dict[str, int]) -> None:
    async with counted(database_url) as (service, proxy):
        session = await service.create_session(app_name="shop", user_id="ada")
        proxy.taken()
        for _ in range(5):
            await service.append_event(session, Event(author="agent", actions=EventActions(state_delta=dict(delta))))
            assert proxy.taken() == ["append_event"]


@pytest.mark.parametrize("config", [None, GetSessionConfig(num_recent_events=2), GetSessionConfig(after_timestamp=1.0)])
async def test_a_read_is_one_round_trip(database_url: str, config: GetSessionConfig | None) -> None:
    async with counted(database_url) as (service, proxy):
        names = {"app_name": "shop", "user_id": "ada"}
        session = await service.create_session(**names, session_id="s")
        for _ in range(5):
            await service.append_event(session, Event(author="agent"))
        proxy.taken()
        for _ in range(3):
            assert await service.get_session(**names, session_id="s", config=config) is not None
            assert proxy.taken() == ["adk_read_session"]
        await service.list_sessions(**names)
        assert proxy.taken() == ["adk_list_sessions"]
        await service.create_session(**names, state={"a": 1, "user:b": 2})
        assert proxy.taken() == ["create_sessions"]


async def test_reads_of_one_moment_share_a_round_trip_and_no_object(database_url: str) -> None:
    async with counted(database_url) as (service, proxy):
        session = await service.create_session(app_name="shop", user_id="ada", state={"list": [1]})
        await service.append_event(session, Event(author="agent", actions=EventActions(state_delta={"a": 1})))
        proxy.taken()
        read = [
            service.get_session(app_name="shop", user_id="ada", session_id=session.id),
            service.get_session(app_name="shop", user_id="ada", session_id=session.id),
            service.get_session(app_name="shop", user_id="ada", session_id="another"),
        ]
        first, second, missing = await asyncio.gather(*read)
        assert proxy.taken() == ["adk_read_session"] * 2
        assert missing is None
        assert first is not None
        assert second is not None
        first.state["list"].append(2)
        first.events[0].author = "changed"
        assert (second.state["list"], second.events[0].author) == ([1], "agent")
