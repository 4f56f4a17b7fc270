"""`on_conflict="rebase"`: no writer is stale, every event is kept, in one order."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk import OpenSessionService

NAMES = {"app_name": "shop", "user_id": "ada", "session_id": "s"}


def changed(author: str, **delta: object) -> Event:
    return Event(author=author, invocation_id=author, actions=EventActions(state_delta=delta))


async def test_old_knowledge_is_appended_behind_what_is_there(rebasing: OpenSessionService) -> None:
    first = await rebasing.create_session(**NAMES, state={"kept": 0})
    copy = first.model_copy(deep=True)
    rebuilt = Session.model_validate_json(first.model_dump_json())
    await rebasing.append_event(first, changed("first", a=1, both="first", box={"x": 1}))
    await rebasing.append_event(copy, changed("copy", b=2, both="copy", **{"user:u": 1}))
    await rebasing.append_event(rebuilt, changed("rebuilt", box={"y": 1}, **{"temp:t": 1}))
    stored = await rebasing.get_session(**NAMES)
    assert stored is not None
    assert [event.author for event in stored.events] == ["first", "copy", "rebuilt"]
    # Key by key: the last word on a key holds, and a dict is one value.
    assert stored.state == {"kept": 0, "a": 1, "b": 2, "both": "copy", "box": {"y": 1}, "user:u": 1}
    # An object knows what it did, and learns the rest when it is read again.
    assert copy.state == {"kept": 0, "b": 2, "both": "copy", "user:u": 1}
    assert [event.author for event in copy.events] == ["copy"]


async def test_many_at_once(rebasing: OpenSessionService) -> None:
    session = await rebasing.create_session(**NAMES)
    copies = [session.model_copy(deep=True) for _ in range(50)]
    await asyncio.gather(
        *(rebasing.append_event(copy, changed(str(n), **{f"k{n}": n})) for n, copy in enumerate(copies))
    )
    stored = await rebasing.get_session(**NAMES)
    assert stored is not None
    assert stored.state == {f"k{n}": n for n in range(50)}
    assert len({event.id for event in stored.events}) == 50


async def test_a_deleted_session_stays_deleted(rebasing: OpenSessionService) -> None:
    session = await rebasing.create_session(**NAMES)
    await rebasing.delete_session(**NAMES)
    with pytest.raises(SessionNotFoundError):
        await rebasing.append_event(session, changed("late", a=1))
    await rebasing.create_session(**NAMES)
    with pytest.raises(SessionNotFoundError):
        await rebasing.append_event(session, changed("late", a=1))
