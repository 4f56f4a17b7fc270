"""Writers and followers during a fault, and the checker of what they received: ids, order, followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from uuid import uuid4

from cognizes.engine import DatabaseError, Engine, Event, FeedRewoundError, Session

WRITERS = 4
Record = Callable[[str, object], None]


class Traffic:
    """Writers on threads of their own in one engine, a follower of each thread in another one.

    A follower whose feed ends with `FeedRewoundError` follows the thread again from its beginning, as clients do.
    """

    def __init__(self, writing: Engine, following: Engine) -> None:
        self._writing, self._following = writing, following
        self.acknowledged: dict[str, list[str]] = {}
        self.followed: dict[str, list[Event]] = {}
        self.sessions: list[Session] = []
        self.times: list[float] = []
        self.rewinds = 0
        self._is_stopping = False
        self._writers: list[asyncio.Task[None]] = []
        self._followers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.sessions = [await self._writing.sessions.create("shop", f"user-{number}") for number in range(WRITERS)]
        self._followers = [asyncio.create_task(self._follow(session)) for session in self.sessions]
        self._writers = [asyncio.create_task(self._write(session)) for session in self.sessions]

    async def stop_writing(self) -> None:
        self._is_stopping = True
        await asyncio.gather(*self._writers)

    async def stop(self) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)

    async def _write(self, session: Session) -> None:
        acknowledged = self.acknowledged.setdefault(str(session.thread_id), [])
        while not self._is_stopping:
            event_id = str(uuid4())
            while True:
                with suppress(DatabaseError):
                    await self._writing.sessions.append(
                        session, author="user", kind="user_message", text=event_id, event_id=event_id
                    )
                    break
            acknowledged.append(event_id)
            self.times.append(asyncio.get_running_loop().time())

    async def _follow(self, session: Session) -> None:
        while True:
            followed = self.followed[str(session.thread_id)] = []
            try:
                async with aclosing(self._following.live(session)) as events:
                    async for event in events:
                        followed.append(event)
            except FeedRewoundError:
                self.rewinds += 1

    @property
    def pause(self) -> float:
        """The longest time between two acknowledged events."""
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))

    async def wait_for_recovery(self, before: int) -> None:
        """Return when the writers have written on for a while after the longest pause."""
        async with asyncio.timeout(150):
            while len(self.times) < before + 200 or self.times[-1] - self.times[before] < self.pause:
                await asyncio.sleep(0.1)

    async def stored(self) -> dict[str, list[str]]:
        """Return the ids of all stored events of each thread; fail if their sequence has a gap."""
        found: dict[str, list[str]] = {}
        for session in self.sessions:
            events = await self._writing.sessions.events(session)
            assert [event.sequence_num for event in events] == list(range(1, len(events) + 1))
            found[str(session.thread_id)] = [event.id for event in events]
        return found

    async def wait_for_followers(self, stored: dict[str, list[str]]) -> None:
        """Return when every follower has exactly what is stored, in order."""
        async with asyncio.timeout(60):
            while {thread: [event.id for event in events] for thread, events in self.followed.items()} != stored:
                await asyncio.sleep(0.1)

    def lost(self, stored: dict[str, list[str]]) -> int:
        """Return how many acknowledged events are not stored."""
        return sum(len(set(ids) - set(stored[thread])) for thread, ids in self.acknowledged.items())


async def survive(
    url: str, fault: Callable[[], None], record: Record, *, listen_url: str | None = None, **settings: float
) -> None:
    """Write while a fault happens; fail if an acknowledged event is lost, out of order, or missed by a follower."""
    urls = {"listen_url": listen_url} if listen_url else {}
    async with Engine.open(url, **urls, **settings) as writing, Engine.open(url, **urls) as following:
        traffic = Traffic(writing, following)
        await traffic.start()
        await asyncio.sleep(1)
        before = len(traffic.times)
        await asyncio.to_thread(fault)
        await traffic.wait_for_recovery(before)
        await traffic.stop_writing()
        stored = await traffic.stored()
        assert stored == traffic.acknowledged
        await traffic.wait_for_followers(stored)
        assert traffic.rewinds == 0
        await traffic.stop()
    record("pause_seconds", round(traffic.pause, 1))
    record("acknowledged", len(traffic.times))
    record("lost", 0)
