"""An ADK agent continues on the active branch, and knows nothing of the others."""

from __future__ import annotations

from uuid import UUID

from google.adk.events.event import Event
from google.genai import types

from cognizes.engine import Engine
from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.agui.snapshot import read_history

NAMES = {"app_name": "shop", "user_id": "ada", "session_id": "s"}


async def say(service: OpenSessionService, text: str) -> None:
    session = await service.get_session(**NAMES)
    assert session is not None
    content = types.Content(role="user", parts=[types.Part(text=text)])
    await service.append_event(session, Event(author="user", invocation_id="i", content=content))


async def texts(service: OpenSessionService) -> list[str | None]:
    session = await service.get_session(**NAMES)
    assert session is not None
    return [event.content.parts[0].text for event in session.events if event.content and event.content.parts]


async def test_a_session_shows_the_active_branch(
    engine: Engine, ours: OpenSessionService, rebasing: OpenSessionService
) -> None:
    """Also to a service that has the other branch in its cache."""
    service = ours
    await service.create_session(**NAMES)
    await say(service, "one")
    await say(service, "two")
    stored = await engine.sessions.get("shop", "ada", "s")
    assert stored is not None
    thread = stored.thread_id
    assert await texts(service) == ["one", "two"]
    await engine.branches.create(thread, "other", at_sequence=1)
    await engine.branches.switch(thread, "other")
    assert await texts(service) == ["one"]
    await say(service, "three")
    assert await texts(service) == ["one", "three"] == await texts(rebasing)
    await engine.branches.switch(thread, "main")
    assert await texts(service) == ["one", "two"]
    history = await read_history(engine.sessions.log, UUID(thread))
    assert [message["content"] for message in history.snapshot.messages] == ["one", "two"]
