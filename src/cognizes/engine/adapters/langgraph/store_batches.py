"""Operations of a store as arguments of SQL, and the batches in which concurrent callers share round trips."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import asyncpg
from langgraph.store.base import MatchCondition

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.documents import dump_jsonb
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.group_commit import GroupCommit
from cognizes.engine.pulse.sessions import RunFence

_MAX_NAMESPACE_BYTES = 1500
_READERS = 4
_COMPARISONS = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"})
Rows = list[asyncpg.Record]


def namespace_text(labels: Iterable[str]) -> str:
    """Return a namespace as it is stored: each label followed by a full stop, which LangGraph allows in no label."""
    text = "".join(f"{check_text('a label of the namespace', label)}." for label in labels)
    if len(text.encode()) > _MAX_NAMESPACE_BYTES:
        raise InvalidInputError(f"the namespace {text[:60]}… is longer than {_MAX_NAMESPACE_BYTES} bytes; shorten it")
    return text


def namespace_labels(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")[:-1])


def conditions_text(conditions: Mapping[str, Any] | None) -> str | None:
    """Return the conditions of a search's filter as JSON; `ValueError`, as LangGraph's stores, for other operators."""
    return dump_jsonb(list(_conditions([], dict(conditions)))) if conditions else None


def _conditions(path: list[str], expected: Any) -> Iterable[dict[str, Any]]:
    if isinstance(expected, dict) and any(str(key).startswith("$") for key in expected):
        for operator, value in expected.items():
            if operator not in _COMPARISONS:
                raise ValueError(f"Unsupported operator: {operator}; use one of {', '.join(sorted(_COMPARISONS))}")
            yield {"path": path, "operator": operator, "value": value}
    elif isinstance(expected, dict):
        yield {"path": path, "operator": "type", "value": "object"}
        for key, value in expected.items():
            yield from _conditions([*path, str(key)], value)
    elif isinstance(expected, list | tuple):
        yield {"path": path, "operator": "length", "value": len(expected)}
        for place, value in enumerate(expected):
            yield from _conditions([*path, str(place)], value)
    else:
        yield {"path": path, "operator": "$eq", "value": expected}


def match_arguments(conditions: Sequence[MatchCondition]) -> tuple[str, str]:
    """Return the longest prefix without a wildcard that all matches have, and all conditions as JSON."""
    prefixes = [""]
    for condition in conditions:
        if condition.match_type not in ("prefix", "suffix"):
            raise ValueError(f"Unsupported match type: {condition.match_type}; use 'prefix' or 'suffix'")
        if condition.match_type == "prefix":
            path = list(condition.path)
            prefixes.append(namespace_text(path[: path.index("*")] if "*" in path else path))
    found = [{"type": condition.match_type, "path": list(condition.path)} for condition in conditions]
    return max(prefixes, key=len), dump_jsonb(found)


@dataclass(slots=True, eq=False)
class _Read:
    """A query of one caller. Equal queries in one batch are sent once."""

    query: str
    arguments: tuple[Hashable, ...]
    tenant_key: Apps | None
    size: int = 0

    @property
    def order_key(self) -> Hashable:
        """The read itself: reads have no order."""
        return self

    @property
    def identity(self) -> Hashable:
        return self


@dataclass(frozen=True, slots=True)
class EncodedPut:
    """An item to store; `value` is JSON text, or None to delete the item. `ttl` is in seconds."""

    namespace: str
    key: str
    value: str | None
    user_id: str | None = None
    ttl: float | None = None
    vectors: tuple[tuple[str, str], ...] = ()
    """The model and the vector of each indexed text."""


@dataclass(slots=True, eq=False)
class _Puts:
    """The puts of one call, which are stored all or none."""

    puts: Sequence[EncodedPut]
    fence: tuple[Any, ...] | None
    tenant_key: Apps | None
    size: int = field(init=False)
    order_key: Hashable = "puts"

    def __post_init__(self) -> None:
        self.size = sum(len(put.value or "") + sum(len(text) for _, text in put.vectors) for put in self.puts)

    @property
    def identity(self) -> Hashable:
        return self


class StoreBatches:
    """Sends the operations of a store on one engine.

    A lone operation is sent at once. While earlier ones are under way, later ones queue and share the next round trip.
    Puts are sent in the order of their calls; a read that is submitted after a put has returned sees it.
    """

    def __init__(self, engine: Engine, app_name: str) -> None:
        self._database = engine._database
        self._app_name = app_name
        self._retry_seconds = engine.settings.retry_seconds
        readers = max(1, min(_READERS, engine.settings.pool_size // 2))
        self._reads: GroupCommit[_Read, Rows] = GroupCommit(*(partial(self._send_reads) for _ in range(readers)))
        self._puts: GroupCommit[_Puts, bool] = GroupCommit(self._send_puts)

    async def get(self, namespace: str, key: str, *, refresh: bool, omit_expired: bool) -> asyncpg.Record | None:
        arguments = (namespace, key, refresh, omit_expired)
        rows = await self._reads.submit(_Read("get_graph_items", arguments, self._database.acting_apps))
        return rows[0] if rows else None

    async def read(self, query: str, *arguments: Hashable) -> Rows:
        return await self._reads.submit(_Read(query, arguments, self._database.acting_apps))

    async def put(self, puts: Sequence[EncodedPut], fence: RunFence | None) -> None:
        values = None if fence is None else (fence.thread_id, fence.run_id, fence.attempt)
        await self._puts.submit(_Puts(puts, values, self._database.acting_apps))

    async def close(self) -> None:
        await self._reads.close()
        await self._puts.close()

    async def _send_reads(self, items: list[_Read]) -> list[Rows | None]:
        answers: dict[tuple[Hashable, ...], Rows] = {}
        gets = list({item.arguments: None for item in items if item.query == "get_graph_items"})
        for omit_expired in {get[3] for get in gets}:
            wanted = [get for get in gets if get[3] == omit_expired]
            columns = [list(column) for column in zip(*wanted, strict=True)][:3]
            for row in await self._fetch("get_graph_items", (*columns, omit_expired), items[0].tenant_key):
                answers["get_graph_items", *wanted[row["place"] - 1]] = [row]
        for item in items:
            call = (item.query, *item.arguments)
            if call not in answers and item.query != "get_graph_items":
                answers[call] = await self._fetch(item.query, item.arguments, item.tenant_key)
        return [answers.get((item.query, *item.arguments), []) for item in items]

    async def _send_puts(self, items: list[_Puts]) -> list[bool | None]:
        # The last put of an item counts.
        puts = list({(put.namespace, put.key): put for item in items for put in item.puts}.values())
        vectors = [(place, *vector) for place, put in enumerate(puts, 1) for vector in put.vectors]
        fences = [item.fence for item in items if item.fence is not None]
        arguments = (
            [put.namespace for put in puts],
            [put.key for put in puts],
            [put.value for put in puts],
            [put.user_id for put in puts],
            [put.ttl for put in puts],
            *([vector[column] for vector in vectors] for column in range(3)),
            *([fence[column] for fence in fences] for column in range(3)),
        )
        await self._fetch("put_graph_items", arguments, items[0].tenant_key)
        return [True] * len(items)

    async def _fetch(self, query: str, arguments: tuple[Any, ...], apps: Apps | None) -> Rows:
        """Call a function, and again while PostgreSQL is away: all of them can be repeated after a lost answer."""
        return await retry_while_unavailable(
            lambda: self._database.fetch(query, self._app_name, *arguments, apps=apps), seconds=self._retry_seconds
        )
