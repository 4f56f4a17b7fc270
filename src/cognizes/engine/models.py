"""The data types of the engine. None of them accesses the database."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

JsonObject = dict[str, Any]
JsonValue: TypeAlias = "Mapping[str, JsonValue] | Sequence[JsonValue] | str | int | float | bool | None"
"""A value that a caller passes, to be stored as JSON. A value that is read is `Any`: the caller knows its form."""
Item = TypeVar("Item")
MAX_NAME_BYTES: Final = 1000
"""The longest app name, user id or run id: they are index keys. Other ids have `MAX_TEXT_LENGTH`."""
MAX_TEXT_LENGTH: Final = 131_072
"""The longest text that is not content: an id, a title, a key. Content has limits in bytes, in the settings."""
MAX_QUERY_LENGTH: Final = 10_000
"""The longest query of a search."""
_SLOTTED_VERSION = 8


def new_id() -> UUID:
    """Return a UUID of version 7: random and ordered by time, so that index pages fill one after the other."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10), "big")
    value = (value & ~(0xF000 << 64)) | (0x7000 << 64)
    value = (value & ~(0xC000 << 48)) | (0x8000 << 48)
    return UUID(int=value)


SLOTS: Final = 1024
"""The number of slots over which users are distributed; a shard holds many slots. It never changes."""


def user_slot(app_name: str, user_id: str) -> int:
    """Return the slot of a user's threads. The SQL function `user_slot` computes the same."""
    name = f"{len(app_name)}:{app_name}{user_id}".encode()
    return int.from_bytes(hashlib.md5(name, usedforsecurity=False).digest()[:4], "big") % SLOTS


def new_thread_id(slot: int) -> UUID:
    """Return a UUID of version 8 that carries a slot. It is ordered by time like one of version 7.

    48 bits: milliseconds since 1970 · 4: version 8 · 10: slot · 2: random · 2: variant · 62: random.
    """
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(8), "big")
    middle = 0x8000 | slot << 2 | random >> 62
    return UUID(int=milliseconds << 80 | middle << 64 | 0b10 << 62 | random & (1 << 62) - 1)


def slot_of(thread_id: UUID) -> int | None:
    """Return the slot that a thread id carries; None for ids of older versions and of threads inserted in SQL."""
    return (thread_id.int >> 66) & (SLOTS - 1) if thread_id.version == _SLOTTED_VERSION else None


class _Delete:
    _instance: _Delete | None = None

    def __new__(cls) -> _Delete:
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "DELETE"

    def __deepcopy__(self, memo: dict[int, Any]) -> _Delete:
        return self


DELETE: Final = _Delete()
"""A value in a state delta that deletes the key. (`None` is an ordinary value.) In JSON it is `DELETE_JSON`."""
DELETE_JSON: Final[JsonObject] = {"$delete": True}


def is_delete(value: object) -> bool:
    """Return whether a value of a delta, as Python or as decoded JSON, deletes its key."""
    return value is DELETE or (isinstance(value, dict) and len(value) == 1 and value.get("$delete") is True)


@dataclass
class Session:
    """A thread as its caller sees it. Only a successful append changes the object.

    `state` is the effective state: plain keys of the session, `user:` and `app:` keys with their prefix.
    `thread_id` is the engine's own key; it equals `id` unless the caller chose a `session_id`.
    `user_version` and `app_version` are the versions of the wider scopes in `state`; -1 when unknown.
    """

    id: str
    app_name: str
    user_id: str
    state: JsonObject = field(default_factory=dict)
    version: int = 1
    created_at: datetime | None = None
    updated_at: datetime | None = None
    thread_id: str = ""
    last_sequence: int = 0
    title: str | None = None
    metadata: JsonObject = field(default_factory=dict)
    user_version: int = field(default=-1, compare=False)
    app_version: int = field(default=-1, compare=False)


UNKNOWN_MODEL = "unknown"
"""The model of usage whose framework does not name it."""


@dataclass(frozen=True)
class TokenUsage:
    """The tokens of one call of a model.

    `input_tokens` and `output_tokens` are totals. `cached_tokens` (read from a cache of the provider) and
    `cache_write_tokens` are parts of the input, `reasoning_tokens` are a part of the output.
    """

    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass
class Event:
    """An entry of a thread's log, immutable once stored. With `id=""` the engine assigns an id.

    `usage` is what a model used for it. It is stored in the transaction of the event; events that are read have none.
    """

    id: str
    thread_id: str
    invocation_id: str
    author: str
    event_type: str
    content: JsonObject = field(default_factory=dict)
    actions: JsonObject = field(default_factory=dict)
    created_at: datetime | None = None
    run_id: str | None = None
    sequence_num: int | None = None
    version: int | None = None
    usage: TokenUsage | None = field(default=None, compare=False)


class RunStatus(StrEnum):
    """The status of a run. The SQL function `run_transition_allowed` defines the legal transitions."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Run:
    id: str
    thread_id: str
    app_name: str
    status: RunStatus
    thinking_steps: list[Any]
    tool_calls: list[Any]
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    handler: str | None = None
    input: Any = None
    result: Any = None
    worker_id: str | None = None
    attempt: int = 0
    failures: int = 0
    max_attempts: int = 1
    available_at: datetime | None = None
    lease_expires_at: datetime | None = None
    last_wait: RunWait | None = None
    resumption_context: JsonObject | None = None
    claimable_since: datetime | None = None
    traceparent: str | None = None
    queue: str | None = None
    priority: int = 0

    @property
    def wait(self) -> RunWait | None:
        return self.last_wait if self.status is RunStatus.WAITING else None


@dataclass(frozen=True)
class RunWait:
    """The current wait of a run, or its last one."""

    kind: str
    correlation_key: str
    reason: str | None
    expires_at: datetime | None
    timeout_node: str | None
    since: datetime | None = None


@dataclass(frozen=True)
class Message:
    """The text of an event that is a message, stored in the transaction of the event."""

    id: str
    thread_id: str
    event_id: str
    sequence_num: int
    role: str
    content: str
    metadata: JsonObject
    created_at: datetime


@dataclass(frozen=True)
class PastState:
    state: JsonObject
    version: int
    sequence_num: int


@dataclass(frozen=True)
class Page(Generic[Item]):
    """A page of items; `next_cursor` is the cursor of the next page, None on the last one."""

    items: list[Item]
    next_cursor: str | None
