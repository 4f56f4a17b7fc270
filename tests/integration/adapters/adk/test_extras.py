"""What ADK's users ask for and its own service lacks: pages, forks, titles, deleted keys, retention."""

from __future__ import annotations

from datetime import timedelta

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.not_found_error import NotFoundError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk import OpenSessionService
from tests.engine_parts import database_of

NAMES = {"app_name": "shop", "user_id": "ada"}


def changed(**delta: object) -> Event:
    return Event(author="agent", invocation_id="inv", actions=EventActions(state_delta=delta))


async def conversation(service: OpenSessionService) -> Session:
    session = await service.create_session(**NAMES, session_id="s", state={"n": 0})
    for number in range(1, 4):
        await service.append_event(session, changed(n=number, **{f"k{number}": number}))
    return session


async def test_sessions_by_page_with_titles(ours: OpenSessionService) -> None:
    for number in range(5):
        await ours.create_session(**NAMES, session_id=str(number), state={"n": number, "user:u": 1})
        await ours.set_title(**NAMES, session_id=str(number), title=f"Talk {number}")
    found = []
    cursor = None
    while True:
        page = await ours.list_sessions_page(**NAMES, limit=2, cursor=cursor)
        found += [(item.session.id, item.title, item.session.state) for item in page.items]
        assert len(page.items) <= 2
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [(str(number), f"Talk {number}", {"n": number, "user:u": 1}) for number in (4, 3, 2, 1, 0)]
    listed = (await ours.list_sessions_page(app_name="shop")).items[0].session
    await ours.append_event(listed, changed(n=9))
    await ours.set_title(**NAMES, session_id="4", title="")
    assert {item.session.id: item.title for item in (await ours.list_sessions_page(**NAMES)).items}["4"] is None


async def test_a_fork_has_the_past_and_its_own_future(ours: OpenSessionService) -> None:
    session = await conversation(ours)
    fork = await ours.fork_session(**NAMES, session_id="s", at_event_id=session.events[1].id, new_session_id="f")
    assert fork.id == "f"
    assert fork.events == session.events[:2]
    assert fork.state == {"n": 2, "k1": 1, "k2": 2}
    await ours.append_event(fork, changed(n=99))
    await ours.append_event(session, changed(n=4))
    whole = await ours.fork_session(**NAMES, session_id="s")
    assert whole.events == session.events
    assert whole.state == session.state == {"n": 4, "k1": 1, "k2": 2, "k3": 3}
    with pytest.raises(AlreadyExistsError):
        await ours.fork_session(**NAMES, session_id="s", new_session_id="f")
    with pytest.raises(NotFoundError):
        await ours.fork_session(**NAMES, session_id="s", at_event_id="no")
    with pytest.raises(SessionNotFoundError):
        await ours.fork_session(**NAMES, session_id="no")


async def test_keys_are_deleted_in_their_scope(ours: OpenSessionService) -> None:
    session = await ours.create_session(**NAMES, session_id="s", state={"a": 1, "b": 2, "user:c": 3, "app:d": 4})
    await ours.delete_state_keys(**NAMES, session_id="s", keys=["a", "user:c", "app:d", "never was"])
    stored = await ours.get_session(**NAMES, session_id="s")
    assert stored is not None
    assert stored.state == {"b": 2}
    assert await ours.get_user_state(**NAMES) == {}
    await ours.append_event(stored, changed(b=3))
    assert stored.state == {"b": 3}
    with pytest.raises(SessionNotFoundError):
        await ours.delete_state_keys(**NAMES, session_id="no", keys=["a"])
    assert session.state["a"] == 1


async def test_old_sessions_go(ours: OpenSessionService) -> None:
    await conversation(ours)
    await ours.create_session(app_name="bank", user_id="ada", session_id="other")
    engine = await ours.engine()
    await database_of(engine).pool.execute("UPDATE threads SET updated_at = now() - interval '2 hours'")
    await ours.create_session(**NAMES, session_id="young")
    assert await ours.prune_sessions(app_name="shop", older_than=timedelta(hours=3)) == 0
    assert await ours.prune_sessions(app_name="shop", older_than=timedelta(hours=1)) == 1
    assert [session.id for session in (await ours.list_sessions(app_name="shop")).sessions] == ["young"]
    assert await ours.get_session(app_name="bank", user_id="ada", session_id="other") is not None


async def test_other_readers_of_the_log_understand_adk_events(ours: OpenSessionService) -> None:
    session = await ours.create_session(**NAMES, session_id="s")
    for author, text in (("user", "hello"), ("clerk", "hi there")):
        content = {"role": "user" if author == "user" else "model", "parts": [{"text": text}]}
        await ours.append_event(session, Event.model_validate({"author": author, "content": content}))
    await ours.append_event(session, changed(a=1))
    engine = await ours.engine()
    stored = await engine.sessions.get("shop", "ada", "s")
    assert stored is not None
    messages = await engine.sessions.messages(stored)
    assert [(message.role, message.content) for message in messages] == [("user", "hello"), ("assistant", "hi there")]
    events = await engine.sessions.events(stored)
    assert [event.event_type for event in events] == ["user_message", "assistant_message", "state_update"]
    assert events[0].content["parts"] == [{"text": "hello"}]
    assert (await engine.sessions.at(stored, sequence=3)).state == {"a": 1}


async def test_what_others_wrote_is_part_of_the_conversation(ours: OpenSessionService) -> None:
    await ours.create_session(**NAMES, session_id="s")
    engine = await ours.engine()
    stored = await engine.sessions.get("shop", "ada", "s")
    assert stored is not None
    await engine.sessions.append(stored, author="user", kind="user_message", text="hello")
    await engine.sessions.append(stored, author="bot", kind="assistant_message", text="hi", state={"seen": True})
    await engine.sessions.append(stored, author="bot", kind="work_plan", content={"steps": []})
    session = await ours.get_session(**NAMES, session_id="s")
    assert session is not None
    assert [(event.author, event.content.role, event.content.parts[0].text) for event in session.events] == [
        ("user", "user", "hello"),
        ("bot", "model", "hi"),
    ]
    assert session.events[1].actions.state_delta == {"seen": True}
    await ours.append_event(session, changed(a=1))


async def test_the_list_of_a_user_reads_few_rows_of_others(ours: OpenSessionService) -> None:
    for number in range(3):
        await ours.create_session(**NAMES, session_id=str(number))
    database = database_of(await ours.engine())
    async with database.connection() as connection, connection.transaction():
        # Two users: a plan for any user expects half of all sessions.
        await connection.execute(
            "INSERT INTO threads (app_name, user_id, session_id) "
            "SELECT 'shop', 'bob', n::text FROM generate_series(1, 5000) n"
        )
        await connection.execute("ANALYZE threads")
        count = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'threads'"
        before = await connection.fetchval(count)
        rows = await connection.fetch(database.queries["adk_list_sessions"], "shop", "ada")
        assert [row["user_id"] for row in rows] == ["ada"] * 3
        assert await connection.fetchval(count) - before < 100
