"""Read the parts of stored events, in the formats of Google ADK (`content.parts`) and of the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import message_role, message_text, spoken_text

_MEDIA = ("image", "audio", "video")
REQUEST_PREFIX = "adk_request_"
"""Prefix of the functions by which ADK asks a person; no tool answers them."""
TEXT_FORMAT = "text"
"""The `format` of a call or result whose arguments or output are stored as the text that the agent sent."""

CLIENT_HISTORY = "client_history"
"""Marks an event that a client brought into a new thread from an earlier conversation: true, or the AG-UI message as
the client has it. The author of one that an end user quotes is `user`."""

CLIENT_HISTORY_MARK: JsonObject = {"cognizes": {"clientHistory": True}}
"""The `metadata` of an AG-UI message that an end user brought in another role than its own: no agent wrote it."""

CLIENT_CALLS = "agui_client_calls"
"""The key of ADK's `custom_metadata` with the ids of the event's calls that tools of the client answer."""

SHOWN_BEFORE = "shown_before"
"""The message or call before which clients have that of an event: it began earlier and ended later, as of parallel
nodes of a graph."""

AGUI_PARTS = "agui_parts"
"""The key of ADK's `custom_metadata` with the parts of a user's message as its client sent them, without their data."""


@dataclass(frozen=True)
class Text:
    text: str
    is_thought: bool = False


@dataclass(frozen=True)
class Call:
    """A tool call. `text` is the text of the arguments as the agent sent it, if that is not their canonical JSON;
    `parent_id` is the message that holds the call, None for the message of the event."""

    id: str
    name: str
    arguments: Any
    text: str | None = None
    parent_id: str | None = None


@dataclass(frozen=True)
class CallFragment:
    """A part of a tool call that ADK streams: `arguments` are fragments by JSON path, in order."""

    id: str
    name: str
    arguments: list[JsonObject]


@dataclass(frozen=True)
class Result:
    """The result of a tool. ADK stores the name of the tool; the engine's own results may only refer to the call.

    `text` is the output as the agent sent it, if that is not the canonical JSON of `content`.
    """

    call_id: str
    content: Any
    name: str = ""
    is_error: bool = False
    text: str | None = None


@dataclass(frozen=True)
class Question:
    """A question to a person; the run waits for a function response to `id`."""

    id: str
    name: str
    arguments: JsonObject


@dataclass(frozen=True)
class Answer:
    """The answer of a person to the question `id`."""

    id: str


Part = Text | Call | Result | Question | Answer


def read_parts(event: Event) -> Iterator[Part]:
    """Return the parts of an event in order. A user's message is only text, unless ADK wrote the event."""
    given = event.content.get("parts")
    if not isinstance(given, list):
        return _engine_parts(event)
    parts = [part for part in given if isinstance(part, dict)]
    if "adk" not in event.content and (message_role(event) == "user" or event.author == "user"):
        return _user_parts(event, parts)
    return _adk_parts(event, parts)


def is_text_of_user(event: Event) -> bool:
    """Return whether an event is a text of the user, which abandons open questions and calls of client tools."""
    is_user = message_role(event) == "user" or event.author == "user"
    return is_user and any(isinstance(part, Text) for part in read_parts(event))


def adk_field(event: Event, name: str) -> Any:
    fields = event.content.get("adk")
    return fields.get(name) if isinstance(fields, dict) else None


def client_history_of(event: Event) -> JsonObject | bool:
    """Return whether a client brought an event from an earlier conversation; its message, if the event differs."""
    mark = event.content.get(CLIENT_HISTORY)
    if mark is None and isinstance(metadata := adk_field(event, "custom_metadata"), dict):
        mark = metadata.get(CLIENT_HISTORY)
    return mark if isinstance(mark, dict) else bool(mark)


def user_content(event: Event) -> list[JsonObject] | None:
    """Return the AG-UI parts of a user's message that contains media; None for a message of text only."""
    if event.event_type != "user_message":
        return None
    given = event.content.get("content")
    if isinstance(given, list):
        return given
    parts = event.content.get("parts")
    if not isinstance(parts, list) or not any(_medium(part) for part in parts):
        return None
    metadata = adk_field(event, "custom_metadata")
    known = metadata.get(AGUI_PARTS) if isinstance(metadata, dict) else None
    forms = known if isinstance(known, list) and len(known) == len(parts) else [None] * len(parts)
    return [_agui_part(part, form) for part, form in zip(parts, forms, strict=True)]


def _medium(part: Any) -> JsonObject | None:
    found = part.get("inline_data") or part.get("file_data") if isinstance(part, dict) else None
    return found if isinstance(found, dict) else None


def _agui_part(part: Any, form: Any) -> JsonObject:
    if (medium := _medium(part)) is None:
        return {"type": "text", "text": str(part.get("text") or "") if isinstance(part, dict) else ""}
    mime_type = str(medium.get("mime_type") or "application/octet-stream")
    kind = mime_type.partition("/")[0]
    shown: JsonObject = form if isinstance(form, dict) else {"type": kind if kind in _MEDIA else "document"}
    source = shown.get("source")
    if "data" in medium:
        # Pydantic writes base64 for URLs, AG-UI has the usual alphabet.
        value = str(medium["data"]).replace("-", "+").replace("_", "/")
        kept: JsonObject = {"type": "data", "value": value, "mimeType": mime_type}
    else:
        kept = {"type": "url", "value": str(medium.get("file_uri") or "")}
        if medium.get("mime_type"):
            kept["mimeType"] = mime_type
    return {**shown, "source": {**(source if isinstance(source, dict) else {}), **kept}}


