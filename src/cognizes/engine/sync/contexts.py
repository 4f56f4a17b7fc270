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
from cognizes.engine.sync.context_messages import ContextMessage, message_from_head, message_from_row, name_tools
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
    """Some messages of a branch, oldest first; `total` is how many stored ones it has. `has_more` says that there are
    later ones, `has_earlier` that there are earlier ones."""

    messages: list[ContextMessage]
    branch: str
    total: int
    has_more: bool = False
    has_earlier: bool = False

    @property
    def first_sequence(self) -> int | None:
        """Where to go on with `before`."""
        return next((message.sequence_num for message in self.messages if message.sequence_num), None)

    @property
    def last_sequence(self) -> int | None:
        """Where to go on with `after`."""
        return next((message.sequence_num for message in reversed(self.messages) if message.sequence_num), None)


@dataclass(frozen=True)
class FoundMessages:
    """Messages by their ids; `has_more` says that some that were asked for did not fit."""

    messages: list[ContextMessage]
    has_more: bool


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
        self,
        thread_id: str | UUID,
        *,
        branch: str | None = None,
        offset: int = 0,
        limit: int = 100,
        after: int | None = None,
        before: int | None = None,
    ) -> MessagesPage:
        """The messages of a branch, from its first one on, or right after or right before an event's sequence number.

        A page also ends at `COGNIZES_PAGE_BYTES`. The last page of the active branch ends with the messages that are
        being streamed.
        """
        thread = thread_uuid(thread_id)
        if not 1 <= limit <= _LONGEST_PAGE:
            raise InvalidInputError(f"a page has between 1 and {_LONGEST_PAGE} messages; change the limit")
        if offset < 0:
            raise InvalidInputError("an offset is not negative")
        if after is not None and before is not None:
            raise InvalidInputError("name either after or before; a page has one direction")
        context = await self._read(thread)
        name = context["branch"] if branch is None else branch
        # Before the messages: one that ends meanwhile is in one of the two, and told once.
        heads = await self._streams.heads([thread]) if name == context["branch"] else []
        page = await self._database.fetch_page(
            "read_branch_messages" if before is None else "read_branch_messages_before",
            thread,
            name,
            (after or 0) if before is None else before,
            offset,
            limit=limit,
            whole="read_branch_messages_at",
            owner=(thread,),
        )
        rows = page.rows if before is None else page.rows[::-1]
        messages = [message_from_row(row) for row in rows]
        name_tools(messages)
        if before is None and not page.has_more:
            stored = {message.id for message in messages}
            messages += [message_from_head(head) for head in heads if head.message_id not in stored]
        total = await self._database.fetch_value("count_branch_messages", thread, name)
        is_inside = offset > 0 or bool(after) if before is None else before <= context["last_sequence"]
        has_more, has_earlier = (page.has_more, is_inside) if before is None else (is_inside, page.has_more)
        return MessagesPage(messages, branch=name, total=total, has_more=has_more, has_earlier=has_earlier)

    async def messages_by_id(self, thread_id: str | UUID, ids: list[str]) -> list[ContextMessage]:
        """The messages of `find_messages`."""
        return (await self.find_messages(thread_id, ids)).messages

    async def find_messages(self, thread_id: str | UUID, ids: list[str]) -> FoundMessages:
        """Messages by their ids, in the order asked for; what is not there is left out.

        The answer also ends at `COGNIZES_PAGE_BYTES`: under `has_more`, ask again for the ids behind the last one.
        """
        if len(ids) > MAX_IDS:
            raise InvalidInputError(f"{len(ids)} ids at once are too many; ask for {MAX_IDS} at a time")
        thread = thread_uuid(thread_id)
        asked = list(dict.fromkeys(ids))
        heads = await self._streams.heads([thread])
        page = await self._database.fetch_page(
            "read_messages_by_id", thread, asked, limit=MAX_IDS, whole="read_branch_messages_at", owner=(thread,)
        )
        found = {message.id: message for message in map(message_from_row, page.rows)}
        last = max(map(asked.index, found), default=-1) if page.has_more else len(asked)
        found = {head.message_id: message_from_head(head) for head in heads} | found
        return FoundMessages([found[name] for name in asked[: last + 1] if name in found], page.has_more)

    async def _read(self, thread_id: UUID) -> asyncpg.Record:
        row = await self._database.fetch_row("read_context", thread_id)
        if row is None:
            raise NotFoundError(f"there is no context {thread_id}")
        if row["counted_to"] is not None:
            await self._database.fetch_value("save_message_count", thread_id, row["counted_to"], row["messages_to"])
        return row


def _begins_a_turn(row: asyncpg.Record) -> bool:
    return row["event_type"] in ("run_started", "user_message")
