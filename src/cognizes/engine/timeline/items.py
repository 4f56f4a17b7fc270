"""A stored event as items of the timeline, in the words of seed 002."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.messages import message_role
from cognizes.engine.timeline.event_kinds import ASSISTANT_MESSAGE, THOUGHT, TOOL_CALL, TOOL_RESULT, USER_MESSAGE
from cognizes.engine.timeline.event_reading import (
    Call,
    Part,
    Result,
    Text,
    is_partial,
    read_parts,
    unconfirmed_calls,
)

_ID_PREFIX = {
    USER_MESSAGE: USER_MESSAGE,
    ASSISTANT_MESSAGE: ASSISTANT_MESSAGE,
    THOUGHT: "thought",
    TOOL_CALL: "act",
    TOOL_RESULT: "observe",
}


def items_of(event: Event) -> list[JsonObject]:
    """The items of an event, one for each of its parts; none when there is nothing to show.

    Text that was cut into adjacent parts is one item. Blank thoughts, a question to a person and the note that a tool
    awaits a confirmation are left out.
    """
    if is_partial(event):
        return []
    items = list(_items(event))
    _number(event, items)
    return items


def _items(event: Event) -> Iterator[JsonObject]:
    parts = list(read_parts(event))
    if not parts and (content := _wordless(event)) is not None:
        yield _item(event, _speaker(event), content=content)
        return
    unconfirmed = unconfirmed_calls(event)
    for (is_text, is_thought), group in groupby(parts, key=_manner):
        if is_text:
            text = "".join(part.text for part in group if isinstance(part, Text))
            kind = THOUGHT if is_thought else _speaker(event)
            if kind is not None and (text.strip() or kind != THOUGHT):
                yield _item(event, kind, content=text)
            continue
        for part in group:
            if isinstance(part, Call):
                yield _item(event, TOOL_CALL, toolCallId=part.id, toolName=part.name or None, toolInput=part.arguments)
            elif isinstance(part, Result) and part.call_id not in unconfirmed:
                yield _item(
                    event,
                    TOOL_RESULT,
                    toolCallId=part.call_id,
                    toolName=part.name or None,
                    toolOutput=part.content,
                    isError=part.is_error,
                )


def _manner(part: Part) -> tuple[bool, bool]:
    return isinstance(part, Text), isinstance(part, Text) and part.is_thought


def _speaker(event: Event) -> str | None:
    """Whose item a text is. What the system or a tool says as a `message` is for the model, not for the screen."""
    if event.author == "user" and "adk" in event.content:
        return USER_MESSAGE
    role = message_role(event)
    if role == "user":
        return USER_MESSAGE
    return None if role in ("system", "tool") and "adk" not in event.content else ASSISTANT_MESSAGE


def _wordless(event: Event) -> object:
    """The content of a message that has no text: empty, or made of parts such as images."""
    if "adk" in event.content or _speaker(event) is None or event.event_type not in _SAID:
        return None
    for key in ("text", "content"):
        if key in event.content:
            return event.content[key]
    return None


_SAID = (USER_MESSAGE, ASSISTANT_MESSAGE, "message")


def _item(event: Event, kind: str | None, **fields: object) -> JsonObject:
    item: JsonObject = {
        "type": kind,
        "sequenceNumber": event.sequence_num,
        "timestamp": int(event.created_at.timestamp() * 1000) if event.created_at else None,
        **fields,
    }
    if kind == ASSISTANT_MESSAGE and event.content.get("interrupted"):
        item["interrupted"] = True
    return item


def _number(event: Event, items: list[JsonObject]) -> None:
    """Give ids: the message's own where it has one, else `{kind}-{sequence}`; what comes twice is counted."""
    message_id = _message_id(event)
    seen: dict[str, int] = {}
    for item in items:
        is_message = item["type"] in (USER_MESSAGE, ASSISTANT_MESSAGE)
        name = message_id if is_message and message_id else f"{_ID_PREFIX[item['type']]}-{event.sequence_num}"
        count = seen[name] = seen.get(name, -1) + 1
        item["id"] = name if count == 0 else f"{name}/{count}"


def _message_id(event: Event) -> str | None:
    given = event.content.get("message_id")
    if isinstance(given, str) and given:
        return given
    # ADK has no other id for a message than its event's, under which it was streamed.
    return event.id if "adk" in event.content else None
