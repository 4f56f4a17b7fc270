"""Items of the OpenAI Responses API as events of a thread, and back.

Each item is one event. Its content begins with the exact item under `openai`; the other keys are what the timeline, the
Monitor and Signal-Pull show. Events that another writer stored in the thread are read as items of the same meaning.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, cast

from agents import TResponseInputItem

from cognizes.engine.adapters.conversations import new_event
from cognizes.engine.database.documents import load_json
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import message_role
from cognizes.engine.timeline.event_reading import Call, Result, Text, read_parts

KEY: Final = "openai"
MARK: Final = '{"openai":'
"""How the content of an item's event begins. SQL compares it without parsing."""
OTHER_ITEM: Final = "openai_item"
"""The kind of items that are no message, thought, tool call or result. The timeline omits them."""
ITEM_KINDS: Final = [
    "user_message",
    "assistant_message",
    "system_message",
    "message",
    "thought",
    "act",
    "tool_call",
    "observe",
    "tool_result",
    OTHER_ITEM,
]
_KIND_OF_ROLE = {
    "user": "user_message",
    "assistant": "assistant_message",
    "system": "system_message",
    "developer": "system_message",
}
_ARGUMENTS = ("arguments", "action", "input", "code", "queries", "operation")
_OUTPUTS = ("output", "outputs", "results", "result")


def event_of_item(item: TResponseInputItem) -> Event:
    """Return the event of an item; `InvalidInputError` if it is no object."""
    if not isinstance(item, dict):
        raise InvalidInputError(f"an item of a session must be a dict, not {type(item).__name__}")
    given = cast(JsonObject, item)
    kind, author, shown = _describe(given)
    return new_event(kind, author=author, content={KEY: given, **shown})


def items_of_event(event: Event) -> list[TResponseInputItem]:
    """Return the items of an event: the stored one, or those that say the same as an event of another writer.

    The stored item must be of the event's kind and author: a user's event cannot contain an item of the assistant.
    """
    if isinstance(item := event.content.get(KEY), dict) and _kind_and_author(item) == (event.event_type, event.author):
        return [cast(TResponseInputItem, item)]
    return [cast(TResponseInputItem, item) for item in _foreign_items(event)]


def items_of_documents(documents: str) -> list[TResponseInputItem]:
    """Return the items of the events of `read_session_documents`, as `items_of_event` does.

    Most events are items of the SDK. They are one document, because a call of the parser takes longer than an item.
    """
    items: list[TResponseInputItem] = []
    for kind, author, content, *others in load_json(documents):
        item = content.get(KEY) if isinstance(content, dict) else None
        if isinstance(item, dict) and _kind_and_author(item) == (kind, author):
            items.append(cast(TResponseInputItem, item))
            continue
        event_id, actions = others or ("", None)
        event = Event(event_id, "", "", author=author, event_type=kind, content=content, actions=actions or {})
        items += [cast(TResponseInputItem, one) for one in _foreign_items(event)]
    return items


def is_user_item(item: TResponseInputItem) -> bool:
    return isinstance(item, dict) and item.get("role") == "user"


def item_text(content: Any) -> str | None:
    """Return the text of a message's content: a string, or the texts and refusals of its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = [
        text
        for part in content
        if isinstance(part, dict) and isinstance(text := part.get("text", part.get("refusal")), str)
    ]
    return "".join(texts) if texts else None


def _kind_and_author(item: JsonObject) -> tuple[str, str]:
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "message" and isinstance(role, str) and role in _KIND_OF_ROLE:
        return _KIND_OF_ROLE[role], "system" if role == "developer" else role
    return _describe(item)[:2]


def _describe(item: JsonObject) -> tuple[str, str, JsonObject]:
    """Return the kind, the author and the shown content of an item's event."""
    kind = item.get("type", "message")
    role = item.get("role")
    if kind == "message" and isinstance(role, str) and role in _KIND_OF_ROLE:
        text = item_text(item.get("content"))
        return *_kind_and_author(item), {} if text is None else {"text": text}
    if kind == "reasoning":
        text = item_text(item.get("summary")) or item_text(item.get("content"))
        return "thought", "assistant", {"text": text} if text else {}
    if not isinstance(kind, str):
        return OTHER_ITEM, "assistant", {}
    call_id = item.get("call_id") or item.get("id")
    reference: JsonObject = {"tool_call_id": call_id} if isinstance(call_id, str) else {}
    if kind.endswith(("_call_output", "_approval_response")):
        output = _first(item, _OUTPUTS)
        return "observe", "tool", {**reference, "observation": item_text(output) or output}
    if kind.endswith("_call"):
        name = item.get("name") or kind.removesuffix("_call")
        return "act", "assistant", {"tool_name": name, **reference, "tool_input": _arguments(item)}
    return OTHER_ITEM, "assistant", {}


def _arguments(item: JsonObject) -> Any:
    arguments = _first(item, _ARGUMENTS)
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _first(item: JsonObject, names: tuple[str, ...]) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _foreign_items(event: Event) -> Iterator[JsonObject]:
    for part in read_parts(event):
        match part:
            case Text(text=text, is_thought=False):
                yield {"role": message_role(event) or "assistant", "content": text}
            case Call(id=call_id, name=name, arguments=arguments):
                yield {"type": "function_call", "call_id": call_id, "name": name, "arguments": as_text(arguments)}
            case Result(call_id=call_id, content=content):
                yield {"type": "function_call_output", "call_id": call_id, "output": as_text(content)}
            case _:
                pass


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
