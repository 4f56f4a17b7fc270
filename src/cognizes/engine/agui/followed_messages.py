"""Messages of a run that goes on in another process, followed chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing, suppress
from dataclasses import replace
from uuid import UUID

from ag_ui.core import BaseEvent

from cognizes.engine.agui.open_items import THOUGHT as THOUGHT_SUFFIX
from cognizes.engine.agui.snapshot import Snapshot
from cognizes.engine.agui.translator import Translator
from cognizes.engine.database.tenancy import continue_in_task
from cognizes.engine.errors import DatabaseUnavailableError, NotFoundError, PoolTimeoutError, StreamUnavailableError
from cognizes.engine.models import Event
from cognizes.engine.streams.delta_stream import THOUGHT, ChunkPage, StreamHead, StreamStatus
from cognizes.engine.streams.message_streams import MessageStreams

_LATER = (NotFoundError, DatabaseUnavailableError, PoolTimeoutError, StreamUnavailableError)
"""Chunks that cannot be read now: what they lack comes with the next ones or with the stored message."""
_SPEAKERS = ("assistant", "system", THOUGHT)
_WAITING = 16
_READ_SECONDS = 1.0
_STORED_REMEMBERED = 512

Move = Event | StreamHead


class FollowedMessages:
    """Turns stored events and moving streams into frames. A text is told once, by its chunks or by its event: what of
    the whole was told by chunks is left out, and chunks that come after the whole are too. What was thought before a
    message is a stream of its own, and is told before it."""

    def __init__(self, streams: MessageStreams, translator: Translator, *, run_id: str | None) -> None:
        self._streams = streams
        self._translator = translator
        self._run_id = run_id
        self._told: dict[str, int] = {}
        self._stored: dict[str, None] = {}

    async def catch_up(self, thread: UUID, snapshot: Snapshot) -> list[BaseEvent]:
        """What is being said right now and is not in the snapshot, from its first word on."""
        frames: list[BaseEvent] = []
        heads = await self._streams.heads([thread], with_thoughts=True)
        for head in sorted(heads, key=lambda head: head.role != THOUGHT):
            if snapshot.find(head.message_id) is None:
                frames += await self._follow(head)
            else:
                # It was stored a moment ago, and its stream is about to end.
                self._note_stored(head.message_id)
        return frames

    async def take(self, move: Move) -> list[BaseEvent]:
        """The frames of a stored event, or of what a stream has more than was told."""
        if isinstance(move, StreamHead):
            return await self._follow(move)
        frames = self._translator.translate(move)
        self.skip(move)
        return frames

    def skip(self, event: Event) -> None:
        """Note that a message is stored: its stream is not followed any more."""
        for name in (event.id, event.id + THOUGHT_SUFFIX):
            self._note_stored(name)
            self._told.pop(name, None)

    def has_told(self, event: Event) -> bool:
        """Return whether chunks of the message or of the thoughts of an event were told."""
        return event.id in self._told or event.id + THOUGHT_SUFFIX in self._told

    def _note_stored(self, name: str) -> None:
        self._stored[name] = None
        if len(self._stored) > _STORED_REMEMBERED:
            del self._stored[next(iter(self._stored))]

    async def _follow(self, head: StreamHead) -> list[BaseEvent]:
        if self._run_id not in (None, head.run_id) or head.role not in _SPEAKERS or head.message_id in self._stored:
            return []
        if head.status is not StreamStatus.STREAMING:
            if head.current_sequence == 0 and head.role != THOUGHT:
                return self._translator.break_off(head.message_id)
            # Its event, which has all of it, is on its way.
            return []
        frames: list[BaseEvent] = []
        if head.role == "assistant" and head.message_id not in self._told:
            # Its doorbell may come later, or never; what was thought is told first all the same.
            frames += await self._read_thoughts(head)
        with suppress(*_LATER):
            while True:
                told = self._told.get(head.message_id, 0)
                if told >= head.current_sequence:
                    break
                page = await self._streams.read(head.thread_id, head.message_id, after=told, wait=_READ_SECONDS)
                if page.status is not StreamStatus.STREAMING:
                    break
                if page.chunks:
                    frames += self._tell(head, page)
                elif not page.has_more:
                    break
        return frames

    async def _read_thoughts(self, head: StreamHead) -> list[BaseEvent]:
        """What was thought before a message so far."""
        thoughts = replace(head, message_id=head.message_id + THOUGHT_SUFFIX, role=THOUGHT)
        frames: list[BaseEvent] = []
        with suppress(*_LATER):
            while thoughts.message_id not in self._stored:
                told = self._told.get(thoughts.message_id, 0)
                page = await self._streams.read(head.thread_id, thoughts.message_id, after=told)
                if page.status is not StreamStatus.STREAMING or not page.chunks:
                    break
                frames += self._tell(thoughts, page)
        return frames

    def _tell(self, head: StreamHead, page: ChunkPage) -> list[BaseEvent]:
        deltas = [chunk.delta for chunk in page.chunks if chunk.delta]
        self._told[head.message_id] = page.chunks[-1].sequence
        is_thought = head.role == THOUGHT
        turn = head.message_id.removesuffix(THOUGHT_SUFFIX) if is_thought else head.message_id
        return self._translator.stream(turn, head.role, head.author, deltas, is_thought=is_thought)


async def merged(events: AsyncGenerator[Event, None], heads: AsyncIterable[StreamHead]) -> AsyncGenerator[Move, None]:
    """Both as they come, until the events end. Few are waiting: whoever reads slowly makes the sources wait."""
    queue: asyncio.Queue[Move | BaseException | None] = asyncio.Queue(_WAITING)

    async def pump(source: AsyncIterable[Move]) -> None:
        async for move in source:
            await queue.put(move)

    async def pump_events() -> None:
        try:
            async with aclosing(events):
                await pump(events)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 - raised where it is read
            await queue.put(error)

    pumps = [
        continue_in_task(pump_events(), name="follow-events"),
        continue_in_task(pump(heads), name="follow-streams"),
    ]
    try:
        while (move := await queue.get()) is not None:
            if isinstance(move, BaseException):
                raise move
            yield move
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.wait(pumps)
