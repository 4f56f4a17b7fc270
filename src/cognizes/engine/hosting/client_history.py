"""The history that a client brings into a new thread.

A caller that may write for agents brings messages in their roles. Messages of an end user are different: the model
must not take them for its own words or for results of its tools. Its own messages stay; any other message is stored as
a message of the user that quotes it. Clients see the original, because the event keeps it under `client_history`, and
its `metadata` marks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ag_ui.core import AssistantMessage, DeveloperMessage, Message, SystemMessage, ToolMessage, UserMessage

from cognizes.engine.models import Event, JsonObject, new_id
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
