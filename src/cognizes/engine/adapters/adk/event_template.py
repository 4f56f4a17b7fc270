"""Decoded events to make copies of, faster than decoding them again.

A reader may do with the events of its session what it likes; the cache must not notice. So the cache keeps templates,
and every reader gets objects of its own, all the way down. A template knows beforehand which values can be changed
and need a copy, which makes copying twice as fast as `deepcopy` and five times as fast as decoding. Finding that out
takes longer than copying once, so it is left to the second copy.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import date, time, timedelta
from enum import Enum
from typing import Any, Protocol

from google.adk.events.event import Event
from pydantic import BaseModel

_UNCHANGEABLE = (type(None), str, int, float, bool, bytes, Enum, date, time, timedelta, frozenset)
_set = object.__setattr__


class EventTemplate:
    """An event that nobody changes; `copy()` makes one that somebody may."""

    __slots__ = ("_root", "_was_copied", "event", "sequence")

    def __init__(self, event: Event, sequence: int) -> None:
        """Takes the event over: from now on it is only for reading."""
        self._root: _ModelTemplate | None = None
        self._was_copied = False
        self.event = event
        self.sequence = sequence

    def copy(self) -> Event:
        """An event that shares nothing with this template."""
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
    """A dict or a list."""

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
    """Anything else that can be changed."""

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
    """What `_template(value).copy()` makes, without the template."""
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
