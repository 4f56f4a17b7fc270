"""How a checkpoint is stored: one document with the small values, and one value per channel and version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

import asyncpg
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    DeltaChannelHistory,
    PendingWrite,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from cognizes.engine.database.documents import load_jsonb
from cognizes.engine.errors import UnreadableCheckpointError

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
