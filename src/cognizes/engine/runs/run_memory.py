"""The memory of the agent that executes a run; which long-term keys it used is remembered with the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.long_term import LongTermEntry, LongTermKey
from cognizes.engine.memory.memory import Memory
from cognizes.engine.memory.scope import MemoryScope
from cognizes.engine.memory.snapshot import MemorySnapshot
from cognizes.engine.models import Session
from cognizes.engine.pulse.fencing import fence_of_thread
from cognizes.engine.pulse.session_store import thread_uuid

_Answer = TypeVar("_Answer")


class RunMemory:
    """`engine.memory` in the scope of a run: its app, its user, its agent."""

    def __init__(
        self, memory: Memory, session: Session, keys: Iterable[LongTermKey] = (), *, retry_seconds: float = 0
    ) -> None:
        self._memory = memory
        self._retry_seconds = retry_seconds
        self._session = session
        self.scope = MemoryScope.of(session)
        self._keys = dict.fromkeys(keys)

    @property
    def used_keys(self) -> list[LongTermKey]:
        """The long-term keys that the run has read or written so far."""
        return list(self._keys)

    async def get(self, namespace: str, key: str) -> Any:
        """The value of a long-term key, or None."""
        entry = await self._memory.long_term.get(self.scope, namespace, key)
        self._keys[LongTermKey(namespace, key)] = None
        return entry.value if entry else None

    async def set(self, namespace: str, key: str, value: Any, *, text: str | None = None) -> LongTermEntry:
        """Sets a long-term key; `text` is what recall reads."""
        entry = await self._write(lambda: self._memory.long_term.set(self.scope, namespace, key, value, text=text))
        self._keys[LongTermKey(namespace, key)] = None
        return entry

    async def episodes(self, *, limit: int = 10) -> list[EpisodicEntry]:
        """What the agent went through lately, newest first."""
        return await self._memory.episodic.list_by_agent(self.scope, limit=limit)

    async def write_scratchpad(self, scratchpad: Any) -> None:
        """Replaces the scratchpad of the working memory."""
        fence = fence_of_thread(thread_uuid(self._session.thread_id))
        await self._write(
            lambda: self._memory.working.write_scratchpad(self.scope, self._session.id, scratchpad, fence=fence)
        )

    async def snapshot(self) -> MemorySnapshot:
        """What the agent has in mind now."""
        return await self._memory.snapshots.take(self._session, long_term_keys=self.used_keys)

    async def _write(self, write: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """Write, again while PostgreSQL is unavailable: each of these writes may repeat."""
        return await retry_while_unavailable(write, seconds=self._retry_seconds)
