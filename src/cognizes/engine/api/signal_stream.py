"""Signals on their way to a client: server-sent events whose ids say where to resume."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cognizes.engine.api.sse import EventStream
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.sync.signal_hub import SignalSubscription
from cognizes.engine.sync.signals import Signal

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class SignalFrames:
    """Writes signals of some contexts as frames. The id of a frame holds every context's position, in their order."""

    def __init__(self, subscription: SignalSubscription, positions: dict[UUID, int]) -> None:
        self._subscription = subscription
        self._positions = {str(thread_id): position for thread_id, position in positions.items()}

    async def send(self, stream: EventStream) -> None:
        """Sends signals until no context is left."""
        async with self._subscription:
            while signals := await self._subscription.take():
                await stream.put("".join(map(self.frame, signals)))

    def heartbeat(self) -> str:
        """The frames of a heartbeat."""
        return "".join(map(self._write_frame, self._subscription.heartbeats()))

    def frame(self, signal: Signal) -> str:
        """One signal as a frame."""
        self._positions[signal.context_id] = max(self._positions[signal.context_id], signal.position)
        return self._write_frame(signal)

    def _write_frame(self, signal: Signal) -> str:
        # A heartbeat may overtake signals that wait: it says how far the context has come, and moves no position.
        return f"id: {_write(list(self._positions.values()))}\nevent: signal\ndata: {signal.to_text()}\n\n"


def _write(positions: Sequence[int]) -> str:
    return str(positions[0]) if len(positions) == 1 else ".".join(map(_base_36, positions))


def read_positions(last_event_id: str | None, count: int) -> list[int | None]:
    """Where each of some contexts was left; None for all when the id is not one of ours for as many."""
    nothing: list[int | None] = [None] * count
    parts = (last_event_id or "").split(".")
    if len(parts) != count or not all(part.isascii() and part.isalnum() and len(part) < 19 for part in parts):
        return nothing
    try:
        return [int(part, 10 if count == 1 else 36) for part in parts]
    except ValueError:
        return nothing


def split_contexts(names: str) -> list[str]:
    """The contexts that a client names, each once."""
    found = list(dict.fromkeys(name for name in names.split(",") if name))
    if not found:
        raise InvalidInputError("name at least one context: contexts=a,b,c")
    return found


def _base_36(number: int) -> str:
    text = ""
    while True:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
        if not number:
            return text
