"""The timeline of a conversation: its stored events as ordered items in the format of seed 002."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import message_role, read_event_page
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.timeline.event_kinds import (
    ASSISTANT_MESSAGE,
    SHOWN_KINDS,
    THOUGHT,
    TOOL_CALL,
    TOOL_RESULT,
    USER_MESSAGE,
)
from cognizes.engine.timeline.event_reading import (
    Call,
    Part,
    Result,
    Text,
    client_history_of,
    is_partial,
    media_of,
    read_parts,
    unconfirmed_calls,
)

END_OF_THREAD = 2**63 - 1
_MAX_PAGE = 10_000
_LOOK_BACK = 200
_CALLS = ["act", "tool_call", "assistant_message"]
_MESSAGES = (USER_MESSAGE, ASSISTANT_MESSAGE, "message")
_ID_PREFIX = {
    USER_MESSAGE: USER_MESSAGE,
    ASSISTANT_MESSAGE: ASSISTANT_MESSAGE,
    THOUGHT: "thought",
    TOOL_CALL: "act",
    TOOL_RESULT: "observe",
}


@dataclass(frozen=True)
class TimelinePage:
    """A page of items, oldest first. `has_more` refers to the direction of paging."""

    items: list[JsonObject] = field(default_factory=list)
    has_more: bool = False

    @property
    def first_sequence(self) -> int | None:
        return self.items[0]["sequenceNumber"] if self.items else None

    @property
    def last_sequence(self) -> int | None:
        return self.items[-1]["sequenceNumber"] if self.items else None


class Timeline:
    """Reads timelines. The cost of a page does not depend on the length of the conversation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(
        self,
        thread_id: str | UUID,
        *,
        limit: int = 100,
        before: int | None = None,
        after: int | None = None,
        branch: str | None = None,
    ) -> TimelinePage:
        """Read the newest `limit` items, or those right before or right after a sequence number.

        With both numbers, read from `after` towards `before`. The items of one event are never split: a page is
        shorter if they do not fit, and longer only if its single event has more than `limit` items. A page also ends
        at `COGNIZES_PAGE_BYTES` of events. `branch` defaults to the active one.
        """
        thread = thread_uuid(thread_id)
        _check(limit, before, after)
        query = "read_timeline_before" if after is None else "read_timeline_after"
        cursor = _Cursor(low=after or 0, high=END_OF_THREAD if before is None else before, is_forward=after is not None)
        collected = _ItemGroups(limit)
        room = self._database.page_bytes
        is_done = False
        while not is_done:
            page = await read_event_page(
                self._database,
                query,
                thread,
                branch,
                cursor.low,
                cursor.high,
                list(SHOWN_KINDS),
                limit=limit + 1,
                max_bytes=room,
            )
            for event in page.events:
                cursor.move_to(event.sequence_num or 0)
                if not collected.add(items_of(event)):
                    break
            # Events without items do not end a page, however large they are.
            if collected.groups and page.has_more:
                room -= page.size
                collected.is_full = collected.is_full or room <= 0 or len(page.events) <= limit
            is_done = collected.is_full or not page.has_more or not page.events
        if not collected.groups and not await self._database.fetch_value("thread_exists", thread):
            raise NotFoundError(f"there is no conversation {thread_id}")
        items = collected.in_order(is_forward=cursor.is_forward)
        await self._name_tools(thread, branch, items)
        return TimelinePage(items, has_more=collected.is_full)

    async def _name_tools(self, thread_id: UUID, branch: str | None, items: list[JsonObject]) -> None:
        """Fill in the tool names of results from their calls, on this page or shortly before it."""
        names = _names(items)
        unnamed = [item for item in items if item["type"] == TOOL_RESULT and item["toolName"] is None]
        if any(item["toolCallId"] not in names for item in unnamed):
            first = unnamed[0]["sequenceNumber"]
            low = max(first - _LOOK_BACK, 0)
            earlier = await read_event_page(
                self._database, "read_timeline_before", thread_id, branch, low, first, _CALLS, limit=_LOOK_BACK
            )
            names = _names(item for event in earlier.events for item in items_of(event)) | names
        for item in unnamed:
            item["toolName"] = names.get(item["toolCallId"])


@dataclass
class _Cursor:
    """The range of sequence numbers that has not been read."""

    low: int
    high: int
    is_forward: bool

    def move_to(self, sequence: int) -> None:
        if self.is_forward:
            self.low = sequence
        else:
            self.high = sequence


