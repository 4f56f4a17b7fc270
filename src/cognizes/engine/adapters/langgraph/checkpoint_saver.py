"""OpenCheckpointSaver: LangGraph's checkpointer on this engine."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast
from uuid import UUID

import asyncpg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from cognizes.engine.adapters.engines import lease_engine
from cognizes.engine.adapters.langgraph.blocking_calls import BlockingCalls, BlockingService
from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.documents import dump_jsonb, load_jsonb
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError, UnreadableCheckpointError
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.sessions import fence_of_thread

_PAGE = 50
"""The number of checkpoints that one statement of a listing reads."""


class OpenCheckpointSaver(BlockingService, BaseCheckpointSaver[str]):
    """Checkpoints of LangGraph in PostgreSQL.

    - Connects when first used; services with the same settings share one engine. `close()` releases it.
    - Storing a checkpoint is one round trip, the writes of a task are one, reading the newest checkpoint is one. A
      channel value is stored once for all checkpoints that have it.
    - A thread id is any text. If it is the id of a thread of the engine, the deletion of that thread deletes the
      checkpoints, and a run that lost its lease on it cannot write any more.
    - Two savers with different `app_name` share nothing; row level security separates them.
    - The blocking methods (`put`, `get_tuple`, `graph.invoke`) work in threads without a running event loop.

    Other keyword arguments are settings of the engine (`pool_size`, `db_schema`, …). `engine` is an open engine to use.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        app_name: str = "langgraph",
        serde: SerializerProtocol | None = None,
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(serde=serde)
        self.app_name = check_text("app_name", app_name)
        self._lease = lease_engine("OpenCheckpointSaver", database_url, settings, engine=engine)
        self._blocking = BlockingCalls("OpenCheckpointSaver", self.close)

    # Writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; return the configuration that names it."""
        thread_id, namespace, parent_id = _key(config)
        encoded = self._format.encode(checkpoint, new_versions)
        document: dict[str, Any] = {**get_serializable_checkpoint_metadata(config, metadata)}
        run_id = document.get("run_id")
        await self._write(
            "put_checkpoint",
            self.app_name,
            thread_id,
            namespace,
            checkpoint["id"],
            parent_id,
            None if run_id is None else str(run_id),
            encoded.type,
            encoded.document,
            dump_jsonb(document),
            encoded.channels,
            encoded.versions,
            encoded.inlined,
            WRITTEN_BY,
            encoded.new_channels,
            encoded.new_versions,
            encoded.new_types,
            encoded.new_values,
            *_fence(thread_id),
        )
        return _config(thread_id, namespace, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote after a checkpoint. The same writes stored twice are stored once."""
        if not writes:
            return
        thread_id, namespace, checkpoint_id = _key(config)
        if checkpoint_id is None:
            raise InvalidInputError("writes belong to a checkpoint; put checkpoint_id into the configuration")
        encoded = [self.serde.dumps_typed(value) for _, value in writes]
        await self._write(
            "put_graph_writes",
            self.app_name,
            thread_id,
            namespace,
            checkpoint_id,
            task_id,
            task_path,
            [WRITES_IDX_MAP.get(channel, place) for place, (channel, _) in enumerate(writes)],
            [channel for channel, _ in writes],
            [type_ for type_, _ in encoded],
            [value for _, value in encoded],
            all(channel in WRITES_IDX_MAP for channel, _ in writes),
            *_fence(thread_id),
        )

    # Reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the configuration names, or the newest one of its thread and namespace."""
        thread_id, namespace, checkpoint_id = _key(config)
        engine = await self._engine()
        if checkpoint_id is None:
            row = await engine._database.fetch_row("read_newest_checkpoint", self.app_name, thread_id, namespace)
        else:
            row = await engine._database.fetch_row(
                "read_checkpoint", self.app_name, thread_id, namespace, checkpoint_id
            )
        return None if row is None else self._tuple(row)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of one thread or of all, whose metadata contains `filter`."""
        thread_id = namespace = checkpoint_id = None
        if config is not None:
            thread_id, _, checkpoint_id = _key(config)
            namespace = config["configurable"].get("checkpoint_ns")
        engine = await self._engine()
        contained = dump_jsonb(filter) if filter else None
        earlier_than = get_checkpoint_id(before) if before else None
        last_id, last_namespace = None, None
        remaining = limit
        while remaining is None or remaining > 0:
            size = _PAGE if remaining is None else min(_PAGE, remaining)
            rows = await engine._database.fetch(
                "list_checkpoints",
                self.app_name,
                thread_id,
                namespace,
                checkpoint_id,
                earlier_than,
                contained,
                last_id,
                last_namespace,
                size,
            )
            for row in rows:
                yield self._tuple(row)
            if len(rows) < size:
                return
            last_id, last_namespace = rows[-1]["checkpoint_id"], rows[-1]["namespace_id"]
            remaining = None if remaining is None else remaining - size

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes, oldest first, and the last stored value that delta channels are rebuilt from."""
        if not channels:
            return {}
        thread_id, namespace, checkpoint_id = _key(config)
        engine = await self._engine()
        rows = await engine._database.fetch(
            "graph_channel_history", self.app_name, thread_id, namespace, checkpoint_id, list(channels)
        )
        return self._format.decode_history(rows, channels, thread_id=thread_id)

    # Deleting and copying

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        await self._write("delete_graph_threads", self.app_name, [_thread_id(thread_id)])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata has one of these run ids, and their writes."""
        await self._write("delete_graph_runs", self.app_name, [str(run_id) for run_id in run_ids])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread to another thread id. What the target has stays."""
        await self._write(
            "copy_graph_thread", self.app_name, _thread_id(source_thread_id), _thread_id(target_thread_id)
        )

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints: all (`delete`), or all but the newest one of every namespace (`keep_latest`).

        `keep_latest` also keeps the ancestors that the delta channels of a kept checkpoint are rebuilt from.
        """
        ids = [_thread_id(thread_id) for thread_id in thread_ids]
        match strategy:
            case "delete":
                await self._write("delete_graph_threads", self.app_name, ids)
            case "keep_latest":
                await self._write("prune_graph_checkpoints", self.app_name, ids)
            case _:
                raise ValueError(f"strategy is 'keep_latest' or 'delete', not {strategy!r}")

    # The same for callers without an event loop

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._blocking.run("put", lambda: self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._blocking.run("put_writes", lambda: self.aput_writes(config, writes, task_id, task_path))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._blocking.run("get_tuple", lambda: self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        found = self.alist(config, filter=filter, before=before, limit=limit)
        while (item := self._blocking.run("list", lambda: anext(found, None))) is not None:
            yield item

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._blocking.run(
            "get_delta_channel_history", lambda: self.aget_delta_channel_history(config=config, channels=channels)
        )

    def delete_thread(self, thread_id: str) -> None:
        self._blocking.run("delete_thread", lambda: self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._blocking.run("delete_for_runs", lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._blocking.run("copy_thread", lambda: self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._blocking.run("prune", lambda: self.aprune(thread_ids, strategy=strategy))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version that sorts after `current`. Its random part separates two branches of one thread."""
        # A thread that another saver wrote may have integers.
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - not a secret

    @property
    def _format(self) -> CheckpointFormat:
        # LangGraph copies the saver and gives the copy another serializer.
        return CheckpointFormat(self.serde)

    async def _engine(self) -> Engine:
        self._blocking.use_running_loop()
        return await self.engine()

    async def _write(self, query: str, *arguments: Any) -> None:
        """Call a function that writes. All of them can be repeated after a lost answer."""
        engine = await self._engine()
        await retry_while_unavailable(
            lambda: engine._database.fetch_value(query, *arguments), seconds=engine.settings.retry_seconds
        )

    def _tuple(self, row: asyncpg.Record) -> CheckpointTuple:
        decoded = self._format.decode(row)
        parent_id = row["parent_id"]
        return CheckpointTuple(
            config=_config(row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]),
            checkpoint=decoded.checkpoint,
            metadata=decoded.metadata,
            parent_config=_config(row["thread_id"], row["checkpoint_ns"], parent_id) if parent_id else None,
            pending_writes=decoded.writes,
        )


