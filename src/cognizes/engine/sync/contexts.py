"""`engine.contexts`: what a context is and where it stands, without its content; and its messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_jsonb
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.event_log import event_from_row
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.sync.context_messages import ContextMessage, message_from_head, message_from_row
from cognizes.engine.sync.context_state import RESETS, ContextState, StateFold

DESCRIPTIVE: Final = ("model_id", "mode", "system_prompt_id", "workspace_path")
"""What of a thread's metadata describes a context."""

MAX_IDS: Final = 200
_WINDOW = 64
_LARGEST_WINDOW = 1024
_LARGE_CONTENT = 16 * 1024
_LONGEST_PAGE = 1000


@dataclass(frozen=True)
class ContextMetadata:
    """What a context is, for a screen that has not loaded it yet. `last_sequence` is its newest event's number."""

    id: str
    session_id: str
    app_name: str
    user_id: str
    title: str | None
    current_state: ContextState
    active_branch_name: str
    message_count: int
    last_sequence: int
    model_id: Any
    mode: Any
    system_prompt_id: Any
    workspace_path: Any
    created_at: datetime
    updated_at: datetime
    running: tuple[str, ...] = ()
    """The runs that go on."""


@dataclass(frozen=True)
class MessagesPage:
    """Some messages of a branch, oldest first; `total` is how many stored ones it has."""

    messages: list[ContextMessage]
    branch: str
    total: int


class Contexts:
    """Reads contexts. What it costs does not grow with the conversation."""

    def __init__(self, database: Database, streams: MessageStreams) -> None:
        self._database = database
        self._streams = streams

    async def metadata(self, thread_id: str | UUID) -> ContextMetadata:
        """What a context is and where it stands."""
        thread = thread_uuid(thread_id)
        row = await self._read(thread)
        described: JsonObject = load_jsonb(row["metadata"])
        fold = await self.fold(thread, up_to=row["last_sequence"], running=row["running"])
        heads = await self._streams.heads([thread])
        return ContextMetadata(
            id=str(row["id"]),
            session_id=row["session_id"],
            app_name=row["app_name"],
            user_id=row["user_id"],
            title=row["title"],
            current_state=fold.with_streams(head.current_sequence for head in heads),
            active_branch_name=row["branch"],
            message_count=row["messages"],
            last_sequence=row["last_sequence"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
            running=tuple(row["running"]),
            **{name: described.get(name) for name in DESCRIPTIVE},
        )

    async def state(self, thread_id: str | UUID) -> ContextState:
        """Where a context stands."""
        return (await self.metadata(thread_id)).current_state

    async def fold(self, thread_id: UUID, *, up_to: int, running: Iterable[str] = ()) -> StateFold:
        """The state after an event, and what may come of it.

        The newest events tell it: it is read back to where nothing from before matters, and no further than a bound.
        `running` are the runs that go on: they may have begun before that.
        """
        window = _WINDOW
        while True:
            rows = await self._database.fetch("read_newest_events", thread_id, up_to, window, _LARGE_CONTENT)
            reset = next((place for place, row in enumerate(rows) if row["event_type"] in RESETS), None)
            if reset is not None:
                rows = rows[: reset + 1]
            elif len(rows) == window < _LARGEST_WINDOW and not any(_begins_a_turn(row) for row in rows):
                window *= 4
                continue
            fold = StateFold(runs=set(running))
            fold.apply_all(event_from_row(row) for row in reversed(rows))
            fold.sequence = up_to
            return fold

    async def messages(
        self, thread_id: str | UUID, *, branch: str | None = None, offset: int = 0, limit: int = 100
    ) -> MessagesPage:
        """The messages of a branch; the last page of the active one ends with those that are being streamed."""
        thread = thread_uuid(thread_id)
        if not 1 <= limit <= _LONGEST_PAGE:
            raise InvalidInputError(f"a page has between 1 and {_LONGEST_PAGE} messages; change the limit")
        if offset < 0:
            raise InvalidInputError("an offset is not negative")
        context = await self._read(thread)
        name = context["branch"] if branch is None else branch
        # Before the messages: one that ends meanwhile is in one of the two, and told once.
        heads = await self._streams.heads([thread]) if name == context["branch"] else []
        rows = await self._database.fetch("read_branch_messages", thread, name, offset, limit)
        messages = [message_from_row(row) for row in rows]
        if len(rows) < limit:
            stored = {message.id for message in messages}
            messages += [message_from_head(head) for head in heads if head.message_id not in stored]
        total = await self._database.fetch_value("count_branch_messages", thread, name)
        return MessagesPage(messages, branch=name, total=total)

    async def messages_by_id(self, thread_id: str | UUID, ids: list[str]) -> list[ContextMessage]:
        """Messages by their ids, in the order asked for; what is not there is left out."""
        if len(ids) > MAX_IDS:
            raise InvalidInputError(f"{len(ids)} ids at once are too many; ask for {MAX_IDS} at a time")
        thread = thread_uuid(thread_id)
        heads = await self._streams.heads([thread])
        found = {head.message_id: message_from_head(head) for head in heads if head.message_id in ids}
        for row in await self._database.fetch("read_messages_by_id", thread, ids):
            found[row["id"]] = message_from_row(row)
        return [found[name] for name in dict.fromkeys(ids) if name in found]

    async def _read(self, thread_id: UUID) -> asyncpg.Record:
        row = await self._database.fetch_row("read_context", thread_id)
        if row is None:
            raise NotFoundError(f"there is no context {thread_id}")
        if row["counted_to"] is not None:
            await self._database.fetch_value("save_message_count", thread_id, row["counted_to"], row["messages_to"])
        return row


def _begins_a_turn(row: asyncpg.Record) -> bool:
    return row["event_type"] in ("run_started", "user_message")
