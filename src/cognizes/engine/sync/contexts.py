"""`engine.contexts`: metadata, derived state and messages of contexts, in the format of seed 003.

`read_llm_context` builds the input of a model: the newest messages that fit, tool calls with their results.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json, load_json, load_jsonb, unescape_text
from cognizes.engine.database.replicas import ReadDatabase
from cognizes.engine.errors import DatabaseUnavailableError, InvalidInputError, NotFoundError, PoolTimeoutError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import event_from_row, message_role, read_event_page
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.streams.chunks import StreamHead, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams
from cognizes.engine.sync.context_state import RESETS, ContextState, StateFold
from cognizes.engine.timeline.event_reading import (
    Call,
    Question,
    Result,
    Text,
    is_partial,
    read_parts,
    unconfirmed_calls,
)
from cognizes.engine.timeline.timeline import END_OF_THREAD

logger = logging.getLogger(__name__)

DESCRIPTIVE: Final = ("model_id", "mode", "system_prompt_id", "workspace_path")
"""The keys of a thread's metadata that describe a context."""
MAX_IDS: Final = 200
_WINDOW = 64
_MAX_WINDOW = 1024
_LARGE_CONTENT = 16 * 1024
_MAX_PAGE = 1000
_TURN_STARTS = frozenset({"run_started", "user_message"})
_KINDS = [
    "user_message", "assistant_message", "system_message", "message", "act", "tool_call", "observe", "tool_result",
]  # fmt: skip
_PAGE = 100
_FRAMING_TOKENS = 4


@dataclass(frozen=True)
class ContextMetadata:
    """The properties of a context without its messages. `last_sequence` is the number of its newest event."""

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
    """The ids of active runs."""


@dataclass(frozen=True)
class ContextMessage:
    """A message. One that is being streamed has no content: clients pull its chunks. `final_sequence` is the number of
    the last chunk of a streamed message."""

    id: str
    role: str
    content: list[JsonObject]
    tool_calls: list[JsonObject] | None
    tool_result: JsonObject | None
    message_type: str
    status: StreamStatus
    sequence_num: int | None
    final_sequence: int | None
    created_at: datetime | None

    @property
    def is_finished(self) -> bool:
        return self.status is not StreamStatus.STREAMING


@dataclass(frozen=True)
class MessagesPage:
    """A page of messages of a branch, oldest first; `total` is the number of its stored messages. `has_more` means that
    later messages exist, `has_earlier` that earlier ones exist."""

    messages: list[ContextMessage]
    branch: str
    total: int
    has_more: bool = False
    has_earlier: bool = False

    @property
    def first_sequence(self) -> int | None:
        return next((message.sequence_num for message in self.messages if message.sequence_num), None)

    @property
    def last_sequence(self) -> int | None:
        return next((message.sequence_num for message in reversed(self.messages) if message.sequence_num), None)


@dataclass(frozen=True)
class FoundMessages:
    """Messages by id; `has_more` means that some did not fit."""

    messages: list[ContextMessage]
    has_more: bool