def media_of(event: Event) -> list[JsonObject]:
    """Return the media of a user's message for listings: type, media type, name, size and URL, without their data."""
    media: list[JsonObject] = []
    for part in user_content(event) or ():
        source = part.get("source") if isinstance(part, dict) else None
        if not isinstance(source, dict):
            continue
        metadata = part.get("metadata")
        item: JsonObject = {"type": part.get("type"), "mimeType": source.get("mimeType")}
        if isinstance(metadata, dict):
            item |= {key: metadata[key] for key in ("name", "size") if key in metadata}
        if source.get("type") == "data":
            item["size"] = len(str(source.get("value"))) * 3 // 4
        else:
            item["url"] = source.get("value")
        media.append(item)
    return media


def is_partial(event: Event) -> bool:
    """Return whether an event is a fragment of a later one."""
    return bool(adk_field(event, "partial"))


def read_call_fragments(event: Event) -> Iterator[Text | CallFragment]:
    """Return the texts and the fragments of tool calls of an ADK event that is a fragment of a later one.

    A call without streamed arguments is left out: the later event contains it.
    """
    given = event.content.get("parts")
    for part in given if isinstance(given, list) else ():
        call = part.get("function_call")
        if isinstance(text := part.get("text"), str) and text:
            yield Text(text, is_thought=bool(part.get("thought")))
        elif isinstance(call, dict) and call.get("id") and (call.get("partial_args") or call.get("will_continue")):
            yield CallFragment(str(call["id"]), str(call.get("name") or ""), call.get("partial_args") or [])


def long_running_calls(event: Event) -> set[str]:
    """Return the ids of the event's tool calls that are answered later from outside the run."""
    if event.event_type == "act" and event.content.get("client_tool") and not event.content.get("interrupted"):
        return {str(event.content.get("tool_call_id"))}
    return _ids(adk_field(event, "long_running_tool_ids"))


def unconfirmed_calls(event: Event) -> set[str]:
    """Return the ids of tool calls whose result in this event only announces a required confirmation or credential."""
    return _ids(event.actions.get("requested_tool_confirmations")) | _ids(event.actions.get("requested_auth_configs"))


def _ids(given: Any) -> set[str]:
    return {item for item in given if isinstance(item, str)} if isinstance(given, list | dict) else set()


def _user_parts(event: Event, parts: list[JsonObject]) -> Iterator[Part]:
    if message_role(event) is not None:
        yield from (Text(text) for part in parts if isinstance(text := spoken_text(part), str) and text)


def _adk_parts(event: Event, parts: list[JsonObject]) -> Iterator[Part]:
    for number, part in enumerate(parts):
        # Fields of an unexpected type are ignored: data of one writer must not break the readers of the thread.
        text, call, response = (part.get(name) for name in ("text", "function_call", "function_response"))
        if isinstance(text, str) and text:
            yield Text(text, is_thought=bool(part.get("thought")))
        # A user calls no tools, whatever the client sends.
        if isinstance(call, dict) and call and event.author != "user":
            yield _call(call, fallback=f"{event.id}/{number}")
        if isinstance(response, dict) and response:
            yield _response(response, fallback=f"{event.id}/{number}")


def _call(call: JsonObject, *, fallback: str) -> Call | Question:
    identifier, name = str(call.get("id") or fallback), str(call.get("name") or "")
    if name.startswith(REQUEST_PREFIX):
        return Question(identifier, name, call.get("args") or {})
    return Call(identifier, name, call.get("args") or {})


def _response(response: JsonObject, *, fallback: str) -> Result | Answer:
    identifier, name = str(response.get("id") or fallback), str(response.get("name") or "")
    if name.startswith(REQUEST_PREFIX):
        return Answer(identifier)
    content = response.get("response")
    # ADK's function tools report a failure in this form.
    is_error = isinstance(content, dict) and bool(content.get("error"))
    return Result(identifier, content, name=name, is_error=is_error)


def _engine_parts(event: Event) -> Iterator[Part]:
    content = event.content
    call_id = str(content.get("tool_call_id") or event.id)
    if event.event_type in ("act", "tool_call"):
        name = str(content.get("tool_name") or content.get("name") or "")
        given = content.get("tool_input", content.get("args", {}))
        text = _given_text(content, given)
        parent = content.get("parent_message_id")
        arguments = given if text is None else parse_document(text)
        yield Call(call_id, name, arguments, text, parent if isinstance(parent, str) else None)
    elif event.event_type in ("observe", "tool_result"):
        output = content.get("observation", content.get("output", content.get("text", content)))
        name = str(content.get("tool_name") or content.get("name") or "")
        text = _given_text(content, output)
        value = output if text is None else parse_document(text)
        yield Result(call_id, value, name=name, is_error=bool(content.get("is_error")), text=text)
    elif event.event_type == "thought":
        thought = content.get("thought", content.get("text"))
        if isinstance(thought, str) and thought:
            yield Text(thought, is_thought=True)
    elif message_role(event) is not None and (text := message_text(content)):
        yield Text(text)


def _given_text(content: JsonObject, value: Any) -> str | None:
    return value if content.get("format") == TEXT_FORMAT and isinstance(value, str) else None


def parse_document(text: str) -> Any:
    """Return the JSON object or array of a text; the text itself if it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
