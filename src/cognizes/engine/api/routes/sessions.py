"""Sessions, their events, state and messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from cognizes.engine.access import Permission
from cognizes.engine.api.authorization import (
    LARGEST,
    Caller,
    CurrentEngine,
    Limit,
    OptionalSequence,
    Reach,
    Sequence,
    ThreadId,
    access,
    check_user_references,
    default_author,
    is_end_user,
    store_as_user,
)
from cognizes.engine.api.responses import CONFLICT, DocumentResponse
from cognizes.engine.api.views import (
    Appended,
    EventPage,
    Fork,
    MessagePage,
    NewEvent,
    NewSession,
    SessionChange,
    SessionPage,
    SessionView,
    StateChange,
    StateView,
    event_view,
    message_view,
    session_view,
)
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import Event, JsonObject

router = APIRouter(prefix="/api/sessions", tags=["sessions"])


@router.post("", status_code=201, response_model=SessionView, responses=CONFLICT, summary="Create a session")
@access(Reach.APP, Permission.WRITE, has_large_body=True)
async def create_session(body: NewSession, engine: CurrentEngine) -> Response:
    session = await engine.sessions.create(
        body.app_name,
        body.user_id,
        state=body.state,
        session_id=body.session_id,
        title=body.title,
        metadata=body.metadata,
    )
    return DocumentResponse(session_view(session), status_code=201)


@router.get("", response_model=SessionPage, summary="List sessions, newest activity first")
@access(Reach.APP)
async def list_sessions(
    engine: CurrentEngine,
    app_name: str,
    user_id: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
    include_state: bool = False,
) -> Response:
    """Return a page; `next_cursor` is null on the last one. `include_state` adds the states."""
    page = await engine.sessions.list(app_name, user_id, limit=limit, cursor=cursor, with_state=include_state)
    return DocumentResponse(
        {"sessions": [session_view(session) for session in page.items], "next_cursor": page.next_cursor}
    )


@router.get("/{thread_id}", response_model=SessionView, summary="Read a session")
@access(Reach.THREAD)
async def get_session(thread_id: ThreadId, engine: CurrentEngine) -> Response:
    return DocumentResponse(session_view(await engine.sessions.store.get_thread(thread_id)))


@router.patch("/{thread_id}", response_model=SessionView, summary="Change title and metadata")
@access(Reach.THREAD, Permission.WRITE)
async def change_session(thread_id: ThreadId, body: SessionChange, engine: CurrentEngine) -> Response:
    session = await engine.sessions.store.change(thread_id, title=body.title, metadata=body.metadata)
    return DocumentResponse(session_view(session))


@router.delete("/{thread_id}", status_code=204, summary="Delete a session with everything in it")
@access(Reach.THREAD, Permission.WRITE, is_audited=True)
async def delete_session(thread_id: ThreadId, engine: CurrentEngine) -> Response:
    if not await engine.sessions.store.delete_thread(thread_id):
        raise NotFoundError(f"there is no thread {thread_id}")
    return Response(status_code=204)


@router.post("/{thread_id}/fork", status_code=201, response_model=SessionView, summary="Fork a session")
@access(Reach.THREAD, Permission.WRITE)
async def fork_session(thread_id: ThreadId, engine: CurrentEngine, body: Fork | None = None) -> Response:
    """Create a session with the same history, up to an event or up to now."""
    where = body or Fork()
    source = await engine.sessions.store.get_thread(thread_id)
    fork = await engine.sessions.fork(source, at_sequence=where.at_sequence, session_id=where.session_id)
    return DocumentResponse(session_view(fork), status_code=201)


@router.post(
    "/{thread_id}/events",
    status_code=201,
    response_model=Appended,
    responses={200: {"model": Appended, "description": "The same event was stored before"}},
    summary="Append an event",
)
@access(Reach.THREAD, Permission.WRITE, has_large_body=True)
async def append_event(thread_id: ThreadId, body: NewEvent, engine: CurrentEngine, caller: Caller) -> Response:
    """Append an event. A resend with the same id and content is stored once. An end user's author is `user`."""
    event = Event(
        id=body.id or "",
        thread_id=str(thread_id),
        invocation_id=body.invocation_id or "",
        author=body.author,
        event_type=body.event_type,
        content=body.content,
        actions=body.actions,
        run_id=body.run_id,
    )
    if caller.user_id is not None and is_end_user(caller):
        store_as_user(event)
        await check_user_references(engine, thread_id, event)
    is_new = await engine.sessions.append_to_thread(thread_id, event, expected_version=body.expected_version)
    return DocumentResponse(_appended(event), status_code=201 if is_new else 200)