class _ItemGroups:
    def __init__(self, limit: int) -> None:
        self._room = limit
        self.groups: list[list[JsonObject]] = []
        self.is_full = False

    def add(self, items: list[JsonObject]) -> bool:
        """Add the items of an event; return False if they do not fit."""
        if not items:
            return True
        if len(items) > self._room and self.groups:
            self.is_full = True
            return False
        self._room -= len(items)
        self.groups.append(items)
        return True

    def in_order(self, *, is_forward: bool) -> list[JsonObject]:
        groups = self.groups if is_forward else reversed(self.groups)
        return [item for group in groups for item in group]


def _names(items: Iterable[JsonObject]) -> dict[str, str]:
    return {item["toolCallId"]: item["toolName"] for item in items if item["type"] == TOOL_CALL and item["toolName"]}


def _check(limit: int, before: int | None, after: int | None) -> None:
    if not 1 <= limit <= _MAX_PAGE:
        raise InvalidInputError(f"invalid limit {limit}; it must be between 1 and {_MAX_PAGE}")
    if min(before or 0, after or 0) < 0:
        raise InvalidInputError("before and after must not be negative")


def items_of(event: Event) -> list[JsonObject]:
    """Return the items of an event, one per part.

    Adjacent text parts become one item. Blank thoughts, questions to a person, and results that only announce a
    required confirmation have no item.
    """
    if is_partial(event):
        return []
    items = list(_items(event))
    _assign_ids(event, items)
    return items


def _items(event: Event) -> Iterator[JsonObject]:
    parts = list(read_parts(event))
    if not parts and (content := _content_without_text(event)) is not None:
        # The data of media is not part of a timeline; `attachments` lists them.
        yield _item(event, _message_kind(event), content="" if media_of(event) else content)
        return
    unconfirmed = unconfirmed_calls(event)
    for (is_text, is_thought), group in groupby(parts, key=_text_kind):
        if is_text:
            text = "".join(part.text for part in group if isinstance(part, Text))
            kind = THOUGHT if is_thought else _message_kind(event)
            if kind is not None and (text.strip() or kind != THOUGHT):
                yield _item(event, kind, content=text)
            continue
        for part in group:
            if isinstance(part, Call):
                yield _item(event, TOOL_CALL, toolCallId=part.id, toolName=part.name or None, toolInput=part.arguments)
            elif isinstance(part, Result) and part.call_id not in unconfirmed:
                yield _item(
                    event,
                    TOOL_RESULT,
                    toolCallId=part.call_id,
                    toolName=part.name or None,
                    toolOutput=part.content,
                    isError=part.is_error,
                )


def _text_kind(part: Part) -> tuple[bool, bool]:
    return isinstance(part, Text), isinstance(part, Text) and part.is_thought


def _message_kind(event: Event) -> str | None:
    """Return the kind of item of a text; None for a `message` of the system or a tool, which only the model reads."""
    if event.author == "user" and "adk" in event.content:
        return USER_MESSAGE
    role = message_role(event)
    if role == "user":
        return USER_MESSAGE
    return None if role in ("system", "tool") and "adk" not in event.content else ASSISTANT_MESSAGE


def _content_without_text(event: Event) -> object:
    """Return the content of a message without text: empty, or parts such as images."""
    if "adk" in event.content:
        return "" if media_of(event) else None
    if _message_kind(event) is None or event.event_type not in _MESSAGES:
        return None
    for key in ("text", "content"):
        if key in event.content:
            return event.content[key]
    return None


def _item(event: Event, kind: str | None, **fields: object) -> JsonObject:
    item: JsonObject = {
        "type": kind,
        "sequenceNumber": event.sequence_num,
        "timestamp": int(event.created_at.timestamp() * 1000) if event.created_at else None,
        **fields,
    }
    if kind == ASSISTANT_MESSAGE and event.content.get("interrupted"):
        item["interrupted"] = True
    if kind == USER_MESSAGE and (media := media_of(event)):
        item["attachments"] = media
    if client_history_of(event):
        item["clientHistory"] = True
    return item


def _assign_ids(event: Event, items: list[JsonObject]) -> None:
    """Assign ids: the message id if there is one, else `{kind}-{sequence}`; repeated ids get a suffix."""
    message_id = _message_id(event)
    seen: dict[str, int] = {}
    for item in items:
        is_message = item["type"] in (USER_MESSAGE, ASSISTANT_MESSAGE)
        name = message_id if is_message and message_id else f"{_ID_PREFIX[item['type']]}-{event.sequence_num}"
        count = seen[name] = seen.get(name, -1) + 1
        item["id"] = name if count == 0 else f"{name}/{count}"


def _message_id(event: Event) -> str | None:
    given = event.content.get("message_id")
    if isinstance(given, str) and given:
        return given
    # ADK uses the event id as the message id of a stream.
    return event.id if "adk" in event.content else None
