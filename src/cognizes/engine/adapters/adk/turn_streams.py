"""The messages of an invocation while ADK streams them: every fragment of text becomes a chunk that any process reads.

A message is streamed under the id that its whole event is stored under, and what was thought before it beside it, under
the id that AG-UI's frames give it. Streaming never stands in an agent's way: what cannot be streamed is logged, and the
whole event is stored all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from google.adk.events.event import Event

from cognizes.engine.agui.open_items import THOUGHT as THOUGHT_SUFFIX
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.streams.delta_stream import THOUGHT
from cognizes.engine.streams.message_writer import MessageWriter

logger = logging.getLogger(__name__)

_Place = tuple[str, str]


@dataclass
class _Turn:
    """A message that is being streamed: `message_id` is that of its first fragment, of a thought too."""

    message_id: str
    thoughts: MessageWriter | None = None
    writer: MessageWriter | None = None
    is_broken: bool = False


class TurnStreams:
    """Writes the fragments of one run; each agent and branch has at most one message open."""

    def __init__(self, engine: Engine, thread_id: UUID, *, run_id: str | None) -> None:
        self._engine = engine
        self._thread_id = thread_id
        self._run_id = run_id
        self._turns: dict[_Place, _Turn] = {}

    async def take(self, event: Event) -> None:
        """An event of ADK: a fragment, or a whole that is stored already."""
        if event.partial:
            await self.write(event)
        else:
            await self.write_rest(event)
            await self.settle(event)

    def streamed_id(self, event: Event) -> str | None:
        """The id that the fragments of a whole event were streamed under."""
        turn = self._turns.get(_place(event))
        return turn.message_id if turn and (turn.writer or turn.thoughts) else None

    async def write(self, event: Event) -> None:
        """A fragment."""
        turn = self._turns.setdefault(_place(event), _Turn(event.id))
        if (thought := _text(event, thought=True)) and not turn.is_broken:
            with _only_logged(turn):
                if turn.thoughts is None:
                    turn.thoughts = await self._open(turn.message_id + THOUGHT_SUFFIX, event, role=THOUGHT)
                await turn.thoughts.write(thought)
        if (text := _text(event)) and not turn.is_broken:
            with _only_logged(turn):
                if turn.writer is None:
                    turn.writer = await self._open(turn.message_id, event, role="assistant")
                await turn.writer.write(text)

    async def write_rest(self, event: Event) -> None:
        """The whole is about to be stored, or was: what of it was not streamed follows."""
        turn = self._turns.get(_place(event))
        if turn and turn.writer and not turn.is_broken and (text := _text(event)).startswith(said := turn.writer.text):
            with _only_logged(turn):
                await turn.writer.write(text[len(said) :])

    async def settle(self, event: Event) -> None:
        """The whole is stored. An event without content, such as an error, is not the whole of anything."""
        if event.content and event.content.parts and (turn := self._turns.pop(_place(event), None)):
            for writer in (turn.writer, turn.thoughts):
                if writer:
                    with _only_logged(turn):
                        await writer.settle()
                    writer.abandon()

    async def close_thoughts(self) -> None:
        """What was thought of answers that never became whole is kept, before what was said of them is."""
        for turn in self._turns.values():
            thoughts, turn.thoughts = turn.thoughts, None
            if thoughts:
                with _only_logged(turn):
                    await thoughts.abort()
                thoughts.abandon()

    async def close(self) -> None:
        """The run is over: what never became whole never will. It is kept, unless somebody has stored it already."""
        await self.close_thoughts()
        turns, self._turns = self._turns, {}
        for turn in turns.values():
            if turn.writer:
                with _only_logged(turn):
                    await turn.writer.abort()
                turn.writer.abandon()

    async def _open(self, message_id: str, event: Event, *, role: str) -> MessageWriter:
        writer = self._engine.stream_message(
            self._thread_id,
            role=role,
            message_id=message_id,
            author=event.author,
            run_id=self._run_id,
            invocation_id=event.invocation_id,
        )
        return await writer.open()


def _place(event: Event) -> _Place:
    # Parallel agents speak at the same time, each on a branch of its own.
    return event.author, event.branch or ""


def _text(event: Event, *, thought: bool = False) -> str:
    parts = (event.content and event.content.parts) or ()
    return "".join(part.text for part in parts if part.text and bool(part.thought) is thought)


@contextmanager
def _only_logged(turn: _Turn) -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        # The fragments that follow are not tried: each of them might wait for as long as this one did.
        turn.is_broken = True
        logger.warning("a message could not be streamed: %s", error)
