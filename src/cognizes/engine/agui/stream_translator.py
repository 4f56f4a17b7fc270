"""Translates the chunks of streamed messages, thoughts and tool calls into AG-UI frames, for both profiles.

The stored event of a message follows its chunks. The translator of the run then makes only the frames of what was not
streamed.
"""

from __future__ import annotations

from ag_ui.core import BaseEvent

from cognizes.engine.agui.translator import Translator
from cognizes.engine.feed import Chunks, StreamEnd
from cognizes.engine.models import Event
from cognizes.engine.streams.chunks import CALL, CALL_INFIX, THOUGHT, THOUGHT_SUFFIX, CallHead

_STREAMED_ROLES = ("assistant", "system", THOUGHT)
"""The roles whose chunks become frames; other messages are sent when they are stored."""


class StreamTranslator:
    """Translates chunks with a translator, which then translates only the rest of the stored event.

    Reasoning is a stream of its own, whose id is that of the message and a suffix. So is each tool call.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator
        self._open: set[str] = set()
        self._calls: dict[str, CallHead] = {}

    @property
    def is_idle(self) -> bool:
        return not self._open

    def translate_chunks(self, item: Chunks) -> list[BaseEvent]:
        head = item.head
        if head.role == CALL:
            return self._translate_call(item)
        if head.role not in _STREAMED_ROLES:
            return []
        self._open.add(head.message_id)
        is_thought = head.role == THOUGHT
        turn = head.message_id.removesuffix(THOUGHT_SUFFIX) if is_thought else head.message_id
        deltas = [chunk.delta for chunk in item.chunks if chunk.delta]
        return self.translator.stream(turn, head.role, head.author, deltas, is_thought=is_thought)

    def _translate_call(self, item: Chunks) -> list[BaseEvent]:
        name, deltas = item.head.message_id, [chunk.delta for chunk in item.chunks]
        if (head := self._calls.get(name)) is None:
            found = CallHead.split(deltas[0]) if deltas else None
            if found is None:
                return []
            head, deltas = found[0], deltas[1:]
            self._calls[name] = head
            self._open.add(name)
        return self.translator.stream_call(head, item.head.author, deltas)

    def forget(self, event: Event) -> bool:
        """Return whether chunks of an event's message, of the reasoning before it or of its calls were sent, and forget
        them."""
        given = event.content.get("message_id")
        sent = {event.id, event.id + THOUGHT_SUFFIX, given} & self._open
        sent |= {name for name in self._calls if name.startswith(event.id + CALL_INFIX)}
        self._open -= sent
        self._calls = {name: head for name, head in self._calls.items() if name not in sent}
        return bool(sent)

    def end(self, item: StreamEnd) -> list[BaseEvent]:
        """Close a message whose stream ended without a stored event."""
        name = item.head.message_id
        if name not in self._open:
            return []
        self._open.discard(name)
        if head := self._calls.pop(name, None):
            return self.translator.break_off_call(head.call_id)
        turn = name.removesuffix(THOUGHT_SUFFIX) if item.head.role == THOUGHT else name
        return [] if turn in self._open else self.translator.break_off(turn)
