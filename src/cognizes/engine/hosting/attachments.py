"""Attachments of messages: checked when an input arrives, and read when the agent gets the conversation."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from ag_ui.core import DataSource, Message, TextPart, UrlSource, UserMessage

from cognizes.engine.artifacts import Attachment
from cognizes.engine.artifacts.attachments import attachment_id_of
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import Session


class PromptAttachments:
    """The attachments of one prompt, each looked up and read once: messages can repeat a reference many times.

    Together they have at most `room` bytes; each reference counts.
    """

    def __init__(self, engine: Engine, session: Session, *, room: int) -> None:
        self._attachments = engine.attachments
        self._session = session
        self._room = room
        self._found: dict[str, Attachment | None] = {}
        self._data: dict[str, bytes] = {}

    async def find(self, attachment_id: str) -> Attachment | None:
        """Return an attachment of the session; None if the session has none of this id."""
        if attachment_id not in self._found:
            self._found[attachment_id] = await self._attachments.find(self._session, attachment_id)
        return self._found[attachment_id]

    async def read(self, attachment_id: str) -> tuple[Attachment, bytes] | str:
        """Return an attachment with its bytes; if it was deleted or does not fit, the text that names it instead."""
        found = await self.find(attachment_id)
        if found is None or found.size > self._room:
            return note_of(found)
        self._room -= found.size
        if attachment_id not in self._data:
            self._data[attachment_id] = await self._attachments.read(found)
        return found, self._data[attachment_id]


async def check_attachments(engine: Engine, session: Session, messages: Sequence[Message]) -> None:
    """Raise `InvalidInputError` when a message refers to an attachment that the session does not have."""
    attachments = PromptAttachments(engine, session, room=0)
    for message in messages:
        for part, attachment_id in _references(message):
            if await attachments.find(attachment_id) is None:
                raise InvalidInputError(
                    f"the {part.type} of message {message.id!r:.80} refers to the attachment {attachment_id!r:.80}, "
                    "which this thread does not have; upload it to this thread first"
                )


async def with_attachments(
    engine: Engine, session: Session, messages: Sequence[Message], *, is_multimodal: bool
) -> list[Message]:
    """Return messages that contain the bytes of their attachments, as base64.

    Together they have at most `COGNIZES_MAX_ARTIFACT_BYTES`, the newest first. A part that is older, deleted, or for an
    agent that only reads text becomes a text that names it.
    """
    room = engine.settings.max_artifact_bytes if is_multimodal else 0
    attachments = PromptAttachments(engine, session, room=room)
    filled: list[Message] = []
    for message in reversed(messages):
        if not any(True for _ in _references(message)) or not isinstance(message, UserMessage):
            filled.append(message)
            continue
        parts: list[Any] = []
        content: Sequence[Any] = message.content
        for part in content:
            attachment_id = _reference(part)
            if attachment_id is None:
                parts.append(part)
                continue
            read = await attachments.read(attachment_id)
            if isinstance(read, str):
                parts.append(TextPart(text=read))
                continue
            found, data = read
            source = DataSource(value=base64.b64encode(data).decode("ascii"), mime_type=found.mime_type)
            parts.append(part.model_copy(update={"source": source}))
        filled.append(message.model_copy(update={"content": parts}))
    return filled[::-1]


def note_of(attachment: Attachment | None) -> str:
    """Return the text that a model gets instead of an attachment."""
    if attachment is None:
        return "[an attachment that was deleted]"
    return f"[attachment {attachment.name} ({attachment.mime_type}, {attachment.size} bytes), not included]"


def _references(message: Message) -> Iterator[tuple[Any, str]]:
    if isinstance(message, UserMessage) and isinstance(message.content, list):
        for part in message.content:
            if (attachment_id := _reference(part)) is not None:
                yield part, attachment_id


def _reference(part: Any) -> str | None:
    source = getattr(part, "source", None)
    return attachment_id_of(source.value) if isinstance(source, UrlSource) else None
