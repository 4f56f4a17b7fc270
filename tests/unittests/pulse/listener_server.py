"""A PostgreSQL server of the listener's unit tests: it takes statements one at a time and says what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

from cognizes.engine.database.notifications import PgNotifyListener


class Connection:
    """As asyncpg's: one statement at a time, and none when closed."""

    def __init__(self, pauses: dict[str, asyncio.Event]) -> None:
        self.heard: dict[str, Any] = {}
        self.pauses = pauses
        self.has_ended = False
        self.on_end: list[Callable[[Any], None]] = []
        self.is_busy = False

    async def add_listener(self, channel: str, callback: Any) -> None:
        await self._speak(channel)
        self.heard[channel] = callback

    async def remove_listener(self, channel: str, callback: Any) -> None:
        await self._speak(channel)
        assert self.heard.pop(channel) == callback

    async def fetchval(self, _query: str, timeout: float) -> bool:
        """Answer `pg_is_in_recovery()`: the server is a primary."""
        await self._speak("check")
        return False

    async def _speak(self, about: str) -> None:
        if self.has_ended:
            raise asyncpg.InterfaceError("connection is closed")
        if self.is_busy:
            raise asyncpg.InterfaceError("another operation is in progress")
        self.is_busy = True
        try:
            await asyncio.sleep(0)
            if about in self.pauses:
                await self.pauses[about].wait()
            if self.has_ended:
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        finally:
            self.is_busy = False

    def add_termination_listener(self, callback: Callable[[Any], None]) -> None:
        self.on_end.append(callback)

    def is_closed(self) -> bool:
        return self.has_ended

    async def close(self, timeout: float) -> None:
        self.terminate()

    def terminate(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            for callback in self.on_end:
                callback(self)

    def say(self, channel: str, text: str) -> None:
        if channel in self.heard:
            self.heard[channel](self, 1, channel, text)


class Server:
    """Where the listener connects to."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.pauses: dict[str, asyncio.Event] = {}
        self.failures: list[Exception] = []

    async def connect(self) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.connections.append(Connection(self.pauses))
        return self.connections[-1]

    @property
    def current(self) -> Connection:
        return self.connections[-1]

    def pause(self, about: str) -> asyncio.Event:
        """Statements about it do not return until the event is set."""
        self.pauses[about] = asyncio.Event()
        return self.pauses[about]


def new_listener(server: Server, *, check_seconds: float = 5.0) -> PgNotifyListener:
    return PgNotifyListener("postgresql://", connect=server.connect, check_seconds=check_seconds, stop_seconds=0.01)
