"""Watching from the middle: what happened so far, folded, then what happens next.

A plain replay would double text on a client that has some of it. So an observer is told where things stand (state,
messages with the text so far, START again for what is open) and then follows. A client that saw all of it already ends
up the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol
from uuid import UUID

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    RunErrorEvent,
    RunFinishedEvent,
    RunStartedEvent,
)

from cognizes.engine.agui.followed_messages import FollowedMessages, merged
from cognizes.engine.agui.frames import now
from cognizes.engine.agui.snapshot import History, Snapshot, read_history
from cognizes.engine.agui.translator import Translator
from cognizes.engine.errors import NotFoundError
from cognizes.engine.models import Event, RunStatus
from cognizes.engine.pulse.events import EventLog
from cognizes.engine.pulse.live_hub import LiveHub
from cognizes.engine.pulse.session_store import SessionStore, thread_uuid
from cognizes.engine.pulse.time_travel import TimeTravel
from cognizes.engine.runs import Runs
from cognizes.engine.streams.message_streams import MessageStreams

Observation = AsyncGenerator[tuple[int | None, BaseEvent], None]
"""Frames, with the number that goes into their `id:` line if they have one."""

_ENDS = ("run_finished", "run_failed", "run_cancelled")
_LAST = (*_ENDS, "run_waiting")
"""Events that can be the last of a run for an observer."""


class ActiveFrames(Protocol):
    """The frames of a run that this process executes."""

    @property
    def frames(self) -> tuple[BaseEvent, ...]:
        """Return all frames so far."""
        ...

    def follow(self, after: int = 0) -> AsyncGenerator[tuple[int, BaseEvent], None]:
        """Yield the frames after a number of them, with their numbers: existing ones, then new ones."""
        ...


class Observer:
    """Makes observations of threads and runs, out of what the engine stores and of the frames of runs in progress."""

    def __init__(
        self,
        *,
        events: EventLog,
        sessions: SessionStore,
        runs: Runs,
        time_travel: TimeTravel,
        hub: LiveHub,
        streams: MessageStreams,
    ) -> None:
        self._events = events
        self._sessions = sessions
        self._runs = runs
        self._time_travel = time_travel
        self._hub = hub
        self._streams = streams

    async def observe_active(
        self, thread: UUID, log: ActiveFrames, started: RunStartedEvent, *, after: int
    ) -> Observation:
        """A run of this process, which has these frames and began after an event of its thread, until it ends."""
        yield None, started
        history = await read_history(self._events, thread, up_to=after)
        async with aclosing(_rest_of_log(history, log)) as frames:
            async for item in frames:
                yield item

    async def observe_thread(self, thread: UUID | None, started: RunStartedEvent) -> Observation:
        """A thread as it is stored; when its run goes on in another process, until that ends.

        `started` names that run, or one made up for this observation.
        """
        yield None, started
        if thread and await self._goes_on(thread, started.run_id):
            async with aclosing(self._rest_of_run(thread, started)) as rest:
                async for item in rest:
                    yield item
            return
        for frame in _all_told(await self._read(thread) if thread else History(), started):
            yield None, frame

    async def observe_run(self, run_id: str, *, after: int = 0, thread_id: UUID | None = None) -> Observation:
        """The stored events of a run, also of one that does not exist yet, after a sequence number, until it ends."""
        translator: Translator | None = None
        recalled = Snapshot()
        async with aclosing(self._hub.follow_run(run_id, thread_id=thread_id)) as events:
            async for event in events:
                sequence = event.sequence_num or 0
                if translator is None:
                    thread = thread_uuid(event.thread_id)
                    state = (await self._time_travel.at(thread, sequence=max(sequence - 1, after))).state
                    translator = Translator(thread_id=event.thread_id, run_id=run_id, state=state, with_user=True)
                    for frame in await self._beginning(translator, thread, after):
                        yield None, frame
                if sequence <= after and event.event_type not in _ENDS:
                    recalled.fold(translator.recall(event))
                    continue
                for frame in recalled.take_open():
                    yield None, frame
                frames = translator.translate(event)
                for number, frame in enumerate(frames, 1):
                    # Whoever has the last frame of an event has all up to that event.
                    yield sequence if number == len(frames) else None, frame
                if translator.has_ended:
                    return

    async def _read(self, thread: UUID) -> History:
        history = await read_history(self._events, thread)
        # Read last: a change that is in the state already and comes again does no harm, one that is missed would.
        history.snapshot.state = (await self._sessions.get_thread(thread)).state
        return history

    async def _beginning(self, translator: Translator, thread: UUID, after: int) -> list[BaseEvent]:
        frames = translator.start()
        if after:
            history = await read_history(self._events, thread, up_to=after)
            frames += [history.snapshot.messages_frame(), *history.older_frames()]
        return frames

    async def _rest_of_run(self, thread: UUID, started: RunStartedEvent) -> Observation:
        """What is stored and what is being said in another process, then the rest of both until the run ends."""
        # Watched before the history is read: what is not in one is told by the other.
        async with self._streams.watch(thread, with_thoughts=True) as watch:
            history = await self._read(thread)
            # Looked at after the history was read: if the run still goes on, its end is still to come.
            if not await self._goes_on(thread, started.run_id):
                for frame in _all_told(history, started):
                    yield None, frame
                return
            translator = _translator(history, started)
            messages = FollowedMessages(self._streams, translator, run_id=started.run_id)
            history.snapshot.fold(await messages.catch_up(thread, history.snapshot))
            for frame in history.frames():
                yield None, frame
            events = self._hub.follow(thread, after=history.last_sequence)
            async with aclosing(merged(events, watch)) as moves:
                async for move in moves:
                    if isinstance(move, Event) and move.event_type in _LAST and move.run_id != started.run_id:
                        continue  # another run's end is not this one's
                    for frame in await messages.take(move):
                        yield None, frame
                    if translator.has_ended:
                        return

    async def _goes_on(self, thread: UUID, run_id: str) -> bool:
        try:
            return (await self._runs.get(thread, run_id)).status == RunStatus.RUNNING
        except NotFoundError:
            return False


def _all_told(history: History, started: RunStartedEvent) -> list[BaseEvent]:
    return [*history.frames(), *_translator(history, started).finish()]


def _translator(history: History, started: RunStartedEvent) -> Translator:
    """One that goes on where a history ends."""
    return Translator(
        thread_id=started.thread_id,
        run_id=started.run_id,
        state=history.snapshot.state,
        with_user=True,
        interrupts={interrupt.id: interrupt for interrupt in history.interrupts},
        pending=history.pending,
    )


def started(thread_id: str, run_id: str) -> RunStartedEvent:
    """The first frame of an observation."""
    return RunStartedEvent(thread_id=thread_id, run_id=run_id, protocol_version=PROTOCOL_VERSION, timestamp=now())


async def _rest_of_log(history: History, log: ActiveFrames) -> Observation:
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
