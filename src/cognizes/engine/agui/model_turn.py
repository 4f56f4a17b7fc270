"""One turn of a model: a message that grows, and the thoughts before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ag_ui.core import (
    BaseEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)

from cognizes.engine.agui.frames import clean_text
from cognizes.engine.timeline.event_reading import Text

Frames = Iterator[BaseEvent]
Role = Literal["assistant", "system"]

THOUGHT = "/thought"
"""What the id of a turn's thoughts has behind the turn's own."""


class ModelTurn:
    """Opens and closes the text and the thoughts of a turn, never both at once, and never says a thing twice."""

    def __init__(self, turn_id: str, role: str | None) -> None:
        self.id = turn_id
        self._role: Role = "system" if role == "system" else "assistant"
        self._open: Literal["text", "thought"] | None = None
        self._streamed = {"text": "", "thought": ""}
        self._unsaid = self._streamed

    @property
    def streamed_text(self) -> str:
        """What was said so far, fragment by fragment."""
        return self._streamed["text"]

    def stream(self, part: Text) -> Frames:
        """A fragment, as it comes."""
        kind = _kind(part)
        self._streamed[kind] += part.text
        yield from self._say(kind, part.text)

    def begin_whole(self) -> None:
        """The whole is about to come, part by part."""
        self._unsaid = dict(self._streamed)

    def stream_rest(self, part: Text) -> Frames:
        """A part of the whole, as far as it was not streamed.

        When the whole differs from what was streamed (a callback has rewritten it), the client keeps what it saw until
        its next snapshot: the protocol cannot take a word back.
        """
        kind = _kind(part)
        streamed = self._unsaid[kind]
        known = len(streamed) if part.text.startswith(streamed) else len(part.text)
        self._unsaid[kind] = streamed[known:]
        if rest := part.text[known:]:
            yield from self._say(kind, rest)

    def close(self) -> Frames:
        """Closes what is open; saying more opens it again."""
        if self._open == "text":
            yield TextMessageEndEvent(message_id=self.id)
        elif self._open == "thought":
            yield ReasoningMessageEndEvent(message_id=self.id + THOUGHT)
            yield ReasoningEndEvent(message_id=self.id + THOUGHT)
        self._open = None

    def close_thought(self) -> Frames:
        """The thoughts are complete; what is being said goes on."""
        if self._open == "thought":
            yield from self.close()

    def _say(self, kind: Literal["text", "thought"], text: str) -> Frames:
        if self._open != kind:
            yield from self.close()
            yield from self._begin(kind)
        delta = clean_text(text)
        if kind == "text":
            yield TextMessageContentEvent(message_id=self.id, delta=delta)
        else:
            yield ReasoningMessageContentEvent(message_id=self.id + THOUGHT, delta=delta)

    def _begin(self, kind: Literal["text", "thought"]) -> Frames:
        self._open = kind
        if kind == "text":
            yield TextMessageStartEvent(message_id=self.id, role=self._role)
        else:
            yield ReasoningStartEvent(message_id=self.id + THOUGHT)
            yield ReasoningMessageStartEvent(message_id=self.id + THOUGHT)


def _kind(part: Text) -> Literal["text", "thought"]:
    return "thought" if part.is_thought else "text"
