"""New databases, created in advance: creating one takes longer than many tests that need one."""

from __future__ import annotations

import asyncio
import queue
import threading
from uuid import uuid4

import asyncpg

_KEPT_READY = 3
_CREATE = ""


class DatabaseSupply:
    """Keep copies of a template ready and drop used ones, in a thread."""

    def __init__(self, server_url: str, template: str) -> None:
        self._server_url = server_url
        self._template = template
        self._ready: queue.Queue[str | BaseException] = queue.Queue()
        self._jobs: queue.Queue[str | None] = queue.Queue()
        for _ in range(_KEPT_READY):
            self._jobs.put(_CREATE)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="database-supply")
        self._thread.start()

    async def take(self) -> str:
        """Return the name of an unused database; another one is created, because some tests keep theirs to the end."""
        self._jobs.put(_CREATE)
        name = await asyncio.to_thread(self._ready.get)
        if isinstance(name, BaseException):
            self._ready.put(name)
            raise name
        return name

    def give_back(self, name: str) -> None:
        """Drop a database."""
        self._jobs.put(name)

    def close(self) -> None:
        """Stop creating databases; the existing ones are removed with their server."""
        self._jobs.put(None)
        self._thread.join()

    async def _work(self) -> None:
        try:
            connection = await asyncpg.connect(self._server_url)
            try:
                while (job := await asyncio.to_thread(self._jobs.get)) is not None:
                    if job != _CREATE:
                        await connection.execute(f"DROP DATABASE {job} WITH (FORCE)")
                        continue
                    name = f"test_{uuid4().hex}"
                    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY")
                    self._ready.put(name)
            finally:
                await connection.close()
        except BaseException as error:
            self._ready.put(error)
            raise
