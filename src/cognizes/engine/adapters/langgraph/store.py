"""OpenStore: LangGraph's store on this engine."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypedDict
from weakref import WeakKeyDictionary

import asyncpg
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)
from langgraph.store.base.embed import AEmbeddingsFunc, EmbeddingsFunc

from cognizes.engine.adapters.engines import lease_engine
from cognizes.engine.adapters.langgraph.blocking_calls import BlockingCalls, BlockingService
from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.documents import check_depth, dump_jsonb, load_jsonb, text_bytes
from cognizes.engine.database.tenancy import Apps
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError, LimitExceededError
from cognizes.engine.memory.recall import vector_literal
from cognizes.engine.pulse.events import check_keys, check_name, check_text
from cognizes.engine.pulse.group_commit import GroupCommit
from cognizes.engine.pulse.sessions import RunFence, current_fence

Distance = Literal["cosine", "l2", "inner_product"]
_DISTANCES = ("cosine", "l2", "inner_product")
_WHOLE_VALUE = "$"


class StoreIndex(TypedDict, total=False):
    """What a store embeds, and how it compares. LangGraph's `IndexConfig` is one.

    `embed` is LangChain's `Embeddings`, a function, or the name of a model; by default the engine's embedder. `fields`
    are the paths of the texts, by default the whole value. `distance_type` is the measure of a search. Searches are
    exact, so `ann_index_config` of LangGraph's own store has no effect.
    """

    dims: int
    embed: Embeddings | EmbeddingsFunc | AEmbeddingsFunc | str
    fields: list[str] | None
    distance_type: Distance
    ann_index_config: dict[str, object]


def user_of_namespace(namespace: tuple[str, ...]) -> str | None:
    """Return the user of the namespaces `("users", user_id, …)`; None for items of the app."""
    return namespace[1] if len(namespace) > 1 and namespace[0] == "users" else None


class OpenStore(BlockingService, BaseStore):
    """The long-term memory of graphs in PostgreSQL, with vector search, filters and expiry.

    - Connects when first used; services with the same settings share one engine. `close()` releases it.
    - Texts of a value are embedded before it is stored, so a search finds it at once. `index=False` embeds nothing.
    - `ttl` has LangGraph's options, in minutes. Expired items are not returned, unless `omit_expired` is False; the
      engine deletes them every five minutes.
    - `user_of` returns the user to whom the items of a namespace belong, by default `user_of_namespace`. The export
      and the erasure of a user's data include these items.
    - Two stores with different `app_name` share nothing; row level security separates them.
    - The blocking methods (`put`, `get`, `search`) work in threads without a running event loop.

    Other keyword arguments are settings of the engine (`pool_size`, `embedder`, …). `engine` is an open engine to use:
    a run that it executes and that lost its lease cannot write any more.
    """

    supports_ttl = True

    def __init__(
        self,
        database_url: str | None = None,
        *,
        app_name: str = "langgraph",
        index: StoreIndex | Literal[False] | None = None,
        ttl: TTLConfig | None = None,
        user_of: Callable[[tuple[str, ...]], str | None] = user_of_namespace,
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.app_name = check_name("app_name", app_name)
        self.index_config = index or None
        self.ttl_config = ttl
        self._indexing = None if index is False else _Indexing.of(index or {})
        self._user_of = user_of
        self._is_fenced = engine is not None
        self._lease = lease_engine("OpenStore", database_url, settings, engine=engine)
        self._blocking = BlockingCalls("OpenStore", self.close)
        self._batches: WeakKeyDictionary[asyncio.AbstractEventLoop, StoreBatches] = WeakKeyDictionary()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute operations: first all reads, then all puts, which are stored all or none.

        Nothing is executed if a namespace is invalid. The last of several puts of one item counts.
        """
        given = list(ops)
        for op in given:
            validate_op_namespace(op)
        self._blocking.use_running_loop()
        engine = await self.engine()
        batches = self._batches.get(loop := asyncio.get_running_loop())
        if batches is None:
            batches = self._batches[loop] = StoreBatches(engine, self.app_name)
        puts = {(op.namespace, op.key): op for op in given if isinstance(op, PutOp)}
        reads = [self._read(op, engine, batches) for op in given if not isinstance(op, PutOp)]
        found = iter([await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads))
        if puts:
            encoded = await self._encode(list(puts.values()), engine)
            await batches.put(encoded, current_fence() if self._is_fenced else None)
        return [None if isinstance(op, PutOp) else next(found) for op in given]

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._blocking.run("batch", lambda: self.abatch(ops))

    async def close(self) -> None:
        """Finish the operations under way, then release the engine. Later use of the store acquires it again."""
        if (batches := self._batches.pop(asyncio.get_running_loop(), None)) is not None:
            await batches.close()
        await super().close()

    @property
    def _omits_expired(self) -> bool:
        return bool((self.ttl_config or {}).get("omit_expired", True))

    async def _read(self, op: GetOp | SearchOp | ListNamespacesOp, engine: Engine, batches: StoreBatches) -> Result:
        match op:
            case GetOp():
                return await self._get(op, batches)
            case SearchOp():
                return await self._search(op, engine, batches)
            case ListNamespacesOp():
                prefix, conditions = match_arguments(op.match_conditions or ())
                page = (_number("limit", op.limit), _number("offset", op.offset))
                depth = None if op.max_depth is None else _number("max_depth", op.max_depth)
                rows = await batches.read(
                    "list_graph_namespaces", prefix, conditions, depth, *page, self._omits_expired
                )
                return [tuple(row["namespace"]) for row in rows]
        raise ValueError(f"Unknown operation type: {type(op).__name__}")

    async def _get(self, op: GetOp, batches: StoreBatches) -> Item | None:
        namespace, key = namespace_text(op.namespace), check_text("key", op.key)
        row = await batches.get(namespace, key, refresh=bool(op.refresh_ttl), omit_expired=self._omits_expired)
        if row is None:
            return None
        return Item(
            namespace=op.namespace,
            key=op.key,
            value=load_jsonb(row["value"]),
            created_at=row["created_at"],
            updated_at=row["updated_at"],
        )

    async def _search(self, op: SearchOp, engine: Engine, batches: StoreBatches) -> list[SearchItem]:
        model = vector = None
        if op.query and self._indexing is not None:
            model, vector = await self._indexing.embed_query(op.query, engine)
        rows = await batches.read(
            "search_graph_items",
            namespace_text(op.namespace_prefix),
            conditions_text(op.filter),
            vector,
            model,
            "cosine" if self._indexing is None else self._indexing.distance,
            _number("limit", op.limit),
            _number("offset", op.offset),
            bool(op.refresh_ttl),
            self._omits_expired,
        )
        return [
            SearchItem(
                namespace=namespace_labels(row["namespace"]),
                key=row["key"],
                value=load_jsonb(row["value"]),
                created_at=row["created_at"],
                updated_at=row["updated_at"],
                score=row["score"],
            )
            for row in rows
        ]

    async def _encode(self, puts: Sequence[PutOp], engine: Engine) -> list[EncodedPut]:
        """Return the puts for SQL, after all checks. All their texts are embedded together."""
        texts = [[] if self._indexing is None else self._indexing.texts(op) for op in puts]
        flat = [text for of_item in texts for text in of_item]
        vectors = iter(await self._indexing.embed(flat, engine) if self._indexing is not None and flat else ())
        return [
            self._encode_one(op, engine, vectors=tuple(next(vectors) for _ in of_item) if flat else ())
            for op, of_item in zip(puts, texts, strict=True)
        ]

    def _encode_one(self, op: PutOp, engine: Engine, *, vectors: tuple[tuple[str, str] | None, ...]) -> EncodedPut:
        namespace, key = namespace_text(op.namespace), check_text("key", op.key)
        if op.value is None:
            return EncodedPut(namespace, key, None)
        value = check_keys("the value of an item", op.value)
        text = dump_jsonb(value)
        if (size := text_bytes(text)) > (limit := engine.settings.max_event_bytes):
            raise LimitExceededError(f"item {key!r:.100}", size=size, limit=limit, setting="COGNIZES_MAX_EVENT_BYTES")
        check_depth(text, value, engine.settings.max_json_depth)
        user_id = self._user_of(op.namespace)
        return EncodedPut(
            namespace,
            key,
            text,
            user_id=None if user_id is None else check_name("the user of a namespace", user_id),
            ttl=_seconds(op.ttl),
            vectors=tuple(vector for vector in vectors if vector is not None),
        )


