"""Translating the chunks of streamed messages: a text is sent once, by its chunks or by its stored event."""

from __future__ import annotations

from ag_ui.core import BaseEvent

from cognizes.engine.agui.translator import Translator
from cognizes.engine.feed import Chunks, StreamEnd
from cognizes.engine.models import Event
from cognizes.engine.streams.chunks import THOUGHT, THOUGHT_SUFFIX

_ROLES = ("assistant", "system", THOUGHT)
"""The roles whose chunks become frames; other messages are sent when they are stored."""


class StreamTranslator:
    """Translates chunks with a translator, which then translates only the rest of the stored event.

    Reasoning is a stream of its own, whose id is that of the message and a suffix.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._open: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether no message is partly sent."""
        return not self._open

    def translate_chunks(self, item: Chunks) -> list[BaseEvent]:
        """Return the frames of new chunks."""
        head = item.head
        if head.role not in _ROLES:
            return []
        self._open.add(head.message_id)
        is_thought = head.role == THOUGHT
        turn = head.message_id.removesuffix(THOUGHT_SUFFIX) if is_thought else head.message_id
        deltas = [chunk.delta for chunk in item.chunks if chunk.delta]
        return self.translator.stream(turn, head.role, head.author, deltas, is_thought=is_thought)

    def forget(self, event: Event) -> bool:
        """Return whether chunks of an event's message or of the reasoning before it were sent, and forget them."""
        given = event.content.get("message_id")
        sent = {event.id, event.id + THOUGHT_SUFFIX, given} & self._open
        self._open -= sent
        return bool(sent)

    def end(self, item: StreamEnd) -> list[BaseEvent]:
        """Close a message whose stream ended without a stored event."""
        name = item.head.message_id
        if name not in self._open:
            return []
        self._open.discard(name)
        turn = name.removesuffix(THOUGHT_SUFFIX) if item.head.role == THOUGHT else name
        return [] if turn in self._open else self.translator.break_off(turn)
