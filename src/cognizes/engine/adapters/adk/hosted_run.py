"""A run that goes on in this process, whoever watches."""

from __future__ import annotations

import asyncio
from uuid import UUID

from ag_ui.core import BaseEvent, RunAgentInput
from google.adk.events.event import Event

from cognizes.engine.adapters.adk.event_codec import encode_event
from cognizes.engine.adapters.adk.session_cache import SessionKey
from cognizes.engine.adapters.adk.turn_streams import TurnStreams
from cognizes.engine.agui.frame_log import FrameLog
from cognizes.engine.agui.translator import Translator
from cognizes.engine.models import Run
from cognizes.engine.pulse.fencing import RunFence


class HostedRun:
    """An active run: its task, its frames so far, and where in the thread's log it began.

    `asked_id` is the id the client gave; a client that resumes may give one that is taken.
    """

    def __init__(
        self,
        key: SessionKey,
        *,
        thread_id: UUID,
        translator: Translator,
        streams: TurnStreams,
        start_sequence: int,
        message_ids: list[str],
        stored: Run,
        is_resumable: bool,
    ) -> None:
        self.key = key
        self.thread_id = thread_id
        self.run_id = translator.run_id
        self.asked_id = translator.run_id
        self.translator = translator
        self.streams = streams
        self.start_sequence = start_sequence
        self.log = FrameLog()
        self.task: asyncio.Task[None] | None = None
        self.has_begun = False
        self.is_ending = False
        self.is_stopped_by_server = False
        self.is_lost = False
        self.is_resumable = is_resumable
        self.stored = stored
        self.fence = RunFence(thread_id, stored.id, stored.attempt)
        self.invocation_id = ""
        self.error: str | None = None
        self._message_ids = message_ids
        self._last_frames: list[BaseEvent] = []

    def begin(self, new_input: RunAgentInput) -> None:
        """The first frames."""
        self.log.extend(self.translator.start(new_input))

    def take(self, event: Event) -> None:
        """An event of ADK, partial or stored. An error in it ends the run, but not before its row says so."""
        self.invocation_id = event.invocation_id
        frames = self.translator.translate(encode_event(event, thread_id=str(self.thread_id)))
        if self.translator.has_ended:
            self.error = event.error_message or event.error_code or "the model reported an error"
            self._last_frames = frames
        else:
            self.log.extend(frames)

    def end(self, frames: list[BaseEvent]) -> None:
        """The last frames; observers end behind them."""
        self.log.extend(self._last_frames or frames)
        self.log.close()

    def take_message_id(self) -> str | None:
        """The id a client gave to what the user says next."""
        return self._message_ids.pop(0) if self._message_ids else None

    def cancel(self, *, by_server: bool = False) -> bool:
        """Stops the run; it ends in a moment. False when it is about to end anyway, which must not be disturbed."""
        if self.task is None or self.is_ending:
            return False
        self.is_ending = True
        self.is_stopped_by_server = by_server
        if self.has_begun:
            return self.task.cancel()
        # A task that is cancelled before its first step never takes it, and nobody would end the run.
        asyncio.get_running_loop().call_soon(self.task.cancel)
        return True

    def lose(self) -> None:
        """The run is not this process's any more: it was cancelled elsewhere, or another server has it."""
        self.is_lost = self.cancel()
