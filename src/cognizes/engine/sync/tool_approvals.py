"""Tool approvals: the request to a person, and the answer, as two events of a context."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cognizes.engine.errors import ConflictError, IllegalTransitionError, NotFoundError, PermissionDeniedError
from cognizes.engine.models import Event, JsonObject, new_id
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.pulse.sessions import Sessions
from cognizes.engine.runs import Runs, WaitKind
from cognizes.engine.sync.context_state import ContextState, check_transition
from cognizes.engine.sync.contexts import Contexts

logger = logging.getLogger(__name__)

_ASKED, _ANSWERED = "decision_asked", "decision_answered"


@dataclass(frozen=True)
class ToolApproval:
    """A request to a person; `approved` is None until it is answered."""

    id: str
    tool_name: str
    tool_input: Any
    tool_call_id: str | None
    message: str | None
    run_id: str | None
    approved: bool | None
    asked_at: datetime | None


class ToolApprovals:
    """Stores requests and answers. Between them the state of the context is AwaitingToolApproval."""

    def __init__(self, sessions: Sessions, contexts: Contexts, runs: Runs) -> None:
        self._sessions = sessions
        self._contexts = contexts
        self._runs = runs

    async def ask(
        self,
        thread_id: str | UUID,
        *,
        tool_name: str,
        tool_input: Any = None,
        tool_call_id: str | None = None,
        message: str | None = None,
        run_id: str | None = None,
        approval_id: str | None = None,
    ) -> ToolApproval:
        """Store a request. The same request with the same id again is stored once."""
        thread = thread_uuid(thread_id)
        approval_id = approval_id or str(new_id())
        known = await self._sessions.log.find(thread, approval_id)
        if known is None:
            check_transition(await self._contexts.state(thread), ContextState.AWAITING_TOOL_APPROVAL)
        content: JsonObject = {
            "decision_id": approval_id,
            "tool_name": tool_name,
            "tool_input": tool_input,
            "tool_call_id": tool_call_id,
            "message": message,
        }
        event = _event(thread, approval_id, _ASKED, content, author="agent", run_id=run_id)
        await self._sessions.append_to_thread(thread, event)
        return _approval(event, approved=None)

    async def answer(
        self, thread_id: str | UUID, approval_id: str, *, approved: bool, reason: str | None = None
    ) -> ToolApproval:
        """Answer an open request. The same answer again changes nothing; another one is a conflict."""
        thread = thread_uuid(thread_id)
        asked = await self._sessions.log.find(thread, approval_id)
        if asked is None or asked.event_type != _ASKED:
            raise NotFoundError(f"there is no approval {approval_id[:80]!r} in this context")
        answer_id = f"{approval_id}/answer"
        if await self._sessions.log.find(thread, answer_id) is None and approval_id not in await self._open(thread):
            raise IllegalTransitionError(
                f"the approval {approval_id[:80]!r} is not open any more: the conversation continued without it"
            )
        content: JsonObject = {"decision_id": approval_id, "approved": approved, "reason": reason}
        event = _event(thread, answer_id, _ANSWERED, content, author="user", run_id=asked.run_id)
        await self._sessions.append_to_thread(thread, event)
        await self._wake(thread, asked, {"approved": approved, "reason": reason})
        return _approval(asked, approved=approved)

    async def _wake(self, thread: UUID, asked: Event, answer: JsonObject) -> None:
        """Signal the run that made the request: its wait for the approval's id ends, now or as soon as it waits."""
        if asked.run_id is None:
            return
        try:
            await self._runs.signal(
                asked.run_id, correlation_key=asked.id, payload=answer, thread_id=thread, may_answer=[WaitKind.HUMAN]
            )
        except (ConflictError, NotFoundError, PermissionDeniedError) as error:
            logger.debug("the run that asked for approval %s does not wait for it: %s", asked.id, error)

    async def list_open(self, thread_id: str | UUID) -> list[ToolApproval]:
        """Return the open requests, oldest first.

        Requests beyond `COGNIZES_PAGE_BYTES` are listed after earlier ones are answered.
        """
        thread = thread_uuid(thread_id)
        found = await self._sessions.log.find_page(thread, await self._open(thread))
        return [_approval(event, approved=None) for event in found.events if event.event_type == _ASKED]

    async def _open(self, thread_id: UUID) -> list[str]:
        last = (await self._contexts.metadata(thread_id)).last_sequence
        return (await self._contexts.fold(thread_id, up_to=last)).questions


def _event(thread_id: UUID, event_id: str, kind: str, content: JsonObject, *, author: str, run_id: str | None) -> Event:
    return Event(
        id=event_id,
        thread_id=str(thread_id),
        invocation_id="",
        author=author,
        event_type=kind,
        content=content,
        run_id=run_id,
    )


def _approval(asked: Event, *, approved: bool | None) -> ToolApproval:
    content = asked.content
    return ToolApproval(
        id=asked.id,
        tool_name=str(content.get("tool_name") or ""),
        tool_input=content.get("tool_input"),
        tool_call_id=content.get("tool_call_id"),
        message=content.get("message"),
        run_id=asked.run_id,
        approved=approved,
        asked_at=asked.created_at,
    )
