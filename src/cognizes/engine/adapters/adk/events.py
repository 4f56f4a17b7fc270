"""ADK events as rows of the engine's log and back, and copies of decoded events for the readers of a cache.

- `content` holds ADK's content unchanged (`role`, `parts`), so every reader of the log understands it. Its first key is
  `adk`, with the fields that only ADK knows: `timestamp` first, then branch, grounding metadata and so on. SQL
  recognises ADK's events and their time by these first bytes (`is_conversation`, `adk_event_time`).
- `actions` holds ADK's actions; the engine applies their `state_delta`.
- Bytes are base64, as in ADK's own JSON. Values without a JSON form become what pydantic makes of them.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import date, time, timedelta
from enum import Enum
from operator import attrgetter
from typing import Any, Protocol, Self, SupportsIndex, overload

import asyncpg
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types
from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaError, SchemaValidator, to_jsonable_python

from cognizes.engine import models
from cognizes.engine.database.documents import load_json
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import message_role, message_text

logger = logging.getLogger(__name__)

_COLUMNS = {"id", "invocation_id", "author"}
_NO_NODE = {"path": ""}
_EMPTY_ACTIONS = frozenset(name for name, info in EventActions.model_fields.items() if info.default_factory is dict)


def to_json(value: Any) -> Any:
    """Return a value as JSON data. NaN and the infinities stay; a value without a JSON form becomes its `repr`."""
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="constants", serialize_unknown=True)
    except UnicodeEncodeError:
        # Pydantic refuses keys with lone surrogates: convert the containers around them here.
        if isinstance(value, dict):
            return {key if isinstance(key, str) else str(to_json(key)): to_json(item) for key, item in value.items()}
        if isinstance(value, str):
            return value
        return [to_json(item) for item in value]


def usage_of(event: Event, *, model: str | None = None) -> models.TokenUsage | None:
    """Return what the model used for an event; `model` is its name, for models that do not report one.

    Gemini counts thoughts beside the candidates, and the results of its own tools beside the prompt.
    """
    found = event.usage_metadata
    if found is None:
        return None
    thoughts, cached = found.thoughts_token_count or 0, found.cached_content_token_count or 0
    return models.TokenUsage(
        event.model_version or model or models.UNKNOWN_MODEL,
        input_tokens=max(0, (found.prompt_token_count or 0) + (found.tool_use_prompt_token_count or 0)),
        output_tokens=max(0, (found.candidates_token_count or 0) + thoughts),
        cached_tokens=max(0, cached),
        reasoning_tokens=max(0, thoughts),
    )


def encode_event(event: Event, *, thread_id: str, run_id: str | None = None, model: str | None = None) -> models.Event:
    fields: JsonObject = to_json(event.model_dump(exclude=_COLUMNS, exclude_none=True))
    content: JsonObject | None = fields.pop("content", None)
    actions: JsonObject = fields.pop("actions")
    if fields["node_info"] == _NO_NODE:
        del fields["node_info"]
    if content == {}:
        # Empty content differs from no content.
        fields["content"] = {}
    return models.Event(
        id=event.id,
        thread_id=thread_id,
        invocation_id=event.invocation_id,
        author=event.author,
        event_type=event_kind(event),
        content={"adk": {"timestamp": fields.pop("timestamp"), **fields}, **(content or {})},
        actions={name: value for name, value in actions.items() if value != {} or name not in _EMPTY_ACTIONS},
        run_id=run_id,
        usage=usage_of(event, model=model),
    )


def encode_fragment(event: Event, *, thread_id: str) -> models.Event | None:
    """Return a fragment of a text as `encode_event` does, without what only a stored event needs; None for others.

    A model streams hundreds of these per second, and none is stored.
    """
    parts = event.content.parts if event.content else None
    if not event.partial or not parts or event.actions.state_delta or event.custom_metadata:
        return None
    fragments = [{"text": part.text, "thought": bool(part.thought)} for part in parts if part.text]
    if len(fragments) != len(parts):
        return None
    return models.Event(
        id=event.id,
        thread_id=thread_id,
        invocation_id=event.invocation_id,
        author=event.author,
        event_type="assistant_message",
        content={
            "adk": {"partial": True, "branch": event.branch},
            "role": event.content and event.content.role,
            "parts": fragments,
        },
    )


def event_kind(event: Event) -> str:
    """Return the type of an event for the timeline. An event with text is a message, also if it carries tool calls."""
    parts = event.content.parts if event.content else None
    if not parts:
        if event.error_code or event.error_message:
            return "error"
        return "state_update" if event.actions.state_delta else "message"
    if any(part.function_response for part in parts):
        return "observe"
    if event.author == "user":
        return "user_message"
    if any(part.text and not part.thought for part in parts):
        return "assistant_message"
    if any(part.function_call for part in parts):
        return "act"
    return "thought" if all(part.thought for part in parts) else "assistant_message"


def decode_event(row: asyncpg.Record) -> Event:
    """Return the ADK event of a row. For an event that ADK did not write, it carries the text and the state delta."""
    content: JsonObject = load_json(row["content"])
    actions: JsonObject = load_json(row["actions"])
    fields = content.pop("adk", None)
    if not isinstance(fields, dict) or "timestamp" not in fields:
        return _decode_foreign(row, content, actions)
    if content:
        fields["content"] = content
    fields |= {"id": row["id"], "invocation_id": row["invocation_id"], "author": row["author"], "actions": actions}
    try:
        return _validate_stored(fields)
    except ValidationError:
        # The hooks of the models accept forms that `encode_event` does not write.
        return Event.model_validate(fields)


_CONVENIENCES = frozenset({"_accept_convenience_kwargs", "_check_field_type_mismatches"})
"""Hooks of ADK and genai before the validation of a model, for callers that build it by hand: other names for fields,
and warnings about models of a wrong type. Stored events need neither."""
_NOT_SCHEMA = frozenset({"cls", "default", "default_factory", "function", "metadata", "serialization"})


def _validator_of_stored_events() -> Callable[[JsonObject], Event]:
    """Return `Event.model_validate` without the hooks in Python, which take two thirds of its time.

    Every field of every model is validated.
    """
    try:
        # With a prebuilt validator, that of the model would replace its schema.
        return SchemaValidator(_without_hooks(Event.__pydantic_core_schema__), _use_prebuilt=False).validate_python
    except (SchemaError, TypeError):
        logger.debug("this version of pydantic builds no validator without hooks; reading events is slower")
        return Event.model_validate


def _without_hooks(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_hooks(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "function-before":
        hook = node["function"]["function"]
        if getattr(hook, "__name__", "") in _CONVENIENCES:
            return _without_hooks(node["schema"])
    plain = {key: value if key in _NOT_SCHEMA else _without_hooks(value) for key, value in node.items()}
    if plain.get("cls") is types.Part:
        # Its constructor accepts files and images.
        plain["custom_init"] = False
    return plain


_validate_stored = _validator_of_stored_events()


def _decode_foreign(row: asyncpg.Record, content: JsonObject, actions: JsonObject) -> Event:
    event = models.Event(row["id"], "", row["invocation_id"], row["author"], row["event_type"], content)
    role = message_role(event)
    text = message_text(content) if role else None
    return Event(
        id=row["id"],
        invocation_id=row["invocation_id"],
        author=row["author"],
        timestamp=row["created_at"].timestamp(),
        content=None
        if text is None
        else types.Content(role="user" if role == "user" else "model", parts=[types.Part(text=text)]),
        actions=EventActions(state_delta=actions.get("state_delta") or {}),
    )


_UNCHANGEABLE = (type(None), str, int, float, bool, bytes, Enum, date, time, timedelta, frozenset)
_set = object.__setattr__


class EventTemplate:
    """A decoded event of the cache, never changed; `copy()` makes one that a reader may change.

    A template records which values are mutable, so a copy is twice as fast as `deepcopy` and five times as fast as
    decoding. Building the record takes longer than one copy, so the second copy builds it.
    """

    __slots__ = ("_root", "_was_copied", "event", "sequence")

    def __init__(self, event: Event, sequence: int) -> None:
        """Take ownership of the event: no other code changes it."""
        self._root: _ModelTemplate | None = None
        self._was_copied = False
        self.event = event
        self.sequence = sequence

    def copy(self) -> Event:
        """Return an event that shares no mutable value with this template."""
        event: Event
        if self._root is None:
            if not self._was_copied:
                self._was_copied = True
                event = _copy_once(self.event)
                return event
            self._root = _ModelTemplate(self.event)
        event = self._root.copy()
        return event


class _Template(Protocol):
    def copy(self) -> Any: ...


class _ModelTemplate:
    __slots__ = ("_children", "_fields", "_fields_set", "_kind", "_private")

    def __init__(self, model: BaseModel) -> None:
        self._kind = type(model)
        self._fields = model.__dict__
        self._fields_set = model.__pydantic_fields_set__
        self._private = model.__pydantic_private__
        self._children = _changeable(self._fields.items())

    def copy(self) -> Any:
        kind = self._kind
        clone = kind.__new__(kind)
        fields = self._fields.copy()
        for name, child in self._children:
            fields[name] = child.copy()
        _set(clone, "__dict__", fields)
        _set(clone, "__pydantic_fields_set__", self._fields_set.copy())
        _set(clone, "__pydantic_extra__", None)
        _set(clone, "__pydantic_private__", None if self._private is None else copy.deepcopy(self._private))
        return clone


class _ContainerTemplate:
    __slots__ = ("_children", "_container")

    def __init__(self, container: Any, children: tuple[tuple[Any, _Template], ...]) -> None:
        self._container = container
        self._children = children

    def copy(self) -> Any:
        clone = self._container.copy()
        for key, child in self._children:
            clone[key] = child.copy()
        return clone


class _OtherTemplate:
    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def copy(self) -> Any:
        return copy.deepcopy(self._value)


def _changeable(items: Iterable[tuple[Any, Any]]) -> tuple[tuple[Any, _Template], ...]:
    return tuple((key, _template(value)) for key, value in items if not isinstance(value, _UNCHANGEABLE))


def _template(value: Any) -> _Template:
    if isinstance(value, BaseModel) and value.__pydantic_extra__ is None:
        return _ModelTemplate(value)
    if type(value) is dict:
        return _ContainerTemplate(value, _changeable(value.items()))
    if type(value) is list:
        return _ContainerTemplate(value, _changeable(enumerate(value)))
    return _OtherTemplate(value)


_PLAIN_KINDS = frozenset({type(None), str, int, float, bool, bytes})


def _copy_once(value: Any) -> Any:
    """Return what `_template(value).copy()` returns, without building the template."""
    kind: Any = type(value)
    if kind is dict:
        return {key: item if type(item) in _PLAIN_KINDS else _copy_once(item) for key, item in value.items()}
    if kind is list:
        return [item if type(item) in _PLAIN_KINDS else _copy_once(item) for item in value]
    if isinstance(value, BaseModel) and value.__pydantic_extra__ is None:
        clone = kind.__new__(kind)
        private = value.__pydantic_private__
        _set(clone, "__dict__", _copy_once(value.__dict__))
        _set(clone, "__pydantic_fields_set__", value.__pydantic_fields_set__.copy())
        _set(clone, "__pydantic_extra__", None)
        _set(clone, "__pydantic_private__", copy.deepcopy(private) if private else private)
        return clone
    return value if isinstance(value, _UNCHANGEABLE) else copy.deepcopy(value)


_EVENT = attrgetter("event")


class LazyEvents(list[Event]):
    """The events of a session; each is copied from the cache when it is first read.

    A reader may change what it reads, so it gets copies, and gets them when it reads: many sessions are only asked
    whether they exist, or appended to. What C code reads without asking us, such as pydantic when it writes a session
    as JSON, is right, but is the cache's: it is only for reading.
    """

    def __init__(self, templates: tuple[EventTemplate, ...] = ()) -> None:
        super().__init__(map(_EVENT, templates))
        self._templates: tuple[EventTemplate, ...] | None = templates
        self._owned: set[int] = set()

    def _own(self, places: Iterable[int]) -> None:
        if self._templates is None:
            return
        for place in places:
            if place < len(self._templates) and place not in self._owned:
                super().__setitem__(place, self._templates[place].copy())
                self._owned.add(place)

    def _own_all(self) -> None:
        if self._templates is not None:
            self._own(range(len(self._templates)))
            self._templates = None

    # Reading a part copies that part.

    @overload
    def __getitem__(self, place: SupportsIndex) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Event | list[Event]:
        if self._templates is not None:
            if isinstance(place, slice):
                self._own(range(*place.indices(len(self))))
            else:
                index = place.__index__()
                self._own([index + len(self) if index < 0 else index] if -len(self) <= index < len(self) else [])
        return super().__getitem__(place)

    def __reversed__(self) -> Iterator[Event]:
        return (self[place] for place in range(len(self) - 1, -1, -1))

    # All other operations that return or move events copy all of them.

    def __iter__(self) -> Iterator[Event]:
        self._own_all()
        return super().__iter__()

    def __add__(self, other: list[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __mul__(self, times: SupportsIndex) -> list[Event]:
        return [*self] * times

    __rmul__ = __mul__

    def __imul__(self, times: SupportsIndex) -> Self:
        self._own_all()
        return super().__imul__(times)

    def __setitem__(self, place: Any, value: Any) -> None:
        self._own_all()
        super().__setitem__(place, value)

    def __delitem__(self, place: SupportsIndex | slice) -> None:
        self._own_all()
        super().__delitem__(place)

    def insert(self, place: SupportsIndex, event: Event) -> None:
        self._own_all()
        super().insert(place, event)

    def pop(self, place: SupportsIndex = -1) -> Event:
        self._own_all()
        return super().pop(place)

    def remove(self, event: Event) -> None:
        self._own_all()
        super().remove(event)

    def clear(self) -> None:
        self._templates = None
        super().clear()

    def reverse(self) -> None:
        self._own_all()
        super().reverse()

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._own_all()
        super().sort(key=key, reverse=reverse)

    def copy(self) -> list[Event]:
        return [*self]

    def __copy__(self) -> list[Event]:
        return [*self]

    def __reduce_ex__(self, _: SupportsIndex) -> tuple[type[list[Any]], tuple[list[Event]]]:
        return list, ([*self],)
