"""The state of a session that an agent and other writers change at the same time: clients have what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from ag_ui.core import BaseEvent, CustomEvent, RunAgentInput, RunFinishedEvent, StateDeltaEvent, StateSnapshotEvent

from cognizes.engine import Engine
from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.agui.snapshot import Snapshot
from cognizes.engine.hosting import AgentCapabilities, AgentHost, HostedRun, RunContext
from cognizes.engine.models import DELETE, JsonObject, RunStatus
from tests.integration.hosting.test_recording import hosting, say, stored
from tests.integration.runs.conditions import until_status


class DrivenRun:
    """A run whose agent yields what the test gives it, and a client that stays."""

    def __init__(self, engine: Engine, thread: str) -> None:
        self._engine = engine
        self._thread = thread
        self._given: asyncio.Queue[list[BaseEvent] | None] = asyncio.Queue()
        self.client = Snapshot()

    async def agent(self, _: RunAgentInput) -> AsyncIterator[BaseEvent]:
        while (frames := await self._given.get()) is not None:
            for frame in frames:
                yield frame
            yield CustomEvent(name="taken", value=None)

    @asynccontextmanager
    async def begun(self, host: AgentHost) -> AsyncIterator[HostedRun]:
        run = await say(host, "go", thread_id=self._thread)
        self._frames = host.watch(run)
        yield run
        await self._given.put(None)
        async for _, frame in self._frames:
            self.client.fold([frame])
        assert isinstance(frame, RunFinishedEvent), frame

    async def send(self, frame: BaseEvent) -> BaseEvent:
        """Let the agent yield a frame about the state; return the first one that the client receives of it."""
        await self._given.put([frame])
        received: list[BaseEvent] = []
        async for _, taken in self._frames:
            self.client.fold([taken])
            if isinstance(taken, CustomEvent):
                return received[0]
            received = [*received, taken] if isinstance(taken, StateSnapshotEvent | StateDeltaEvent) else []
        raise AssertionError(f"the run ended: {taken}")

    async def write(self, delta: JsonObject) -> None:
        """Change the state as another process does."""
        session = await self._engine.sessions.get("generic", "ada", self._thread)
        assert session is not None
        await self._engine.sessions.update(session, delta, author="another")

    async def stored(self) -> JsonObject:
        return (await stored(self._engine, self._thread)).state


def patch(op: str, path: str, value: Any = None) -> StateDeltaEvent:
    operation = {"op": op, "path": path} | ({} if op == "remove" else {"value": value})
    return StateDeltaEvent.model_validate({"delta": [operation]})


async def test_changes_of_an_agent_are_rebased_on_those_of_other_writers(engine: Engine) -> None:
    """After every change of the agent, a client that stays, one that connects and the stored session are the same."""
    thread = str(uuid4())
    await engine.sessions.create("generic", "ada", session_id=thread, state={"theirs": 0})
    driven = DrivenRun(engine, thread)

    async def assert_same(expected: JsonObject) -> None:
        connected = Snapshot()
        async for _, frame in host.connect("generic", "ada", thread, run_id="later"):
            connected.fold([frame])
            if isinstance(frame, StateSnapshotEvent):
                break
        assert driven.client.state == connected.state == await driven.stored() == expected

    async with hosting(engine, driven.agent) as host:
        async with driven.begun(host):
            await driven.send(StateSnapshotEvent(snapshot={"plan": ["mine"], "count": 1, "theirs": 0}))
            await assert_same({"plan": ["mine"], "count": 1, "theirs": 0})

            # Another key: both changes survive, and the client gets the other one as well.
            await driven.write({"theirs": 1, "user:lang": "de", "new": True})
            await driven.send(patch("replace", "/count", 2))
            await assert_same({"plan": ["mine"], "count": 2, "theirs": 1, "user:lang": "de", "new": True})

            # The same key: the agent's value as a whole, not its patch of another value.
            await driven.write({"plan": ["other"], "theirs": 2})
            await driven.send(patch("add", "/count", 3))
            assert driven.client.state["plan"] == ["other"]
            received = await driven.send(patch("add", "/plan/-", "too"))
            assert isinstance(received, StateDeltaEvent)
            assert [(one.op, one.path) for one in received.delta] != [("add", "/plan/-")]
            await assert_same({"plan": ["mine", "too"], "count": 3, "theirs": 2, "user:lang": "de", "new": True})

            # A key that the agent still has as it was: a snapshot with the old value does not take the change back.
            await driven.write({"count": 30, "new": DELETE})
            await driven.send(patch("replace", "/theirs", 7))
            await driven.send(StateSnapshotEvent(snapshot={"plan": ["mine", "too"], "count": 3, "more": 1}))
            await assert_same({"plan": ["mine", "too"], "count": 30, "user:lang": "de", "more": 1})
        connected = Snapshot().fold([frame async for _, frame in host.connect("generic", "ada", thread, run_id="c")])
    assert driven.client.state == connected.state == await driven.stored()


async def test_a_snapshot_of_a_later_attempt_removes_the_keys_of_the_first_one(engine: Engine) -> None:
    has_written = asyncio.Event()

    async def run(_: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        if not context.is_continuation:
            yield StateSnapshotEvent(snapshot={"kept": 1, "dropped": 1, "returned": 1, "user:lang": "en"})
            yield patch("remove", "/returned")
            has_written.set()
            await asyncio.Event().wait()
        yield StateSnapshotEvent(snapshot={"kept": 2})

    def hosted() -> AgentHost:
        can = AgentCapabilities(resumes_after_crash=True)
        return AgentHost(engine, [AguiAgent(run, name="generic", engine=engine, capabilities=can)])

    thread = str(uuid4())
    session = await engine.sessions.create("generic", "ada", session_id=thread, state={"theirs": 1})
    first, second = hosted(), hosted()
    begun = await say(first, "go", thread_id=thread, state={"of_client": 1})
    await has_written.wait()
    await engine.sessions.update(session, {"returned": 2}, author="another")
    await first.close(seconds=0)
    second.start()
    done = await until_status(
        engine, await engine.runs.get(begun.thread_id, begun.run_id), RunStatus.COMPLETED, RunStatus.FAILED
    )
    assert (done.status, done.error, done.attempt) == (RunStatus.COMPLETED, None, 2)
    left = {"kept": 2, "theirs": 1, "returned": 2, "of_client": 1, "user:lang": "en"}
    assert (await stored(engine, thread)).state == left
    await second.close(seconds=0)
