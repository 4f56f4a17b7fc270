"""The ten defects of ADK's DatabaseSessionService, each of which ours must not have."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.genai import types

from cognizes.engine import DatabaseUnavailableError, models
from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.adapters.adk.session_reader import Revision


def said(text: str, **fields: object) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event.model_validate({"author": "user", "invocation_id": "inv", "content": content, **fields})


def changed(**delta: object) -> Event:
    return Event(author="agent", invocation_id="inv", actions=EventActions(state_delta=delta))


async def reload(service: BaseSessionService, session: Session) -> Session:
    stored = await service.get_session(app_name=session.app_name, user_id=session.user_id, session_id=session.id)
    assert stored is not None
    return stored


async def new_session(service: BaseSessionService, **fields: object) -> Session:
    return await service.create_session(**{"app_name": "shop", "user_id": "ada", **fields})


async def test_1_concurrent_creates_lose_no_app_or_user_state(database_url: str) -> None:
    async with OpenSessionService(database_url) as here, OpenSessionService(database_url, pool_size=4) as there:
        assert (await here.engine()) is not (await there.engine())
        await asyncio.gather(
            *(
                new_session(service, state={f"app:{name}{number}": number, f"user:{name}{number}": number})
                for number in range(25)
                for name, service in (("here", here), ("there", there))
            )
        )
        state = (await new_session(here)).state
    assert len(state) == 100


async def test_2_a_stale_writer_with_an_equal_timestamp_is_noticed(ours: OpenSessionService) -> None:
    first = await new_session(ours)
    second = await reload(ours, first)
    await ours.append_event(first, said("one", timestamp=1000.0))
    with pytest.raises(StaleSessionError):
        await ours.append_event(second, said("two", timestamp=1000.0))
    third = await reload(ours, first)
    await ours.append_event(third, said("three", timestamp=1000.0))
    assert [event.content.parts[0].text for event in (await reload(ours, first)).events] == ["one", "three"]


@pytest.mark.parametrize("rebuild", ["copy", "json"])
async def test_2_a_stale_copy_is_noticed_too(ours: OpenSessionService, rebuild: str) -> None:
    session = await new_session(ours)
    await ours.append_event(session, said("one"))
    stale = session.model_copy(deep=True)
    if rebuild == "json":
        stale = Session.model_validate_json(stale.model_dump_json())
    await ours.append_event(session, changed(a=1))
    # Its timestamp is ahead of everything stored, and still it is stale.
    stale.last_update_time += 3600
    with pytest.raises(StaleSessionError):
        await ours.append_event(stale, said("two"))


async def test_2_concurrent_writers_with_one_knowledge_one_wins(ours: OpenSessionService) -> None:
    session = await new_session(ours)
    copies = [session.model_copy(deep=True) for _ in range(10)]
    results = await asyncio.gather(
        *(ours.append_event(copy, said(str(number))) for number, copy in enumerate(copies)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Event"] + ["StaleSessionError"] * 9
    assert len((await reload(ours, session)).events) == 1


async def test_2_events_about_runs_make_no_session_stale_but_messages_of_others_do(ours: OpenSessionService) -> None:
    session = await new_session(ours)
    engine = await ours.engine()
    revision = Revision.of(session)
    assert revision is not None
    stored = models.Session(id=session.id, app_name="shop", user_id="ada", thread_id=str(revision.thread_id))
    async with engine.runs.start(stored) as run:
        await run.think("hm")
        await ours.append_event(session, said("one"))
        await ours.append_event(Session.model_validate_json(session.model_dump_json()), said("two"))
    session = await reload(ours, session)
    assert len(session.events) == 2
    await engine.sessions.append(stored, author="user", kind="user_message", text="from elsewhere")
    with pytest.raises(StaleSessionError):
        await ours.append_event(session, said("three"))
    assert (await reload(ours, session)).events[-1].content.parts[0].text == "from elsewhere"


async def test_3_tied_and_backdated_timestamps_keep_their_order(ours: OpenSessionService) -> None:
    session = await new_session(ours)
    for number, time in enumerate([50.0, 50.0, 50.0, 40.0, 60.0, 10.0]):
        await ours.append_event(session, said(str(number), timestamp=time, id=f"{9 - number}"))
    stored = await reload(ours, session)
    assert [event.content.parts[0].text for event in stored.events] == list("012345")
    assert [event.timestamp for event in stored.events] == [50.0, 50.0, 50.0, 40.0, 60.0, 10.0]


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x\udfffy\x00", "\ue000"])
async def test_4_nul_and_lone_surrogates_survive(ours: OpenSessionService, text: str) -> None:
    session = await new_session(ours, state={"made": text})
    call = types.Part(function_call=types.FunctionCall(name="f", args={"x": text, text: [text]}))
    event = said(text, custom_metadata={"m": text})
    event.content.parts.append(call)
    event.actions.state_delta = {"own": text, "user:u": {text: text}, "app:a": [text]}
    await ours.append_event(session, event)
    stored = await reload(ours, session)
    assert stored.events == [event]
    assert stored.state == {"made": text, "own": text, "user:u": {text: text}, "app:a": [text]}
    listed = (await ours.list_sessions(app_name="shop")).sessions
    assert listed[0].last_update_time == event.timestamp


async def test_4_nan_and_the_infinities_survive(ours: OpenSessionService) -> None:
    session = await new_session(ours, state={"made": math.inf})
    call = types.Part(function_call=types.FunctionCall(name="f", args={"x": math.nan}))
    event = said("hi", output=[-math.inf])
    event.content.parts.append(call)
    event.actions.state_delta = {"own": math.nan, "user:u": -math.inf}
    await ours.append_event(session, event)
    stored = await reload(ours, session)
    assert math.isnan(stored.state["own"])
    assert math.isnan(stored.events[0].actions.state_delta["own"])
    assert math.isnan(stored.events[0].content.parts[1].function_call.args["x"])
    assert (stored.state["made"], stored.state["user:u"], stored.events[0].output) == (math.inf, -math.inf, [-math.inf])


async def test_5_the_order_of_arguments_is_kept(ours: OpenSessionService) -> None:
    session = await new_session(ours)
    arguments = {"zebra": 1, "b": {"y": 1, "a": 2}, "apple": [{"d": 1, "c": 2}], "aa": 3}
    event = said("hi")
    event.content.parts.append(types.Part(function_call=types.FunctionCall(name="f", args=arguments)))
    await ours.append_event(session, event)
    stored = (await reload(ours, session)).events[0].content.parts[1].function_call.args
    assert repr(stored) == repr(arguments)


async def test_6_ids_have_any_length(ours: OpenSessionService) -> None:
    session = await new_session(ours, user_id="u" * 900, app_name="a" * 900, session_id="s" * 5000)
    event = said("hi", id="e" * 5000, invocation_id="i" * 5000, author="x" * 5000, branch="b" * 5000)
    await ours.append_event(session, event)
    assert (await reload(ours, session)).events == [event]


async def test_7_a_redelivered_event_answers_the_same(ours: OpenSessionService) -> None:
    session = await new_session(ours)
    before = session.model_copy(deep=True)
    event = changed(a=1, user_b=2)
    await ours.append_event(session, event)
    await ours.append_event(session, said("later"))
    # The caller that never got the answer still holds the old session.
    await ours.append_event(before, event.model_copy(deep=True))
    assert before.state["a"] == 1
    assert len((await reload(ours, session)).events) == 2
    with pytest.raises(StaleSessionError):
        await ours.append_event(before, said("too late"))


async def test_7_an_event_without_an_id_is_stored_once_too(
    ours: OpenSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is lost, and its sender, who never gave it an id, sends the same object again."""
    session = await new_session(ours)
    event = said("hi")
    event.id = ""
    sessions = (await ours.engine()).sessions
    append = sessions.append_to_thread

    async def lose(*arguments: Any, **named: Any) -> bool:
        await append(*arguments, **named)
        raise DatabaseUnavailableError("the connection was cut after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(sessions, "append_to_thread", lose)
        with pytest.raises(DatabaseUnavailableError):
            await ours.append_event(session, event)
    await ours.append_event(session, event)
    assert [known.id for known in (await reload(ours, session)).events] == [event.id]
    assert [known.id for known in session.events] == [event.id]


async def test_7_another_event_of_the_same_id_is_refused(ours: OpenSessionService) -> None:
    session = await new_session(ours)
    await ours.append_event(session, said("one", id="e"))
    with pytest.raises(AlreadyExistsError):
        await ours.append_event(session, said("two", id="e"))
    assert len(session.events) == 1


@pytest.mark.parametrize("failure", ["stale", "too deep", "too large"])
async def test_8_a_failed_append_leaves_everything_as_it_was(database_url: str, failure: str) -> None:
    async with OpenSessionService(database_url, max_event_bytes=5000) as service:
        session = await new_session(service, state={"a": 1})
        event = changed(**{"a": 2, "temp:draft": "x"})
        if failure == "stale":
            await service.append_event(await reload(service, session), said("first"))
        elif failure == "too large":
            event.actions.state_delta["b"] = "x" * 10_000
        else:
            event.actions.state_delta["b"] = nested = []
            for _ in range(220):
                nested.append(nested := [])
        session_before, event_before = session.model_copy(deep=True), event.actions.state_delta.copy()
        with pytest.raises(Exception, match=r"modified|nested|bytes"):
            await service.append_event(session, event)
        assert session == session_before
        assert event.actions.state_delta == event_before
        event.actions.state_delta.pop("b", None)
        session = await reload(service, session)
        await service.append_event(session, event)
        assert session.state["temp:draft"] == "x"
        assert (await reload(service, session)).state == {"a": 2}


@pytest.mark.parametrize("given", ["", "  ", " padded "])
async def test_9_blank_and_padded_ids_are_not_stored_as_they_are(ours: OpenSessionService, given: str) -> None:
    session = await new_session(ours, session_id=given)
    assert session.id == session.id.strip() != ""
    engine = await ours.engine()
    stored = await engine.sessions.store.get("shop", "ada", session.id)
    assert stored is not None


async def test_10_six_instances_start_on_an_empty_database_at_once(empty_database_url: str) -> None:
    async with AsyncExitStack() as stack:
        services = [OpenSessionService(empty_database_url, pool_size=2 + number) for number in range(6)]
        for service in services:
            stack.push_async_callback(service.close)
        await asyncio.gather(*(new_session(service, state={"app:n": 1}) for service in services))
        assert len((await services[0].list_sessions(app_name="shop")).sessions) == 6
