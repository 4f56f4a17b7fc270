"""Filters of memories: agent, kind, namespace, time, tags, and values and ranges of metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from cognizes.engine.database.documents import dump_jsonb
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import check_text

KINDS = ("long_term", "episodic", "turn", "note")
_MAX_ENTRIES = 64
_MAX_NAME = 200
_MAX_VALUE = 1000
_FIRST_ESCAPED = 1e16
_OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

Scalar = str | int | float | bool | None
MetadataValue = Scalar | Sequence[Scalar]


@dataclass(frozen=True)
class Range:
    """Bounds of a value of metadata: numbers, or texts such as ISO dates. A value of another type does not match."""

    gt: int | float | str | None = None
    gte: int | float | str | None = None
    lt: int | float | str | None = None
    lte: int | float | str | None = None

    @property
    def bounds(self) -> dict[str, int | float | str]:
        return {name: value for name in _OPERATORS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Filters:
    """Filters of a recall; None matches all. `since` is inclusive, `until` is exclusive.

    A memory matches if it has all `tags` and all values of `metadata`; a list matches a list that contains its items.
    """

    agent: str | None = None
    kinds: Sequence[str] | None = None
    namespace: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    tags: Sequence[str] | None = None
    metadata: Mapping[str, MetadataValue | Range] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            raise InvalidInputError(f"kinds must be a list, not one text; kinds are {', '.join(KINDS)}")
        if unknown := [kind for kind in self.kinds or () if kind not in KINDS]:
            raise InvalidInputError(f"unknown kind of memory {unknown[0]!r}; kinds are {', '.join(KINDS)}")
        for moment in (self.since, self.until):
            if moment is not None and moment.tzinfo is None:
                raise InvalidInputError("since and until need a time zone; use an aware datetime")

    def seen_as(self, visibility: str, app: str) -> Filters:
        """Return the filters for a visibility: memories of an app have no agent, those of an agent need one."""
        if visibility == "app":
            return replace(self, agent=None)
        return replace(self, agent=self.agent or app) if visibility == "agent" else self

    @property
    def document(self) -> str | None:
        """The argument of the queries: the attributes of the SQL type `memory_filter`; None without a filter."""
        found: JsonObject = {
            "agent_id": None if self.agent is None else check_text("agent", self.agent),
            "kinds": None if self.kinds is None else list(self.kinds),
            "namespace": None if self.namespace is None else check_text("namespace", self.namespace),
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "tags": check_tags(self.tags) if self.tags else None,
            **_conditions(self.metadata or {}),
        }
        given = {name: value for name, value in found.items() if value is not None}
        return dump_jsonb(given) if given else None


def _conditions(metadata: Mapping[str, MetadataValue | Range]) -> JsonObject:
    if len(metadata) > _MAX_ENTRIES:
        raise InvalidInputError(f"metadata has {len(metadata)} names; at most {_MAX_ENTRIES} are allowed")
    equal = check_metadata({name: value for name, value in metadata.items() if not isinstance(value, Range)})
    ranges = {name: _check_range(name, value) for name, value in metadata.items() if isinstance(value, Range)}
    if not ranges:
        return {"metadata": equal or None}
    # JSON escapes what would end a name or a text in jsonpath.
    comparisons = [
        f"$.{json.dumps(name)} {_OPERATORS[operator]} {json.dumps(bound)}"
        for name, bounds in ranges.items()
        for operator, bound in bounds.items()
    ]
    name, bounds = max(ranges.items(), key=lambda item: len(item[1]))
    limits = [bounds.get("gte", bounds.get("gt")), bounds.get("lte", bounds.get("lt"))]
    column = "range_texts" if any(isinstance(limit, str) for limit in limits) else "range_numbers"
    path = "strict " + " && ".join(comparisons)
    return {"metadata": equal or None, "ranges": path, "range_name": name, column: limits}


def _check_range(name: str, value: Range) -> dict[str, int | float | str]:
    bounds = value.bounds
    if (
        not bounds
        or len({isinstance(bound, str) for bound in bounds.values()}) > 1
        or any(isinstance(bound, bool) for bound in bounds.values())
    ):
        raise InvalidInputError(f"invalid range of metadata {name!r}; give numbers or texts as gt, gte, lt or lte")
    checked = check_metadata({name: list(bounds.values())})
    return dict(zip(bounds, checked[name], strict=True))


def check_tags(tags: Sequence[str]) -> list[str]:
    """Return the distinct tags, sorted. Raise `InvalidInputError` for a tag that is empty or too long."""
    if isinstance(tags, str):
        raise InvalidInputError("tags must be a list of texts, not one text")
    if len(tags) > _MAX_ENTRIES:
        raise InvalidInputError(f"{len(tags)} tags; at most {_MAX_ENTRIES} are allowed")
    for tag in tags:
        if not check_text("tag", tag, longest=_MAX_NAME):
            raise InvalidInputError("a tag is empty; remove it or give it a name")
    return sorted(set(tags))


def check_metadata(metadata: Mapping[str, MetadataValue]) -> JsonObject:
    """Return metadata as an object. Raise `InvalidInputError` for values that filters cannot compare."""
    if len(metadata) > _MAX_ENTRIES:
        raise InvalidInputError(f"metadata has {len(metadata)} names; at most {_MAX_ENTRIES} are allowed")
    for name, value in metadata.items():
        if not check_text("name of metadata", name, longest=_MAX_NAME):
            raise InvalidInputError("a name of metadata is empty; give it a name")
        items = [value] if isinstance(value, Scalar) else list(value) if isinstance(value, Sequence) else None
        if items is None or len(items) > _MAX_ENTRIES or not all(_is_comparable(item) for item in items):
            raise InvalidInputError(
                f"invalid value of metadata {name!r}; use a text of at most {_MAX_VALUE} bytes, a finite number, "
                f"a boolean, null, or a list of at most {_MAX_ENTRIES} of them"
            )
    return {
        name: _as_stored(value) if isinstance(value, Scalar) else [_as_stored(item) for item in value]
        for name, value in metadata.items()
    }


def _as_stored(value: Scalar) -> Scalar:
    """Return floats that `jsonb` columns would contain in an escaped form, from 1e16 on and -0.0, as integers."""
    if isinstance(value, float) and (abs(value) >= _FIRST_ESCAPED or value == 0):
        return int(value)
    return value


def _is_comparable(value: object) -> bool:
    if isinstance(value, str):
        return len(check_text("value of metadata", value).encode()) <= _MAX_VALUE
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 10**300)
