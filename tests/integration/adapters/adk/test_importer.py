"""Sessions of ADK's DatabaseSessionService move over, also when it takes several attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas import v0
from google.genai import types
from sqlalchemy import create_engine

from cognizes.engine import Engine, SetupError
from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.adapters.adk.importer import ImportProgress, import_sessions
from tests.engine_parts import database_of


class PowerCutError(Exception):
    """The import stops here."""


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[DatabaseSessionService]:
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path}/adk.db") as service:
        for user in ("ada", "bob"):
            for number in range(3):
                await fill(service, user, f"{user}-{number}", events=4 * number)
        yield service


@pytest.fixture
def source_url(source: DatabaseSessionService, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/adk.db"


@pytest.fixture
async def target(ours: OpenSessionService) -> Engine:
    return await ours.engine()


async def fill(service: BaseSessionService, user: str, name: str, *, events: int) -> None:
    state = {"given": [name], "n": -1, "user:first": user, "app:color": "red"}
    session = await service.create_session(app_name="shop", user_id=user, session_id=name, state=state)
    for number in range(events):
        event = Event(
            author="user" if number % 2 else "clerk",
            invocation_id=f"inv-{number}",
            content=types.Content(
                role="user",
                parts=[
                    types.Part(text=f"line {number}"),
                    types.Part(inline_data=types.Blob(data=b"\xff\x00", mime_type="x/y")),
                ],
            ),
            actions=EventActions(state_delta={"n": number, "user:last": number} if number % 3 else {}),
        )
        await service.append_event(session, event)


async def everything(service: BaseSessionService) -> list[Any]:
    found = []
    for listed in (await service.list_sessions(app_name="shop")).sessions:
        session = await service.get_session(app_name="shop", user_id=listed.user_id, session_id=listed.id)
        assert session is not None
        found.append((session.user_id, session.id, session.state, session.events))
    return sorted(found, key=lambda item: item[1])


async def test_everything_comes_over_as_it_was(
    source: DatabaseSessionService, source_url: str, target: Engine, ours: OpenSessionService
) -> None:
    seen: list[ImportProgress] = []
    report = await import_sessions(source_url, target, progress=seen.append, batch=3)
    assert report.is_complete
    assert (report.sessions_found, report.sessions_created, report.events_found, report.events_copied) == (6, 6, 24, 24)
    assert (report.app_states, report.user_states, report.skipped) == (1, 2, ())
    assert await everything(ours) == await everything(source)
    for user in ("ada", "bob"):
        names = {"app_name": "shop", "user_id": user}
        assert await ours.get_user_state(**names) == await source.get_user_state(**names)
    assert seen[0] == ImportProgress(0, 6, 0, 24)
    assert seen[-1] == ImportProgress(6, 6, 24, 24)


async def test_the_past_comes_over_too(source_url: str, target: Engine) -> None:
    await import_sessions(source_url, target, batch=3)
    session = await target.sessions.get("shop", "ada", "ada-2")
    assert session is not None
    assert (session.last_sequence, session.version) == (8, 6)
    assert [message.content for message in await target.sessions.messages(session, at_sequence=2)] == [
        "line 0",
        "line 1",
    ]
    past = (await target.sessions.at(session, sequence=3)).state
    assert (past["n"], past["given"]) == (2, ["ada-2"])


async def test_an_imported_session_continues(source_url: str, target: Engine, ours: OpenSessionService) -> None:
    await import_sessions(source_url, target)
    session = await ours.get_session(app_name="shop", user_id="ada", session_id="ada-2")
    assert session is not None
    await ours.append_event(
        session, Event(author="clerk", actions=EventActions(state_delta={"n": 99, "user:last": 99}))
    )
    report = await import_sessions(source_url, target)
    assert report.is_complete
    assert report.events_copied == 0
    stored = await ours.get_session(app_name="shop", user_id="ada", session_id="ada-2")
    assert stored is not None
    assert (len(stored.events), stored.state["n"], stored.state["user:last"]) == (9, 99, 99)


@pytest.mark.parametrize("cut_after", [1, 3, 5, 12])
async def test_an_interrupted_import_continues_where_it_stopped(
    source: DatabaseSessionService,
    source_url: str,
    target: Engine,
    ours: OpenSessionService,
    monkeypatch: pytest.MonkeyPatch,
    cut_after: int,
) -> None:
    fetch_value = database_of(target).fetch_value
    calls = 0

    async def fetch_until_the_cut(query: str, *arguments: Any) -> Any:
        nonlocal calls
        calls += query == "adk_import_events"
        if calls == cut_after:
            raise PowerCutError
        return await fetch_value(query, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(database_of(target), "fetch_value", fetch_until_the_cut)
        with pytest.raises(PowerCutError):
            await import_sessions(source_url, target, batch=3)
    report = await import_sessions(source_url, target, batch=3)
    assert report.is_complete
    assert report.events_copied + report.events_present == 24
    assert await everything(ours) == await everything(source)


async def test_what_was_added_since_is_added(
    source: DatabaseSessionService, source_url: str, target: Engine, ours: OpenSessionService
) -> None:
    await import_sessions(source_url, target)
    session = await source.get_session(app_name="shop", user_id="ada", session_id="ada-1")
    assert session is not None
    await source.append_event(session, Event(author="clerk", actions=EventActions(state_delta={"n": 7})))
    await fill(source, "ada", "ada-9", events=2)
    report = await import_sessions(source_url, target)
    assert (report.is_complete, report.events_copied, report.sessions_created) == (True, 3, 1)
    assert [item[:2] for item in await everything(ours)] == [item[:2] for item in await everything(source)]
    assert [item[3] for item in await everything(ours)] == [item[3] for item in await everything(source)]


async def test_nothing_of_the_target_is_overwritten(
    source: DatabaseSessionService, source_url: str, target: Engine, ours: OpenSessionService
) -> None:
    state = {"mine": True, "app:color": "blue"}
    await ours.create_session(app_name="shop", user_id="ada", session_id="ada-1", state=state)
    report = await import_sessions(source_url, target)
    assert not report.is_complete
    assert [(skipped.session_id, "not imported" in skipped.reason) for skipped in report.skipped] == [("ada-1", True)]
    session = await ours.get_session(app_name="shop", user_id="ada", session_id="ada-1")
    assert session is not None
    assert (session.events, session.state["mine"], session.state["app:color"]) == ([], True, "blue")


async def test_sessions_that_went_on_in_both_places_are_left_alone(
    source: DatabaseSessionService, source_url: str, target: Engine, ours: OpenSessionService
) -> None:
    await import_sessions(source_url, target)
    for service in (source, ours):
        session = await service.get_session(app_name="shop", user_id="bob", session_id="bob-2")
        assert session is not None
        await service.append_event(session, Event(author="clerk"))
    report = await import_sessions(source_url, target)
    assert [skipped.session_id for skipped in report.skipped] == ["bob-2"]


async def test_a_database_without_adks_tables_is_refused(target: Engine, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="ADK keeps no sessions"):
        await import_sessions("oracle://nowhere/db", target)
    (tmp_path / "empty.db").touch()
    with pytest.raises(SetupError, match="no tables"):
        await import_sessions(f"sqlite:///{tmp_path}/empty.db", target)
    old = create_engine(f"sqlite:///{tmp_path}/old.db")
    v0.Base.metadata.create_all(old)
    old.dispose()
    with pytest.raises(SetupError, match="adk migrate session"):
        await import_sessions(f"sqlite:///{tmp_path}/old.db", target)


async def test_the_tokens_of_imported_events_are_counted_once(
    source: DatabaseSessionService, source_url: str, target: Engine
) -> None:
    session = await source.create_session(app_name="shop", user_id="eve", session_id="used")
    counts = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=2)
    for number in range(3):
        event = Event(author="clerk", invocation_id=f"i{number}", usage_metadata=counts, model_version="gemini-test")
        await source.append_event(session, event)
    for _ in range(2):
        await import_sessions(source_url, target)
    (found,) = (await target.usage.of_user("shop", "eve")).models
    assert (found.model, found.calls, found.input_tokens, found.output_tokens) == ("gemini-test", 3, 21, 6)
