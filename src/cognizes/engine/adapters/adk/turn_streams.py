"""The messages of an invocation while ADK streams them: every fragment of text becomes a chunk that any process reads.

A message is streamed under the id that its whole event is stored under. Thoughts are not streamed this way: other
processes see them with the whole event. Streaming never stands in an agent's way: what cannot be streamed is logged,
and the whole event is stored all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from google.adk.events.event import Event

from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.streams.message_writer import MessageWriter

logger = logging.getLogger(__name__)

_Place = tuple[str, str]


class TurnStreams:
    """Writes the fragments of one run; each agent and branch has at most one message open."""

    def __init__(self, engine: Engine, thread_id: UUID, *, run_id: str | None) -> None:
        self._engine = engine
        self._thread_id = thread_id
        self._run_id = run_id
        self._writers: dict[_Place, MessageWriter | None] = {}

    async def take(self, event: Event) -> None:
        """An event of ADK: a fragment, or a whole that is stored already."""
        if event.partial:
            await self.write(event)
        else:
            await self.write_rest(event)
            await self.settle(event)

    def streamed_id(self, event: Event) -> str | None:
        """The id that the fragments of a whole event were streamed under."""
        writer = self._writers.get(_place(event))
        return writer.message_id if writer else None

    async def write(self, event: Event) -> None:
        """A fragment."""
        if text := _text(event):
            with _only_logged():
                if _place(event) not in self._writers:
                    await self._open(event)
                if writer := self._writers[_place(event)]:
                    await writer.write(text)

    async def write_rest(self, event: Event) -> None:
        """The whole is about to be stored, or was: what of it was not streamed follows."""
        text = _text(event)
        writer = self._writers.get(_place(event))
        if writer and text.startswith(streamed := writer.text):
            with _only_logged():
                await writer.write(text[len(streamed) :])

    async def settle(self, event: Event) -> None:
        """The whole is stored. An event without content, such as an error, is not the whole of anything."""
        if event.content and event.content.parts and (writer := self._writers.pop(_place(event), None)):
            with _only_logged():
                await writer.settle()

    async def close(self) -> None:
        """The run is over: what never became whole never will. It is kept, unless somebody has stored it already."""
        writers, self._writers = self._writers, {}
        for writer in filter(None, writers.values()):
            with _only_logged():
                await writer.abort()

    async def _open(self, event: Event) -> None:
        # Without a writer the fragments that follow are not tried again.
        self._writers[_place(event)] = None
        self._writers[_place(event)] = await self._engine.stream_message(
            self._thread_id,
            message_id=event.id,
            author=event.author,
            run_id=self._run_id,
            invocation_id=event.invocation_id,
        ).open()


def _place(event: Event) -> _Place:
    # Parallel agents speak at the same time, each on a branch of its own.
    return event.author, event.branch or ""


def _text(event: Event) -> str:
    parts = (event.content and event.content.parts) or ()
    return "".join(part.text for part in parts if part.text and not part.thought)


@contextmanager
def _only_logged() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        logger.warning("a message could not be streamed: %s", error)
