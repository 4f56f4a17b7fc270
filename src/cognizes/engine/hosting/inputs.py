"""What a client brings with an input beside its new message: an earlier conversation, and attachments.

The history that a client brings into a new thread: a caller that may write for agents brings messages in their roles.
Messages of an end user are different: the model must not take them for its own words or for results of its tools. Its
own messages stay; any other message is stored as a message of the user that quotes it. Clients see the original,
because the event keeps it under `client_history`, and its `metadata` marks it.

Attachments are checked when an input arrives, and read when the agent gets the conversation.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from ag_ui.core import (
    AssistantMessage,
    DataSource,
    DeveloperMessage,
    Message,
    SystemMessage,
    TextPart,
    ToolMessage,
    UrlSource,
    UserMessage,
)

from cognizes.engine.artifacts import Attachment
from cognizes.engine.artifacts.attachments import attachment_id_of
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import Event, JsonObject, Session, new_id
from cognizes.engine.timeline.event_reading import CLIENT_HISTORY, CLIENT_HISTORY_MARK, TEXT_FORMAT

_KINDS = (UserMessage, AssistantMessage, ToolMessage, SystemMessage, DeveloperMessage)


def messages_before(
    messages: Sequence[Message], new: Sequence[Message], *, stored: Collection[str] = ()
) -> list[Message]:
    """Return the messages that precede the new part of an input and are not stored, each id once.

    Reasoning and activities of an earlier conversation are left out: no agent reads them.
    """
    taken = {*stored, *(message.id for message in new)}
    earlier: list[Message] = []
    for message in messages:
        if message.id not in taken and isinstance(message, _KINDS):
            taken.add(message.id)
            earlier.append(message)
    return earlier


def marked(messages: Iterable[Message], *, is_end_user: bool) -> list[Message]:
    """Return a client's history as other clients receive it: with a mark on what an end user brought in another role.

    The mark is in the `metadata` of the message: a page must not show such a message as the agent's own words.
    """
    return [
        message
        if isinstance(message, UserMessage) or not is_end_user
        else message.model_copy(update={"metadata": {**(message.metadata or {}), **CLIENT_HISTORY_MARK}})
        for message in messages
    ]


def quoted(message: Message) -> str:
    """Return a message of another role as text of the user, every line quoted."""
    author = f"tool {message.tool_call_id}:" if isinstance(message, ToolMessage) else f"{message.role} wrote:"
    lines = [*author.splitlines(), *plain_text(message.content).splitlines()]
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls or ():
            lines += f"called {call.function.name} ({call.id}) with {call.function.arguments}".splitlines()
    quotation = "\n".join(f"> {line}" for line in lines)
    return f"Quoted by the user from an earlier conversation, not verified:\n{quotation}"


def history_events(messages: Iterable[Message], *, agent: str, is_end_user: bool) -> Iterable[Event]:
    """Yield the events of a client's history, in order."""
    for message in messages:
        if isinstance(message, UserMessage):
            yield _event("user_message", _user_content(message), message.id, author="user")
        elif is_end_user:
            original = message.model_dump(mode="json", by_alias=True)
            yield _event("user_message", {"text": quoted(message)}, message.id, author="user", mark=original)
        elif isinstance(message, AssistantMessage):
            if message.content:
                yield _event("assistant_message", {"text": plain_text(message.content)}, message.id, author=agent)
            for call in message.tool_calls or ():
                content: JsonObject = {
                    "tool_call_id": call.id,
                    "tool_name": call.function.name,
                    "tool_input": call.function.arguments,
                    "format": TEXT_FORMAT,
                    "parent_message_id": message.id,
                }
                yield _event("act", content, message.id, event_id=str(new_id()), author=agent)
        elif isinstance(message, ToolMessage):
            result: JsonObject = {"tool_call_id": message.tool_call_id, "is_error": bool(message.error)}
            result |= {"observation": message.error or plain_text(message.content), "format": TEXT_FORMAT}
            yield _event("observe", result, message.id, author=agent)
        else:
            yield _event("system_message", {"text": plain_text(message.content)}, message.id, author="system")


def plain_text(content: object) -> str:
    """Return the text of a message's content."""
    if isinstance(content, list):
        return "\n".join(text for part in content if isinstance(text := getattr(part, "text", None), str))
    return content if isinstance(content, str) else ""


def _user_content(message: UserMessage) -> JsonObject:
    if isinstance(message.content, str):
        return {"text": message.content}
    return {"content": [part.model_dump(mode="json", by_alias=True) for part in message.content]}


def _event(
    kind: str, content: JsonObject, message_id: str, *, author: str, event_id: str = "", mark: JsonObject | bool = True
) -> Event:
    return Event(
        id=event_id or message_id,
        thread_id="",
        invocation_id="",
        author=author,
        event_type=kind,
        content={**content, "message_id": message_id, CLIENT_HISTORY: mark},
    )


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


async def check_attachments(attachments: PromptAttachments, messages: Sequence[Message]) -> None:
    """Raise `InvalidInputError` when a message refers to an attachment that the session does not have."""
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
