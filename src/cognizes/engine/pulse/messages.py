"""Which events speak, in which role, and what they say; and reading messages back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import load_jsonb, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import Event, JsonObject, Message

ROLES = ("user", "assistant", "tool", "system")

_ROLE_OF_KIND = {
    "user_message": "user",
    "assistant_message": "assistant",
    "system_message": "system",
    "observe": "tool",
    "tool_result": "tool",
}
_ROLE_OF_AUTHOR = {"user": "user", "tool": "tool", "system": "system"}
_ROLE_OF_NAME = {**{role: role for role in ROLES}, "model": "assistant"}
_END_OF_THREAD = 2**63 - 1


def message_role(event: Event) -> str | None:
    """The role in which an event speaks, or None when it is not a message.

    An author that is no role is the name of an agent: only callers that may speak for agents store one. An end user's
    event is stored with the author `user`.
    """
    if event.event_type == "message":
        role = event.content.get("role")
        known = _ROLE_OF_NAME.get(role) if isinstance(role, str) else None
        return known or _ROLE_OF_AUTHOR.get(event.author, "assistant")
    return _ROLE_OF_KIND.get(event.event_type)


def check_role(event: Event) -> None:
    """Refuse a `message` whose content names a role that does not exist."""
    role = event.content.get("role")
    if event.event_type != "message" or role is None or "adk" in event.content:
        return
    if not isinstance(role, str) or role not in _ROLE_OF_NAME:
        raise InvalidInputError(f"content.role {role!r:.80} does not exist; use one of {', '.join(_ROLE_OF_NAME)}")


def message_text(content: JsonObject) -> str | None:
    """The text of an event's content: `text`, `content` or `observation` as a string, or the text of its `parts`."""
    for key in ("text", "content", "observation"):
        if isinstance(value := content.get(key), str):
            return value
    parts = content.get("parts", content.get("content"))
    if not isinstance(parts, list):
        return None
    texts = [text for part in parts if isinstance(text := spoken_text(part), str)]
    return "".join(texts) if texts else None


def spoken_text(part: Any) -> Any:
    """The text of a part. A thought is not said: it is kept on the event and left out of the message."""
    return part.get("text") if isinstance(part, dict) and not part.get("thought") else None


@dataclass(frozen=True)
class MessagePage:
    """Some messages of a thread, oldest first, and whether there are later ones."""

    messages: list[Message]
    has_more: bool


class Messages:
    """Reads the messages of a thread, in pages of at most `limit` messages and `COGNIZES_PAGE_BYTES` bytes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(
        self, thread_id: UUID, *, after: int = 0, up_to: int | None = None, limit: int = 1000
    ) -> list[Message]:
        """The messages of `read_page`."""
        return (await self.read_page(thread_id, after=after, up_to=up_to, limit=limit)).messages

    async def read_page(
        self, thread_id: UUID, *, after: int = 0, up_to: int | None = None, limit: int = 1000
    ) -> MessagePage:
        """Oldest first; `up_to` an event's sequence number shows the conversation as it was then."""
        end = _END_OF_THREAD if up_to is None else up_to
        page = await self._database.fetch_page(
            "read_messages", thread_id, after, end, limit=limit, whole="read_messages_at", owner=(thread_id,)
        )
        return MessagePage([_message(row) for row in page.rows], page.has_more)


def _message(row: asyncpg.Record) -> Message:
    return Message(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        event_id=row["event_id"],
        sequence_num=row["sequence_num"],
        role=row["role"],
        content=unescape_text(row["content"]),
        metadata=load_jsonb(row["metadata"]),
        created_at=row["created_at"],
    )