@dataclass(frozen=True)
class _Indexing:
    """Which texts of an item are embedded, and by which embedder: the given one, or the engine's."""

    embeddings: Embeddings | None
    paths: tuple[tuple[str, list[str] | str], ...]
    distance: Distance

    @classmethod
    def of(cls, index: StoreIndex) -> _Indexing:
        distance = index.get("distance_type", "cosine")
        if distance not in _DISTANCES:
            raise InvalidInputError(f"invalid distance_type {distance!r}; use one of {', '.join(_DISTANCES)}")
        embed, fields = index.get("embed"), index.get("fields") or [_WHOLE_VALUE]
        if not isinstance(fields, list):
            raise InvalidInputError(f"fields of an index must be a list of paths, not {type(fields).__name__}")
        return cls(None if embed is None else ensure_embeddings(embed), _tokenized(fields), distance)

    def texts(self, op: PutOp) -> list[str]:
        """Return the texts of a put that are embedded."""
        if op.value is None or op.index is False:
            return []
        paths = self.paths if op.index is None else _tokenized(op.index)
        return [text for _, path in paths for text in get_text_at_path(op.value, path)]

    async def embed(self, texts: list[str], engine: Engine) -> list[tuple[str, str] | None]:
        """Return the model and the vector of each text, as text; None without an embedder."""
        if self.embeddings is not None:
            return [self._named(vector) for vector in await self.embeddings.aembed_documents(texts)]
        if (embedder := engine.memory.embedder) is None:
            return [None] * len(texts)
        return [(embedder.name, vector_literal(vector)) for vector in await embedder.embed(texts)]

    async def embed_query(self, text: str, engine: Engine) -> tuple[str | None, str | None]:
        if self.embeddings is not None:
            return self._named(await self.embeddings.aembed_query(text))
        if (embedder := engine.memory.embedder) is None:
            return None, None
        return embedder.name, vector_literal(await embedder.embed_query(text))

    def _named(self, vector: list[float]) -> tuple[str, str]:
        """Return a vector with the name of its model: only vectors of one model are compared."""
        kind = type(self.embeddings)
        model = getattr(self.embeddings, "model", None) or getattr(self.embeddings, "model_name", "")
        return f"{kind.__module__}.{kind.__qualname__}:{model}:{len(vector)}", vector_literal(vector)


def _tokenized(fields: Iterable[str]) -> tuple[tuple[str, list[str] | str], ...]:
    return tuple((path, path if path == _WHOLE_VALUE else tokenize_path(path)) for path in fields)


def _number(what: str, value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise InvalidInputError(f"invalid {what} {value!r}; it must be a number that is not negative")
    return min(value, 2**31 - 1)


def _seconds(minutes: float | None) -> float | None:
    """Return a time to live in seconds."""
    if minutes is None:
        return None
    if not math.isfinite(minutes) or minutes <= 0:
        raise InvalidInputError(f"invalid ttl {minutes}; it is a number of minutes above 0, or None")
    return float(minutes) * 60


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
