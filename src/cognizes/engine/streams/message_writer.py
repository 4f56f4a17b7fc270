"""Writes one message, token by token."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cognizes.engine.errors import ConflictError, EngineError
from cognizes.engine.models import Session
from cognizes.engine.streams.live_message import LiveMessage

if TYPE_CHECKING:
    from uuid import UUID

    from cognizes.engine.streams.message_streams import MessageStreams

logger = logging.getLogger(__name__)


class MessageWriter:
    """A message being written: `async with streams.write_message(session) as message: await message.write("tok")`.

    Leaving the block completes the message; leaving it by an exception stores what was written so far as interrupted.
    """

    def __init__(
        self,
        streams: MessageStreams,
        session: Session | str | UUID,
        *,
        message_id: str,
        role: str,
        author: str,
        run_id: str | None,
        invocation_id: str,
    ) -> None:
        self.message_id = message_id
        self._streams = streams
        self._session = session
        self._fields = {"role": role, "author": author, "run_id": run_id, "invocation_id": invocation_id}
        self._live: LiveMessage | None = None

    async def open(self) -> Self:
        """Begins; what `async with` does."""
        self._live = await self._streams.begin(self._session, self.message_id, **self._fields)  # type: ignore[arg-type]
        return self

    @property
    def current_sequence(self) -> int:
        """How many chunks were written."""
        return self._live.log.last_sequence if self._live else 0

    @property
    def text(self) -> str:
        """What was written so far."""
        return self._live.log.text if self._live else ""

    async def write(self, text: str) -> None:
        """Adds a chunk; an empty text is none. Readers of this process have it at once, others in about 20 ms."""
        live = self._opened()
        if not self._streams.flusher.has_room(live):
            await self._streams.flusher.wait_for_room(live)
        if text != "":
            live.add(text)
            self._streams.on_written(live)

    async def complete(self, finish_reason: str | None = None) -> int:
        """Stores the message and its event; returns how many chunks it has. Again answers the same."""
        return await self._streams.complete_live(self._opened(), finish_reason=finish_reason)

    async def abort(self) -> int:
        """Stores what was written so far as interrupted; nothing when that is nothing."""
        return await self._streams.abort_live(self._opened())

    async def settle(self) -> int:
        """The message was stored by somebody else, under this message's id: the stream ends, and stores nothing."""
        return await self._streams.settle_live(self._opened())

    def abandon(self) -> None:
        """Nobody will write or end the message any more: if it has not ended, the engine ends it, as interrupted."""
        if self._live is not None:
            self._live.is_abandoned = True

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is None or self._live.is_closing:
            return
        try:
            if error is None:
                await self.complete()
            else:
                # Also when the task is being cancelled: the text must not wait for its lease to run out.
                await asyncio.shield(self.abort())
        except EngineError as failure:
            if error is None:
                raise
            # The exception of the block is the one to be told.
            logger.warning("a message could not be ended and will be: %s", failure)
        finally:
            self.abandon()

    def _opened(self) -> LiveMessage:
        if self._live is None:
            raise ConflictError("the message is not open; enter it with `async with`")
        return self._live
