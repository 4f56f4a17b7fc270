"""Observations of threads and runs: a snapshot of what exists, then the frames that follow.

A plain replay would duplicate text on a client that has a part of it. An observation therefore begins with the state,
the messages with their text so far, and a START frame for each open item. A client that has all of them ends up with
the same content.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Protocol
from uuid import UUID

from ag_ui.core import PROTOCOL_VERSION, BaseEvent, RunErrorEvent, RunFinishedEvent, RunStartedEvent

from cognizes.engine.agui.frames import now
from cognizes.engine.agui.snapshot import History, Snapshot, read_history
from cognizes.engine.agui.stream_translator import StreamTranslator
from cognizes.engine.agui.translator import Translator
from cognizes.engine.errors import NotFoundError
from cognizes.engine.feed import Chunks, Feed, FeedItem, Notification, StreamEnd, StreamView
from cognizes.engine.models import Event, RunStatus
from cognizes.engine.pulse.events import EventLog
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid
from cognizes.engine.pulse.time_travel import TimeTravel
from cognizes.engine.runs import Runs

Observation = AsyncGenerator[tuple[int | None, BaseEvent], None]
"""Frames, each with the number of its `id:` line or None."""
_ENDS = ("run_finished", "run_failed", "run_cancelled")
_LAST = (*_ENDS, "run_waiting")
"""The types of events after which an observation of a run ends."""


class ActiveFrames(Protocol):
    """The frames of a run that this process executes."""

    @property
    def frames(self) -> tuple[BaseEvent, ...]: ...

    def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, BaseEvent], None]:
        """Yield the frames after a number of them, with their numbers: existing ones, then new ones."""
        ...


class Observer:
    """Observes threads and runs by their stored events, the feed and the frames of active runs."""

    def __init__(
        self, *, events: EventLog, sessions: SessionStore, runs: Runs, time_travel: TimeTravel, feed: Feed
    ) -> None:
        self._events = events
        self._sessions = sessions
        self._runs = runs
        self._time_travel = time_travel
        self._feed = feed

    async def observe_active(
        self, thread: UUID, log: ActiveFrames, started: RunStartedEvent, *, after: int
    ) -> Observation:
        """Yield the frames of a run that this process executes until it ends; `after` is the event before the run."""
        yield None, started
        history = await read_history(self._events, thread, up_to=after)
        async with aclosing(_follow_log(history, log)) as frames:
            async for item in frames:
                yield item

    async def observe_thread(self, thread: UUID | None, started: RunStartedEvent) -> Observation:
        """Yield a snapshot of a thread, then the frames of its run until it ends, if another process executes one.

        `started` names that run; without one, it has an id made for this observation.
        """
        yield None, started
        if thread and await self._is_active(thread, started.run_id):
            async with aclosing(self._follow_run(thread, started)) as rest:
                async for item in rest:
                    yield item
            return
        for frame in _finished_frames(await self._read(thread) if thread else History(), started):
            yield None, frame

    async def observe_run(self, run_id: str, *, after: int = 0, thread_id: UUID | None = None) -> Observation:
        """Yield the frames of a run's stored events after a sequence until it ends; the run may not exist yet."""
        translator: Translator | None = None
        recalled = Snapshot()
        reached = 0
        async with aclosing(self._events_until_end(run_id, thread_id)) as events:
            async for event in events:
                sequence = event.sequence_num or 0
                reached = max(reached, sequence)
                if translator is None:
                    thread = thread_uuid(event.thread_id)
                    state = (await self._time_travel.at(thread, sequence=max(sequence - 1, after))).state
                    translator = Translator(thread_id=event.thread_id, run_id=run_id, state=state, with_user=True)
                    for frame in await self._first_frames(translator, thread, after):
                        yield None, frame
                if sequence <= after and event.event_type not in _ENDS:
                    recalled.fold(translator.recall(event))
                    continue
                for frame in recalled.take_open():
                    yield None, frame
                frames = translator.translate(event)
                for number, frame in enumerate(frames, 1):
                    # A reader that has the last frame of an event has all frames up to that event.
                    yield reached if number == len(frames) else None, frame
                if translator.has_ended:
                    return

    async def _events_until_end(self, run_id: str, thread_id: UUID | None) -> AsyncGenerator[Event, None]:
        """Yield the events of a run. A cancellation comes after what the process of the run stores when it stops."""
        async with aclosing(self._feed.events_of_run(run_id, thread_id=thread_id)) as events:
            async for event in events:
                if event.event_type == "run_cancelled":
                    async with aclosing(self._events_after_cancellation(event)) as later_events:
                        async for later in later_events:
                            yield later
                yield event

    async def _events_after_cancellation(self, cancelled: Event) -> AsyncGenerator[Event, None]:
        """Yield the events that a cancelled run has behind its cancellation, until none of its streams is open."""
        thread, run_id, reached = thread_uuid(cancelled.thread_id), cancelled.run_id or "", cancelled.sequence_num or 0
        last: int | None = None
        is_streaming = True
        async with aclosing(self._feed.follow_run(run_id, reached, thread, streams=StreamView.HEADS)) as pages:
            async for items in pages:
                if last is None or any(isinstance(item, StreamEnd) for item in items):
                    # A stream ends in one transaction with its event, and the subscription delivers later ends.
                    last, is_streaming = await self._runs.read_tail(thread, run_id)
                for item in items:
                    if isinstance(item, Event):
                        reached = item.sequence_num or reached
                        yield item
                if reached >= last and not is_streaming:
                    return

    async def _read(self, thread: UUID) -> History:
        history = await read_history(self._events, thread)
        # The state is read last: applying a change twice is harmless, missing one is not.
        history.snapshot.state = (await self._sessions.get_thread(thread)).state
        return history

    async def _first_frames(self, translator: Translator, thread: UUID, after: int) -> list[BaseEvent]:
        frames = translator.start()
        if after:
            history = await read_history(self._events, thread, up_to=after)
            frames += [history.snapshot.messages_frame(), *history.older_frames()]
        return frames

    async def _follow_run(self, thread: UUID, started: RunStartedEvent) -> Observation:
        """Yield the stored messages with the streamed text so far, then the feed until the run ends."""
        history = await self._read(thread)
        # Checked after the history is read: if the run is still running, its end comes with the feed.
        if not await self._is_active(thread, started.run_id):
            for frame in _finished_frames(history, started):
                yield None, frame
            return
        encoder = _RunEncoder(_translator(history, started))
        is_first = True
        async with aclosing(self._feed.follow(thread, history.last_sequence)) as pages:
            async for items in pages:
                # Chunks on the first page are the text so far, a part of the snapshot.
                is_text = is_first and all(isinstance(item, Chunks) for item in items)
                if is_text:
                    history.snapshot.fold(encoder.encode(items))
                if is_first:
                    for frame in history.frames():
                        yield None, frame
                is_first = False
                for frame in () if is_text else encoder.encode(items):
                    yield None, frame
                if encoder.has_ended:
                    return

    async def _is_active(self, thread: UUID, run_id: str) -> bool:
        try:
            return (await self._runs.get(thread, run_id)).status in (RunStatus.RUNNING, RunStatus.PENDING)
        except NotFoundError:
            return False