def _key(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return thread id, namespace and checkpoint id of a configuration."""
    configurable = config.get("configurable") or {}
    if "thread_id" not in configurable:
        raise InvalidInputError('a checkpointer needs a thread id: config={"configurable": {"thread_id": "..."}}')
    namespace = configurable.get("checkpoint_ns") or ""
    return _thread_id(configurable["thread_id"]), namespace, configurable.get("checkpoint_id") or None


def _thread_id(value: object) -> str:
    """Return a thread id as text: LangGraph's own savers also accept a UUID or a number."""
    return check_text("thread_id", str(value))


def _config(thread_id: str, namespace: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, "checkpoint_id": checkpoint_id}}


def _fence(thread_id: str) -> tuple[UUID | None, str | None, int | None]:
    """Return the fence of the run that this task executes on the thread, if it is a thread of the engine."""
    try:
        thread = UUID(thread_id)
    except ValueError:
        return None, None, None
    fence = fence_of_thread(thread)
    return (None, None, None) if fence is None else (thread, fence.run_id, fence.attempt)


WRITTEN_BY = version("langgraph-checkpoint")
"""The version of the serializer, stored with every checkpoint."""
_FORMAT = 4
"""The number of the checkpoint format of LangGraph 1."""
_INLINE_CHARACTERS = 1000


