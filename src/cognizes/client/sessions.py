"""Sessions of a remote server: events, state, timeline, forks, branches, approvals and attachments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar
from uuid import uuid4

from cachetools import LRUCache
from pydantic import BaseModel, JsonValue

from cognizes.client.models import (
    Appended,
    Approval,
    ApprovalList,
    Attachment,
    AttachmentPage,
    Branch,
    BranchList,
    Event,
    EventPage,
    JsonObject,
    Message,
    MessagePage,
    Session,
    SessionPage,
    State,
    TimelinePage,
)
from cognizes.client.transport import Query, Transport, parse

_Model = TypeVar("_Model", bound=BaseModel)

_THREADS_KEPT = 1000
_SESSIONS = "/api/sessions"
_SESSION = "/api/sessions/{thread_id}"
_EVENTS = "/api/sessions/{thread_id}/events"
_STATE = "/api/sessions/{thread_id}/state"
_ATTACHMENTS = "/api/sessions/{thread_id}/attachments"
_BRANCHES = "/contexts/{context_id}/branches"
_APPROVALS = "/contexts/{context_id}/tool-approvals"
_TIMELINE = "/conversations/{context_id}/messages"

DELETE: JsonValue = {"$delete": True}
"""As a value of a state delta, it deletes the key."""


class Sessions:
    """The sessions of a server, as `client.sessions`. `thread_id` is the id of a session."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._seen: LRUCache[str, int] = LRUCache(_THREADS_KEPT)

    async def _read(self, model: type[_Model], path: str, thread_id: str, query: Query | None = None) -> _Model:
        """Read from a session. A server that reads from replicas answers with no less than this client has appended."""
        seen = self._seen.get(thread_id)
        headers = None if seen is None else {"X-Seen-Sequence": str(seen)}
        return await self._transport.get(model, path, thread_id, query=query, headers=headers)

    def _note(self, thread_id: str, appended: Appended) -> Appended:
        self._seen[thread_id] = max(appended.sequence_num, self._seen.get(thread_id, 0))
        return appended

    async def create(
        self,
        app_name: str,
        user_id: str,
        *,
        session_id: str | None = None,
        state: Mapping[str, JsonValue] | None = None,
        title: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> Session:
        """Create a session. A prefix of a state key is its scope: `user:`, `app:`, or none for the session.

        After a lost answer the call is not repeated: `ServerUnavailableError`. With a `session_id` of the caller, a
        second call is then a `ConflictError` if the first one was executed.
        """
        body: JsonObject = {"app_name": app_name, "user_id": user_id}
        if session_id is not None:
            body["session_id"] = session_id
        if title is not None:
            body["title"] = title
        if state is not None:
            body["state"] = dict(state)
        if metadata is not None:
            body["metadata"] = dict(metadata)
        return await self._transport.post(Session, _SESSIONS, body=body)

    async def get(self, thread_id: str) -> Session:
        return await self._read(Session, _SESSION, thread_id)

    async def list(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        include_state: bool = False,
    ) -> SessionPage:
        """Return a page of sessions, newest activity first; `each` reads all pages."""
        query = {"app_name": app_name, "user_id": user_id, "limit": limit, "cursor": cursor}
        return await self._transport.get(SessionPage, _SESSIONS, query={**query, "include_state": include_state})

    async def each(
        self, app_name: str, user_id: str | None = None, *, include_state: bool = False
    ) -> AsyncIterator[Session]:
        """Yield all sessions of an app or of one of its users, newest activity first."""
        cursor: str | None = None
        while True:
            page = await self.list(app_name, user_id, cursor=cursor, include_state=include_state)
            for session in page.sessions:
                yield session
            if (cursor := page.next_cursor) is None:
                return

    async def change(
        self, thread_id: str, *, title: str | None = None, metadata: Mapping[str, JsonValue] | None = None
    ) -> Session:
        """Change the title (empty removes it) and merge metadata."""
        body: JsonObject = {"title": title, "metadata": dict(metadata) if metadata is not None else None}
        return parse(Session, await self._transport.call("PATCH", _SESSION, thread_id, body=body, repeatable=True))

    async def delete(self, thread_id: str) -> None:
        """Delete a session with everything in it."""
        await self._transport.delete(_SESSION, thread_id)

    async def fork(self, thread_id: str, *, at_sequence: int | None = None, session_id: str | None = None) -> Session:
        """Create a session with the same history, up to an event or up to now."""
        body: JsonObject = {"at_sequence": at_sequence, "session_id": session_id}
        return await self._transport.post(Session, "/api/sessions/{thread_id}/fork", thread_id, body=body)

    async def append(
        self,
        thread_id: str,
        event_type: str,
        *,
        author: str,
        text: str | None = None,
        content: Mapping[str, JsonValue] | None = None,
        state: Mapping[str, JsonValue] | None = None,
        run_id: str | None = None,
        event_id: str | None = None,
        expected_version: int | None = None,
    ) -> Appended:
        """Append an event, with `text` or `content`; `state` is a delta of the state, stored in the same transaction.

        The event is stored once, however often it is sent: its id is chosen before the first attempt. With
        `expected_version`, a state that has another version is a `ConflictError`.
        """
        if text is not None and content is not None:
            raise ValueError("give either text or content")
        body: JsonObject = {
            "id": event_id or str(uuid4()),
            "author": author,
            "event_type": event_type,
            "content": {"text": text} if text is not None else dict(content or {}),
            "actions": {"state_delta": dict(state)} if state else {},
            "run_id": run_id,
            "expected_version": expected_version,
        }
        return self._note(
            thread_id, await self._transport.post(Appended, _EVENTS, thread_id, body=body, repeatable=True)
        )

    async def events(
        self, thread_id: str, *, after: int = 0, limit: int = 100, recent: int | None = None, before: int | None = None
    ) -> EventPage:
        """Return the events after a sequence number, or the `recent` newest, with `before` those before it."""
        query = {"after": after, "limit": limit, "recent": recent, "before": before}
        return await self._read(EventPage, _EVENTS, thread_id, query)

    async def each_event(self, thread_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield all stored events after a sequence number, oldest first."""
        has_more = True
        while has_more:
            page = await self.events(thread_id, after=after)
            for event in page.events:
                yield event
                after = event.sequence_num
            has_more = page.has_more and bool(page.events)

    async def messages(
        self, thread_id: str, *, after: int = 0, at_sequence: int | None = None, limit: int = 100
    ) -> MessagePage:
        """Return messages, oldest first; `at_sequence` shows the conversation as it was after that event."""
        query = {"after": after, "at_sequence": at_sequence, "limit": limit}
        return await self._read(MessagePage, "/api/sessions/{thread_id}/messages", thread_id, query)

    async def each_message(self, thread_id: str, *, after: int = 0) -> AsyncIterator[Message]:
        """Yield all messages after a sequence number, oldest first."""
        has_more = True
        while has_more:
            page = await self.messages(thread_id, after=after)
            for message in page.messages:
                yield message
                after = message.sequence_num
            has_more = page.has_more and bool(page.messages)

    async def timeline(
        self,
        thread_id: str,
        *,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
        branch: str | None = None,
    ) -> TimelinePage:
        """Return the newest timeline items, or those before or after an event."""
        query = {"limit": limit, "before": before, "after": after, "branch": branch}
        return await self._read(TimelinePage, _TIMELINE, thread_id, query)

    async def state(self, thread_id: str, *, sequence: int | None = None, version: int | None = None) -> State:
        """Return the current state, the state after an event (`sequence`), or the state at a version."""
        return await self._read(State, _STATE, thread_id, {"sequence": sequence, "version": version})

    async def change_state(
        self,
        thread_id: str,
        delta: Mapping[str, JsonValue],
        *,
        expected_version: int | None = None,
        author: str | None = None,
    ) -> Appended:
        """Set keys in the scopes of their prefixes, as one event.

        The call is not repeated after a lost answer; `append(..., state=...)` is.
        """
        body: JsonObject = {"delta": dict(delta), "expected_version": expected_version, "author": author}
        return self._note(thread_id, parse(Appended, await self._transport.call("PATCH", _STATE, thread_id, body=body)))

    async def attach(
        self, thread_id: str, data: bytes, *, filename: str = "", mime_type: str = "application/octet-stream"
    ) -> Attachment:
        """Store a file of the session; `part` of the answer refers to it in an AG-UI message."""
        answer = await self._transport.call(
            "POST",
            _ATTACHMENTS,
            thread_id,
            query={"filename": filename},
            content=data,
            headers={"Content-Type": mime_type},
        )
        return parse(Attachment, answer)

    async def attachments(self, thread_id: str, *, limit: int = 100, cursor: str | None = None) -> AttachmentPage:
        return await self._transport.get(
            AttachmentPage, _ATTACHMENTS, thread_id, query={"limit": limit, "cursor": cursor}
        )

    async def download(self, thread_id: str, attachment_id: str) -> bytes:
        """Return the bytes of an attachment."""
        path = "/api/sessions/{thread_id}/attachments/{attachment_id}"
        return (await self._transport.call("GET", path, thread_id, attachment_id, repeatable=True)).content

    async def branches(self, thread_id: str) -> Sequence[Branch]:
        """Return the branches of a session; one of them is active."""
        return (await self._read(BranchList, _BRANCHES, thread_id)).branches

    async def create_branch(self, thread_id: str, name: str, *, at_sequence: int | None = None) -> Branch:
        """Create a branch after an event, or at the newest one. The active branch stays active."""
        body: JsonObject = {"name": name, "at_sequence": at_sequence}
        return await self._transport.post(Branch, _BRANCHES, thread_id, body=body)

    async def switch_branch(self, thread_id: str, name: str) -> Branch:
        """Make a branch active: later events follow its tip, and the state is the state at its tip."""
        path = "/contexts/{context_id}/branches/active"
        return parse(Branch, await self._transport.call("PUT", path, thread_id, body={"name": name}, repeatable=True))

    async def branch_state(self, thread_id: str, name: str) -> State:
        """Return the state at the tip of a branch."""
        path = "/contexts/{context_id}/branches/{name}/state"
        return await self._transport.get(State, path, thread_id, name)

    async def delete_branch(self, thread_id: str, name: str) -> None:
        """Hide a branch; its events stay. `ConflictError` for `main`, the active branch and a branch with forks."""
        await self._transport.delete("/contexts/{context_id}/branches/{name}", thread_id, name)

    async def approvals(self, thread_id: str) -> Sequence[Approval]:
        """Return the tool calls that wait for the approval of a person."""
        return (await self._read(ApprovalList, _APPROVALS, thread_id)).approvals

    async def ask_approval(
        self,
        thread_id: str,
        tool_name: str,
        tool_input: JsonValue = None,
        *,
        approval_id: str | None = None,
        tool_call_id: str | None = None,
        message: str | None = None,
        run_id: str | None = None,
    ) -> Approval:
        """Ask a person to approve a tool call. The answer is an event of the session."""
        body: JsonObject = {
            "tool_name": tool_name,
            "tool_input": tool_input,
            "approval_id": approval_id or str(uuid4()),
            "tool_call_id": tool_call_id,
            "message": message,
            "run_id": run_id,
        }
        return await self._transport.post(Approval, _APPROVALS, thread_id, body=body)

    async def answer_approval(
        self, thread_id: str, approval_id: str, *, approved: bool, reason: str | None = None
    ) -> Approval:
        """Approve or deny a tool call. The same answer again changes nothing; another one is a `ConflictError`."""
        path = "/contexts/{context_id}/tool-approvals/{approval_id}"
        body: JsonObject = {"approved": approved, "reason": reason}
        return await self._transport.post(Approval, path, thread_id, approval_id, body=body, repeatable=True)
