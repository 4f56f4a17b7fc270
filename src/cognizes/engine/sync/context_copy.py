"""A client's copy of a context: what it has received, and never more than that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cognizes.engine.models import JsonObject

_LAST = 2**63


@dataclass
class MessageCopy:
    """A message as far as it was received. `sequence` is the last chunk that is in `text`; `sequence_num` is that of
    its event, which says where it stands among the others, once it has one."""

    id: str
    role: str = "assistant"
    text: str = ""
    sequence: int = 0
    sequence_num: int | None = None
    is_complete: bool = False
    is_interrupted: bool = False
    content: list[JsonObject] = field(default_factory=list)

    def lacks(self, server_sequence: int) -> bool:
        """Whether the server has chunks that are not here."""
        return not self.is_complete and server_sequence > self.sequence

    def append(self, chunks: Iterable[JsonObject]) -> int:
        """Takes in the chunks that follow; returns how many. What is here already is not said twice, and nothing is put
        behind a gap."""
        deltas: list[str] = []
        for chunk in chunks:
            if chunk["sequence"] == self.sequence + 1 and not self.is_complete:
                deltas.append(chunk["delta"])
                self.sequence += 1
        self.text += "".join(deltas)
        return len(deltas)

    def replace(self, message: JsonObject) -> None:
        """Takes in a whole message."""
        self.role = message["role"]
        if message["status"] == "streaming":
            return
        self.content = message["content"]
        self.text = "".join(part["text"] for part in self.content if isinstance(part.get("text"), str))
        self.sequence, self.sequence_num = message["final_sequence"] or 1, message["sequence_num"]
        self.is_complete, self.is_interrupted = True, message["status"] == "interrupted"


@dataclass
class ContextCopy:
    """The state of a context and the messages of its active branch.

    `stored` are the messages that the server listed, in its order; `news` are those that signals told of since.
    """

    id: str = ""
    state: str = ""
    branch: str = ""
    title: str | None = None
    last_sequence: int = 0
    stored: list[MessageCopy] = field(default_factory=list)
    news: dict[str, MessageCopy] = field(default_factory=dict)
    approvals: dict[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> list[MessageCopy]:
        """All of them, in their order; those that have no place yet come last."""
        return self.stored + sorted(self.news.values(), key=lambda message: message.sequence_num or _LAST)

    def find(self, message_id: str) -> MessageCopy | None:
        """A message by its id."""
        return self.news.get(message_id) or next((found for found in self.stored if found.id == message_id), None)

    def add(self, message_id: str) -> MessageCopy:
        """A message by its id, new if need be."""
        found = self.find(message_id)
        if found is None:
            found = self.news[message_id] = MessageCopy(message_id)
        return found

    def extend(self, messages: list[JsonObject]) -> None:
        """Takes in more of the server's list, behind what is stored."""
        for message in messages:
            copy = self.news.get(message["id"]) or MessageCopy(message["id"])
            if message["status"] == "streaming":
                copy.role = message["role"]
                self.news[copy.id] = copy
                continue
            if not copy.is_complete or not copy.content:
                copy.replace(message)
            self.news.pop(copy.id, None)
            self.stored.append(copy)