class _RunEncoder:
    """Encodes the feed of a thread for an observer of one run."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._streamed = StreamTranslator(translator)
        self._cancellation: Event | None = None

    @property
    def has_ended(self) -> bool:
        return self._translator.has_ended

    def encode(self, items: Iterable[FeedItem]) -> list[BaseEvent]:
        frames: list[BaseEvent] = []
        for item in items:
            frames += self._encode(item)
            if self._cancellation is not None and self._streamed.is_idle:
                frames += self._translator.translate(self._cancellation)
        return frames

    def _encode(self, item: FeedItem) -> list[BaseEvent]:
        run_id = self._translator.run_id
        match item:
            case Event():
                if item.run_id != run_id and (item.event_type in _LAST or self._cancellation is not None):
                    return []  # The end of another run, or its beginning.
                if item.event_type == "run_cancelled" and not self._streamed.is_idle:
                    # Another process cancelled the run. The one that executed it stores the rest of its text later.
                    self._cancellation = item
                    return []
                self._streamed.forget(item)
                return self._translator.translate(item)
            case Chunks():
                return self._streamed.translate_chunks(item) if item.head.run_id == run_id else []
            case StreamEnd():
                return self._streamed.end(item) if item.head.run_id == run_id else []
            case Notification():
                return []


def _finished_frames(history: History, started: RunStartedEvent) -> list[BaseEvent]:
    return [*history.frames(), *_translator(history, started).finish()]


def _translator(history: History, started: RunStartedEvent) -> Translator:
    return Translator(
        thread_id=started.thread_id,
        run_id=started.run_id,
        state=history.snapshot.state,
        with_user=True,
        interrupts={interrupt.id: interrupt for interrupt in history.interrupts},
        pending=history.pending,
    )


def started(thread_id: str, run_id: str) -> RunStartedEvent:
    return RunStartedEvent(thread_id=thread_id, run_id=run_id, protocol_version=PROTOCOL_VERSION, timestamp=now())


async def _follow_log(history: History, log: ActiveFrames) -> Observation:
    so_far = log.frames
    history.snapshot.fold(so_far)
    for frame in history.frames():
        yield None, frame
    if so_far and isinstance(so_far[-1], RunFinishedEvent | RunErrorEvent):
        yield len(so_far), so_far[-1]
        return
    async with aclosing(log.follow(after=len(so_far))) as rest:
        async for number, frame in rest:
            yield number, frame
