"""A list of events that copies each one when it is first looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Self, SupportsIndex, overload

from google.adk.events.event import Event

from cognizes.engine.adapters.adk.event_template import EventTemplate

_EVENT = attrgetter("event")


class LazyEvents(list[Event]):
    """The events of a session, some of them still the cache's own.

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

    # Reading a part owns that part.

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

    # Everything else that hands out or moves events owns them all.

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
        """As of a list."""
        self._own_all()
        super().insert(place, event)

    def pop(self, place: SupportsIndex = -1) -> Event:
        """As of a list."""
        self._own_all()
        return super().pop(place)

    def remove(self, event: Event) -> None:
        """As of a list."""
        self._own_all()
        super().remove(event)

    def clear(self) -> None:
        """As of a list."""
        self._templates = None
        super().clear()

    def reverse(self) -> None:
        """As of a list."""
        self._own_all()
        super().reverse()

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """As of a list."""
        self._own_all()
        super().sort(key=key, reverse=reverse)

    def copy(self) -> list[Event]:
        """A plain list."""
        return [*self]

    def __copy__(self) -> list[Event]:
        return [*self]

    def __reduce_ex__(self, _: SupportsIndex) -> tuple[type[list[Any]], tuple[list[Event]]]:
        """Pickled and deeply copied as a plain list."""
        return list, ([*self],)
