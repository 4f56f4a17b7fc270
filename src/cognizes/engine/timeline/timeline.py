"""The timeline of a conversation: everything a screen shows of it, in one order, from stored events alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.event_log import read_event_page
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.timeline.event_kinds import SHOWN_KINDS, TOOL_CALL, TOOL_RESULT
from cognizes.engine.timeline.items import items_of

END_OF_THREAD = 2**63 - 1
_LONGEST_PAGE = 10_000
_LOOK_BACK = 200


@dataclass(frozen=True)
class TimelinePage:
    """Some items, oldest first. `has_more` looks in the direction of the paging."""

    items: list[JsonObject] = field(default_factory=list)
    has_more: bool = False

    @property
    def first_sequence(self) -> int | None:
        """Where to go on with `before`."""
        return self.items[0]["sequenceNumber"] if self.items else None

    @property
    def last_sequence(self) -> int | None:
        """Where to go on with `after`."""
        return self.items[-1]["sequenceNumber"] if self.items else None


class Timeline:
    """Reads timelines. A page costs the same at the end of a long conversation as at that of a short one."""

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
        """The newest `limit` items, or those right before or right after an event's sequence number.

        With both numbers, those between them from the older end on. The items of one event stay together: a page is
        shorter by those that do not fit, and longer only when its one event has more than `limit`. A page also ends at
        `COGNIZES_PAGE_BYTES` of events. `branch` is the active one unless named.
        """
        thread = thread_uuid(thread_id)
        _check(limit, before, after)
        query = "read_timeline_before" if after is None else "read_timeline_after"
        place = _Place(low=after or 0, high=END_OF_THREAD if before is None else before, is_forward=after is not None)
        collected = _Collected(limit)
        room = self._database.page_bytes
        is_over = False
        while not is_over:
            page = await read_event_page(
                self._database,
                query,
                thread,
                branch,
                place.low,
                place.high,
                list(SHOWN_KINDS),
                limit=limit + 1,
                max_bytes=room,
            )
            for event in page.events:
                place.move_to(event.sequence_num or 0)
                if not collected.add(items_of(event)):
                    break
            # Events that show nothing do not end a page, however large they are.
            if collected.groups and page.has_more:
                room -= page.size
                collected.is_full = collected.is_full or room <= 0 or len(page.events) <= limit
            is_over = collected.is_full or not page.has_more or not page.events
        if not collected.groups and not await self._database.fetch_value("thread_exists", thread):
            raise NotFoundError(f"there is no conversation {thread_id}")
        items = collected.in_order(is_forward=place.is_forward)
        await self._name_tools(thread, branch, items)
        return TimelinePage(items, has_more=collected.is_full)

    async def _name_tools(self, thread_id: UUID, branch: str | None, items: list[JsonObject]) -> None:
        """Results that do not know their tool get its name from the call, on this page or shortly before it."""
        names = _names(items)
        nameless = [item for item in items if item["type"] == TOOL_RESULT and item["toolName"] is None]
        if any(item["toolCallId"] not in names for item in nameless):
            first = nameless[0]["sequenceNumber"]
            low = max(first - _LOOK_BACK, 0)
            earlier = await read_event_page(
                self._database, "read_timeline_before", thread_id, branch, low, first, _CALLS, limit=_LOOK_BACK
            )
            names = _names(item for event in earlier.events for item in items_of(event)) | names
        for item in nameless:
            item["toolName"] = names.get(item["toolCallId"])


_CALLS = ["act", "tool_call", "assistant_message"]


@dataclass
class _Place:
    """Between which events there is still something to read."""

    low: int
    high: int
    is_forward: bool

    def move_to(self, sequence: int) -> None:
        if self.is_forward:
            self.low = sequence
        else:
            self.high = sequence


class _Collected:
    """The items of whole events, as many as fit."""

    def __init__(self, limit: int) -> None:
        self._room = limit
        self.groups: list[list[JsonObject]] = []
        self.is_full = False

    def add(self, items: list[JsonObject]) -> bool:
        """Takes in the items of an event; False when they do not fit any more."""
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
    if not 1 <= limit <= _LONGEST_PAGE:
        raise InvalidInputError(f"a page has between 1 and {_LONGEST_PAGE} items; change the limit")
    if min(before or 0, after or 0) < 0:
        raise InvalidInputError("a sequence number is not negative")
