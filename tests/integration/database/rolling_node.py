"""A node of a rolling upgrade, of any version: `python rolling_node.py DATABASE_URL NAME` until its input ends.

It uses only names that older versions have. Two nodes share one session: each appends to it, follows it, streams
messages, remembers and recalls, enqueues runs for the other node and executes those that the other one enqueued.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import cognizes.engine
from cognizes.engine import Engine, RunStatus
from cognizes.engine.runs import Worker

APP, USER, SESSION = "shop", "ada", "shared"
NODES = ("older", "newer")


class Node:
    """What a node does, and what it received: `acknowledged` and `followed` ids of events, `runs` and their results."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._other = next(other for other in NODES if other != name)
        self._is_stopping = False
        self.acknowledged: list[str] = []
        self.streamed: list[str] = []
        self.followed: list[str] = []
        self.runs: dict[str, Any] = {}
        self.recalled: list[str] = []

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Any]:
        session = await self._find_session()
        following = asyncio.create_task(self._follow(session))
        async with Worker(self._engine, {f"on {self._name}": self._handle}):
            tasks = [
                asyncio.create_task(work(session)) for work in (self._append, self._stream, self._enqueue, self._recall)
            ]
            yield session
            self._is_stopping = True
            await asyncio.gather(*tasks)
        following.cancel()
        await asyncio.wait([following])

    async def _find_session(self) -> Any:
        try:
            return await self._engine.sessions.create(APP, USER, session_id=SESSION)
        except cognizes.engine.AlreadyExistsError:
            return await self._engine.sessions.get(APP, USER, SESSION)

    async def _append(self, session: Any) -> None:
        while not self._is_stopping:
            name = str(uuid4())
            await _insist(
                lambda: self._engine.sessions.append(
                    session,
                    author="user",
                    kind="user_message",
                    text=self._name,
                    event_id=name,  # noqa: B023 - called in this round
                )
            )
            self.acknowledged.append(name)
            await asyncio.sleep(0.01)

    async def _stream(self, session: Any) -> None:
        while not self._is_stopping:
            name = str(uuid4())
            try:
                async with self._engine.stream_message(session, message_id=name) as message:
                    for token in ("a ", "streamed ", "message"):
                        await message.write(token)
                        await asyncio.sleep(0.02)
            except cognizes.engine.DatabaseError as error:
                if not _is_passing(error):
                    raise
            else:
                self.streamed.append(name)

    async def _enqueue(self, session: Any) -> None:
        """Enqueue runs for the other node, and wait for the end of each if that node is there."""
        while not self._is_stopping:
            name = str(uuid4())
            with suppress(cognizes.engine.AlreadyExistsError):
                await _insist(
                    lambda: self._engine.runs.enqueue(session, f"on {self._other}", run_id=name, input=self._name)  # noqa: B023
                )
            self.runs[name] = None
            for _ in range(200):
                found = await _insist(lambda: self._engine.runs.get(session.thread_id, name))  # noqa: B023
                if found.status == RunStatus.COMPLETED:
                    self.runs[name] = found.result
                    break
                if self._is_stopping:
                    return
                await asyncio.sleep(0.02)

    async def _recall(self, session: Any) -> None:
        """Recall what both nodes said: the newest hit of each round is kept."""
        memory = self._engine.memory
        while not self._is_stopping:
            await _insist(lambda: memory.remember_session(session))
            for hit in await _insist(lambda: memory.recall(self._other, app=APP, user=USER, k=3)):
                self.recalled.append(hit.text)
            await asyncio.sleep(0.05)

    async def _handle(self, run: Any) -> str:
        await run.think("a thought")
        return f"{run.input} on {await run.step('name', lambda: self._name)}"

    async def _follow(self, session: Any) -> None:
        async with aclosing(self._engine.live(session)) as events:
            async for event in events:
                self.followed.append(event.id)


async def _insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Call again if the migration, which locks tables and replaces functions, ended the call."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    while True:
        try:
            return await call()
        except cognizes.engine.DatabaseError as error:
            if not _is_passing(error) or loop.time() > deadline:
                raise
            await asyncio.sleep(0.05)


def _is_passing(error: Exception) -> bool:
    """Return whether the call may succeed later. Older versions do not know that of a function that was replaced.

    A function that is being executed when it is replaced may call one that the migration has dropped.
    """
    text = f"{error} {error.__cause__}"
    return isinstance(error, cognizes.engine.DatabaseUnavailableError) or any(
        reason in text for reason in ("cache lookup failed", "does not exist")
    )


async def main(url: str, name: str) -> None:
    async with Engine.open(url) as engine:
        node = Node(engine, name)
        async with node.working() as session:
            hello = {"module": cognizes.engine.__file__, "thread_id": session.thread_id}
            sys.stdout.write(f"{json.dumps(hello)}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.read)
    sys.stdout.write(
        json.dumps({name: getattr(node, name) for name in ("acknowledged", "streamed", "followed", "runs", "recalled")})
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