@dataclass(frozen=True)
class EncodedCheckpoint:
    """`channels` and `versions` name all values outside of the document; the `new_` lists are those to be stored."""

    type: str
    document: bytes
    inlined: list[str]
    channels: list[str]
    versions: list[str]
    new_channels: list[str]
    new_versions: list[str]
    new_types: list[str]
    new_values: list[bytes]


@dataclass(frozen=True)
class DecodedCheckpoint:
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    writes: list[PendingWrite]


class CheckpointFormat:
    """Encodes and decodes checkpoints with a serializer of LangGraph."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde

    def encode(self, checkpoint: Checkpoint, new_versions: ChannelVersions) -> EncodedCheckpoint:
        versions = checkpoint["channel_versions"]
        values = checkpoint["channel_values"]
        outside = [channel for channel, value in values.items() if channel in versions and not _is_small(value)]
        inlined = {channel: value for channel, value in values.items() if channel not in outside}
        type_, document = self._serde.dumps_typed({**checkpoint, "channel_values": inlined})
        new = [channel for channel in outside if channel in new_versions]
        encoded = [self._serde.dumps_typed(values[channel]) for channel in new]
        return EncodedCheckpoint(
            type=type_,
            document=document,
            inlined=list(inlined),
            channels=outside,
            versions=[str(versions[channel]) for channel in outside],
            new_channels=new,
            new_versions=[str(new_versions[channel]) for channel in new],
            new_types=[type_ for type_, _ in encoded],
            new_values=[value for _, value in encoded],
        )

    def decode(self, row: asyncpg.Record) -> DecodedCheckpoint:
        """Return a stored checkpoint; `UnreadableCheckpointError` when this serializer cannot read it."""
        where = f"checkpoint {row['checkpoint_id']} of thread {row['thread_id']}"
        written_by = row["written_by"]
        document = self._load(row["type"], row["checkpoint"], where=where, written_by=written_by)
        if document["v"] > _FORMAT and _release(written_by) > _release(WRITTEN_BY):
            raise _unreadable(where, f"it has format {document['v']}", written_by)
        for channel, type_, value in zip(row["channels"] or (), row["types"] or (), row["values"] or (), strict=True):
            document["channel_values"][channel] = self._load(type_, value, where=where, written_by=written_by)
        return DecodedCheckpoint(
            checkpoint=cast(Checkpoint, document),
            metadata=cast(CheckpointMetadata, load_jsonb(row["metadata"])),
            writes=[
                (task_id, channel, self._load(type_, value, where=where, written_by=written_by))
                for task_id, channel, type_, value in zip(
                    row["task_ids"] or (),
                    row["write_channels"] or (),
                    row["write_types"] or (),
                    row["write_values"] or (),
                    strict=True,
                )
            ],
        )

    def decode_history(
        self, rows: Sequence[asyncpg.Record], channels: Sequence[str], *, thread_id: str
    ) -> dict[str, DeltaChannelHistory]:
        """Return the history of each channel; the rows of a channel begin with the newest ancestor."""
        histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        for row in rows:
            channel, written_by = row["channel"], row["written_by"]
            where = f"checkpoint {row['checkpoint_id']} of thread {thread_id}"
            history = histories[channel]
            history["writes"][:0] = [
                (task_id, channel, self._load(type_, value, where=where, written_by=written_by))
                for task_id, type_, value in zip(
                    row["task_ids"] or (), row["write_types"] or (), row["write_values"] or (), strict=True
                )
            ]
            if row["value"] is not None:
                history["seed"] = self._load(row["type"], row["value"], where=where, written_by=written_by)
            elif row["is_seed"] and row["document"] is not None:
                document = self._load(row["document_type"], row["document"], where=where, written_by=written_by)
                history["seed"] = document["channel_values"][channel]
        return histories

    def _load(self, type_: str, data: bytes, *, where: str, written_by: str) -> Any:
        # A serializer ignores parts of a later format that it does not know, so it is not asked.
        if _release(written_by)[0] > _release(WRITTEN_BY)[0]:
            raise _unreadable(where, f"its type is {type_!r}", written_by)
        try:
            return self._serde.loads_typed((type_, data))
        except Exception as error:
            raise _unreadable(where, f"{type(error).__name__}: {error}", written_by) from error


def _is_small(value: object) -> bool:
    """Return whether a value is kept in the document: most channels only say that a node is due."""
    return (
        value is None
        or isinstance(value, bool | int | float)
        or (isinstance(value, str) and len(value) <= _INLINE_CHARACTERS)
    )


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split("."))


def _unreadable(where: str, reason: str, written_by: str) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"cannot read {where} ({reason}); langgraph-checkpoint {written_by} wrote it and {WRITTEN_BY} is installed: "
        "install the version that wrote it or a later one, and use the same serializer (serde)"
    )