@router.get("/{thread_id}/events", response_model=EventPage, summary="Read events, oldest first")
@access(Reach.THREAD)
async def read_events(
    thread_id: ThreadId,
    engine: CurrentEngine,
    after: Sequence = 0,
    limit: Limit = 100,
    recent: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    before: OptionalSequence = None,
) -> Response:
    """Return the events after a sequence number, or the `recent` newest, with `before` the newest before that event.

    A page also ends at `COGNIZES_PAGE_BYTES`. `has_more`: there are events after the page; `has_earlier`: before it.
    """
    last_sequence = await _last_sequence(engine, thread_id)
    engine._database.note_sequence(thread_id, last_sequence)
    if recent is not None or before is not None:
        page = await engine._history.recent_page(thread_id, limit=recent or limit, before=before)
    else:
        page = await engine._history.read_page(thread_id, after=after, limit=limit)
    events = page.events
    newest = (events[-1].sequence_num or 0) if events else last_sequence if before is None else 0
    return DocumentResponse(
        {
            "events": [event_view(event) for event in events],
            "last_sequence": max(last_sequence, newest),
            "has_more": newest < last_sequence,
            "has_earlier": bool(events) and events[0].sequence_num != 1,
        }
    )


@router.get("/{thread_id}/state", response_model=StateView, summary="Read the current or a past state")
@access(Reach.THREAD)
async def read_state(
    thread_id: ThreadId,
    engine: CurrentEngine,
    sequence: OptionalSequence = None,
    version: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
) -> Response:
    """Return the current state, the state after an event (`sequence`), or the state at a version."""
    if sequence is None and version is None:
        session = await engine.sessions.store.get_thread(thread_id)
        return DocumentResponse(
            {"state": session.state, "version": session.version, "sequence_num": session.last_sequence}
        )
    past = await engine._past.at(thread_id, sequence=sequence, version=version)
    return DocumentResponse({"state": past.state, "version": past.version, "sequence_num": past.sequence_num})


@router.patch("/{thread_id}/state", response_model=Appended, responses=CONFLICT, summary="Change state")
@access(Reach.THREAD, Permission.WRITE, has_large_body=True)
async def change_state(thread_id: ThreadId, body: StateChange, engine: CurrentEngine, caller: Caller) -> Response:
    """Set keys in the scopes of their prefixes, as one event. Its author is the caller unless the body names one."""
    if not body.delta:
        raise InvalidInputError("delta is empty; add the keys to set")
    event = Event(
        id="",
        thread_id=str(thread_id),
        invocation_id="",
        author="user" if is_end_user(caller) else body.author or default_author(caller),
        event_type="state_update",
        actions={"state_delta": body.delta},
    )
    await engine.sessions.append_to_thread(thread_id, event, expected_version=body.expected_version)
    return DocumentResponse(_appended(event))


class SnapshotView(BaseModel):
    """The version of the stored state."""

    version: int


@router.post(
    "/{thread_id}/snapshots", status_code=201, response_model=SnapshotView, summary="Store a snapshot of the state"
)
@access(Reach.THREAD, Permission.WRITE)
async def take_snapshot(thread_id: ThreadId, engine: CurrentEngine) -> Response:
    """Time travel can start at the snapshot."""
    return DocumentResponse({"version": await engine.sessions.time_travel.snapshot(thread_id)}, status_code=201)


@router.get("/{thread_id}/messages", response_model=MessagePage, summary="Read messages, oldest first")
@access(Reach.THREAD)
async def read_messages(
    thread_id: ThreadId,
    engine: CurrentEngine,
    after: Sequence = 0,
    at_sequence: OptionalSequence = None,
    limit: Limit = 100,
) -> Response:
    """Return a page of messages; `at_sequence` shows the conversation as it was after that event.

    A page also ends at `COGNIZES_PAGE_BYTES`; if `has_more`, continue `after` the `sequence_num` of its last message.
    """
    await _last_sequence(engine, thread_id)
    page = await engine.sessions.message_log.read_page(thread_id, after=after, up_to=at_sequence, limit=limit)
    return DocumentResponse(
        {"messages": [message_view(message) for message in page.messages], "has_more": page.has_more}
    )


async def _last_sequence(engine: CurrentEngine, thread_id: ThreadId) -> int:
    head = await engine._database.fetch_row("read_thread_head", thread_id)
    if head is None:
        raise NotFoundError(f"there is no thread {thread_id}")
    last: int = head["last_sequence"]
    return last


def _appended(event: Event) -> JsonObject:
    return {
        "id": event.id,
        "sequence_num": event.sequence_num,
        "version": event.version,
        "created_at": event.created_at.isoformat() if event.created_at else None,
    }