class Contexts:
    """Reads contexts. The cost does not depend on the length of the conversation."""

    def __init__(self, database: Database, streams: MessageStreams, *, reads: ReadDatabase) -> None:
        self._database = database
        self._reads = reads
        self._streams = streams

    async def metadata(self, thread_id: str | UUID) -> ContextMetadata:
        thread = thread_uuid(thread_id)
        row = await self._read(thread, self._database)
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
        return (await self.metadata(thread_id)).current_state

    async def llm_context(self, thread_id: str | UUID, *, max_tokens: int, branch: str | None = None) -> LlmContext:
        """Return the newest messages within `max_tokens` in the format of chat models; see `read_llm_context`."""
        return await read_llm_context(self._reads, thread_id, max_tokens=max_tokens, branch=branch)

    async def fold(self, thread_id: UUID, *, up_to: int, running: Iterable[str] = ()) -> StateFold:
        """Return the state after an event, ready to apply further events.

        It is computed from the newest events, back to one that resets the state, at most 1024. `running` are the
        active runs, which may have started before those events.
        """
        window = _WINDOW
        while True:
            rows = await self._database.fetch("read_newest_events", thread_id, up_to, window, _LARGE_CONTENT)
            reset = next((place for place, row in enumerate(rows) if row["event_type"] in RESETS), None)
            if reset is not None:
                rows = rows[: reset + 1]
            elif len(rows) == window < _MAX_WINDOW and _TURN_STARTS.isdisjoint(row["event_type"] for row in rows):
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
        """Read a page of messages of a branch: from an offset, or right after or right before a sequence number.

        A page also ends at `COGNIZES_PAGE_BYTES`. The last page of the active branch includes the messages that are
        being streamed.
        """
        thread = thread_uuid(thread_id)
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidInputError(f"invalid limit {limit}; it must be between 1 and {_MAX_PAGE}")
        if offset < 0:
            raise InvalidInputError(f"invalid offset {offset}; it must not be negative")
        if after is not None and before is not None:
            raise InvalidInputError("give either after or before, not both")
        # Read before the messages: one that ends between the two reads is in at least one of them.
        heads = await self._streams.heads([thread])
        await self._reads.catch_up(thread)
        context = await self._read(thread, self._reads)
        name = context["branch"] if branch is None else branch
        page = await self._reads.fetch_page(
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
            streamed = heads if name == context["branch"] else []
            messages += [message_from_head(head) for head in streamed if head.message_id not in stored]
        total = await self._reads.fetch_value("count_branch_messages", thread, name)
        is_inside = offset > 0 or bool(after) if before is None else before <= context["last_sequence"]
        has_more, has_earlier = (page.has_more, is_inside) if before is None else (is_inside, page.has_more)
        return MessagesPage(messages, branch=name, total=total, has_more=has_more, has_earlier=has_earlier)

    async def messages_by_id(self, thread_id: str | UUID, ids: list[str]) -> list[ContextMessage]:
        return (await self.find_messages(thread_id, ids)).messages

    async def find_messages(self, thread_id: str | UUID, ids: list[str]) -> FoundMessages:
        """Read messages by id, in the order of the ids; ids that do not exist are skipped.

        The result also ends at `COGNIZES_PAGE_BYTES`: if `has_more`, request the ids after the last returned one.
        """
        if len(ids) > MAX_IDS:
            raise InvalidInputError(f"{len(ids)} ids are too many; request at most {MAX_IDS} at a time")
        thread = thread_uuid(thread_id)
        wanted = list(dict.fromkeys(ids))
        heads = await self._streams.heads([thread])
        await self._reads.catch_up(thread)
        page = await self._reads.fetch_page(
            "read_messages_by_id", thread, wanted, limit=MAX_IDS, whole="read_branch_messages_at", owner=(thread,)
        )
        found = {message.id: message for message in map(message_from_row, page.rows)}
        last = max(map(wanted.index, found), default=-1) if page.has_more else len(wanted)
        found = {head.message_id: message_from_head(head) for head in heads} | found
        return FoundMessages([found[name] for name in wanted[: last + 1] if name in found], page.has_more)

    async def _read(self, thread_id: UUID, database: Database) -> asyncpg.Record:
        row = await database.fetch_row("read_context", thread_id)
        if row is None:
            raise NotFoundError(f"there is no context {thread_id}")
        self._database.note_sequence(thread_id, row["last_sequence"])
        if row["counted_to"] is not None:
            try:
                await self._database.fetch_value("save_message_count", thread_id, row["counted_to"], row["messages_to"])
            except (DatabaseUnavailableError, PoolTimeoutError) as error:
                # A later reader counts again. A standby answers reads and stores nothing.
                logger.debug("the number of messages of context %s is not stored: %s", thread_id, error)
        return row


def message_from_row(row: asyncpg.Record) -> ContextMessage:
    """Read a stored message, or a tool call or result without text."""
    text = row["content"]
    content: list[JsonObject] = [] if text is None else [{"type": "text", "text": unescape_text(text)}]
    calls: list[JsonObject] = []
    result: JsonObject | None = None
    if row["document"] is not None:
        event = Event(row["event_id"], "", "", row["author"], row["event_type"], load_json(row["document"]))
        own_parts = event.content.get("content")
        if isinstance(own_parts, list) and all(isinstance(part, dict) for part in own_parts):
            content = own_parts
        calls, result = _tools(event)
    is_call = row["event_type"] in ("act", "tool_call")
    return ContextMessage(
        id=row["event_id"] if row["id"] is None else row["id"],
        role=row["role"] or ("assistant" if is_call else "tool"),
        content=content,
        tool_calls=calls or None,
        tool_result=result,
        message_type="tool_result" if result else "tool_call" if calls else "text",
        status=StreamStatus(row["status"] or StreamStatus.COMPLETED),
        sequence_num=row["sequence_num"],
        final_sequence=row["final_sequence"],
        created_at=row["created_at"],
    )


def name_tools(messages: Iterable[ContextMessage]) -> None:
    """Fill in the tool names of results whose calls are among these messages."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["name"] for call in message.tool_calls or () if call["name"]}
        if message.tool_result is not None and message.tool_result["tool_name"] is None:
            message.tool_result["tool_name"] = names.get(message.tool_result["tool_call_id"])


def message_from_head(head: StreamHead) -> ContextMessage:
    return ContextMessage(
        id=head.message_id,
        role=head.role,
        content=[],
        tool_calls=None,
        tool_result=None,
        message_type="text",
        status=head.status,
        sequence_num=None,
        final_sequence=None,
        created_at=None,
    )


def _tools(event: Event) -> tuple[list[JsonObject], JsonObject | None]:
    calls: list[JsonObject] = []
    result: JsonObject | None = None
    for part in read_parts(event):
        if isinstance(part, Call | Question):
            calls.append({"id": part.id, "name": part.name, "arguments": part.arguments})
        elif isinstance(part, Result) and result is None:
            result = {
                "tool_call_id": part.call_id,
                "tool_name": part.name or None,
                "content": part.content,
                "is_error": part.is_error,
            }
    return calls, result


@dataclass(frozen=True)
class LlmContext:
    """Messages in the format of chat models, oldest first, and an estimate of their tokens."""

    messages: list[JsonObject]
    estimated_tokens: int
    is_truncated: bool


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: one per four ASCII characters, one per other character."""
    plain = sum(map(str.isascii, text)) if not text.isascii() else len(text)
    return math.ceil(plain / 4) + len(text) - plain


@dataclass
class _Unit:
    """The unit of truncation: a message, or tool calls with all their results."""

    messages: list[JsonObject] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(_FRAMING_TOKENS + estimate_tokens(_text(message)) for message in self.messages)


async def read_llm_context(
    database: Database, thread_id: str | UUID, *, max_tokens: int, branch: str | None = None
) -> LlmContext:
    """Return the newest messages of a branch within `max_tokens`, from at most `COGNIZES_PAGE_BYTES` of events.

    Calls without results and results without calls are omitted, because models refuse both.
    """
    thread = thread_uuid(thread_id)
    if max_tokens < 1:
        raise InvalidInputError(f"invalid max_tokens {max_tokens}; it must be at least 1")
    newest_first: list[Event] = []
    before = END_OF_THREAD
    room = database.page_bytes
    size = 0
    next_check = max_tokens
    while True:
        page = await read_event_page(
            database, "read_timeline_before", thread, branch, 0, before, _KINDS, limit=_PAGE, max_bytes=room
        )
        newest_first += page.events
        size += page.size
        room -= page.size
        has_ended = not page.has_more or not page.events
        before = newest_first[-1].sequence_num or 0 if newest_first else before
        if not has_ended and room > 0 and size < next_check:
            # A token has at least one byte: these events cannot exceed the limit yet.
            continue
        units = list(_units(reversed(newest_first)))
        # The first part of the oldest unit may be on the next page.
        if has_ended or room <= 0 or sum(unit.tokens for unit in units[1:]) > max_tokens:
            break
        next_check = 2 * size
    if not newest_first and not await database.fetch_value("thread_exists", thread):
        raise NotFoundError(f"there is no context {thread_id}")
    return _fit(units, max_tokens, is_all=has_ended)


def _fit(units: list[_Unit], max_tokens: int, *, is_all: bool) -> LlmContext:
    kept: list[_Unit] = []
    tokens = 0
    for unit in reversed(units):
        if tokens + unit.tokens > max_tokens:
            break
        tokens += unit.tokens
        kept.append(unit)
    messages = [message for unit in reversed(kept) for message in unit.messages]
    return LlmContext(messages, tokens, is_truncated=len(kept) < len(units) or not is_all)


def _units(events: Iterator[Event]) -> Iterator[_Unit]:
    """Group messages into units. Messages between calls and their results follow the unit of the calls."""
    open_calls: _OpenCalls | None = None
    for event in events:
        if is_partial(event):
            continue
        for message in _messages(event):
            if message.get("tool_calls"):
                if open_calls is not None and open_calls.merge(message):
                    continue
                if open_calls is not None:
                    yield from open_calls.units()
                open_calls = _OpenCalls(message)
            elif message["role"] == "tool":
                if open_calls is not None:
                    open_calls.add_result(message)
            elif open_calls is not None and not open_calls.is_answered:
                open_calls.following.append(message)
            else:
                if open_calls is not None:
                    yield from open_calls.units()
                    open_calls = None
                yield _Unit([message])
    if open_calls is not None:
        yield from open_calls.units()


class _OpenCalls:
    def __init__(self, message: JsonObject) -> None:
        self._message = message
        self._results: dict[str, JsonObject] = {}
        self._calls = [call["id"] for call in message["tool_calls"]]
        self.following: list[JsonObject] = []

    @property
    def is_answered(self) -> bool:
        return len(self._results) == len(self._calls)

    def merge(self, message: JsonObject) -> bool:
        """Add parallel calls that were stored as separate events; return False if they are not parallel."""
        if self.is_answered or self.following or message["content"]:
            return False
        self._message = self._message | {"tool_calls": self._message["tool_calls"] + message["tool_calls"]}
        self._calls += [call["id"] for call in message["tool_calls"]]
        return True

    def add_result(self, result: JsonObject) -> None:
        if result["tool_call_id"] in self._calls:
            self._results[result["tool_call_id"]] = result

    def units(self) -> Iterator[_Unit]:
        answered = [call for call in self._message["tool_calls"] if call["id"] in self._results]
        if answered:
            yield _Unit([self._message | {"tool_calls": answered}, *(self._results[call["id"]] for call in answered)])
        elif self._message["content"]:
            yield _Unit([{key: value for key, value in self._message.items() if key != "tool_calls"}])
        for message in self.following:
            yield _Unit([message])


def _messages(event: Event) -> Iterator[JsonObject]:
    """Return the messages of an event: one with text and calls, and one per result."""
    text = ""
    calls: list[JsonObject] = []
    unconfirmed = unconfirmed_calls(event)
    for part in read_parts(event):
        if isinstance(part, Text) and not part.is_thought:
            text += part.text
        elif isinstance(part, Call):
            function = {"name": part.name, "arguments": dump_json(part.arguments)}
            calls.append({"id": part.id, "type": "function", "function": function})
        elif isinstance(part, Result) and part.call_id not in unconfirmed:
            content = part.content if isinstance(part.content, str) else dump_json(part.content)
            yield {"role": "tool", "tool_call_id": part.call_id, "content": content}
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": _role(event), "content": text}


def _role(event: Event) -> str:
    if "adk" in event.content:
        return "user" if event.author == "user" else "assistant"
    return message_role(event) or "assistant"


def _text(message: JsonObject) -> str:
    calls = "".join(call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ()))
    return (message["content"] or "") + calls
