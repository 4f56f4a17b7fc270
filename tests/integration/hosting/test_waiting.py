"""Agents whose code waits (`RunContext.wait`): the run is suspended, and its code is called again after the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunAgentInput,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    TextMessageChunkEvent,
    UserMessage,
)

from cognizes.engine import Engine, Run, RunStatus
from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.errors import ConflictError
from cognizes.engine.hosting import AgentCapabilities, AgentHost, HostedRun, RunContext
from cognizes.engine.runs import SignalOutcome
from tests.integration.runs.conditions import expire_lease, later, until_status

Waits = Callable[[RunContext], Awaitable[Any]]
CAN_WAIT = AgentCapabilities(resumes_after_crash=True, interrupts=True)
ENDS = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class Waiter:
    """An agent that says `began` before its waits, and afterwards their result. It notes how its code was called."""

    def __init__(self, waits: Waits, *, capabilities: AgentCapabilities = CAN_WAIT) -> None:
        self.calls: list[bool] = []
        self.capabilities = capabilities
        self._waits = waits

    async def run(self, _: RunAgentInput, context: RunContext) -> AsyncIterator[BaseEvent]:
        self.calls.append(context.is_continuation)
        if not context.is_continuation:
            yield TextMessageChunkEvent(message_id="before", delta="began")
        result = await self._waits(context)
        yield TextMessageChunkEvent(message_id="after", delta=f"got {result}")

    def hosted(self, engine: Engine) -> AgentHost:
        return AgentHost(engine, [AguiAgent(self.run, name="waiter", engine=engine, capabilities=self.capabilities)])


@asynccontextmanager
async def hosting(engine: Engine, waiter: Waiter) -> AsyncIterator[AgentHost]:
    """Yield a host that continues runs."""
    host = waiter.hosted(engine)
    host.start()
    yield host
    await host.close(seconds=0)


def waiting_for(key: str = "payment", kind: str = "webhook", **more: Any) -> Waits:
    return lambda context: context.wait(kind=kind, correlation_key=key, **more)


def given(said: str | None, thread: str, **more: Any) -> RunAgentInput:
    messages = [UserMessage(id=str(uuid4()), content=said)] if said else []
    fields: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwarded_props": {}, **more}
    return RunAgentInput(thread_id=thread, run_id=str(uuid4()), messages=messages, **fields)


def answer(key: str, thread: str, payload: Any, *, status: str = "resolved") -> RunAgentInput:
    return given(None, thread, resume=[{"interruptId": key, "status": status, "payload": payload}])


async def begin(host: AgentHost, run_input: RunAgentInput) -> tuple[HostedRun, Interrupt]:
    """Start a run that waits; return it with the interrupt that its client receives."""
    run = await host.run("waiter", "ada", run_input)
    return run, interrupt_in([frame async for _, frame in host.watch(run)])


def interrupt_in(frames: list[BaseEvent]) -> Interrupt:
    last = frames[-1]
    assert isinstance(last, RunFinishedEvent), last
    assert isinstance(last.outcome, RunFinishedInterruptOutcome)
    [asked] = last.outcome.interrupts
    return asked


async def stored(engine: Engine, run: HostedRun) -> Run:
    return await engine.runs.get(run.thread_id, run.run_id)


async def ended(engine: Engine, run: HostedRun) -> Run:
    return await until_status(engine, await stored(engine, run), *ENDS)


async def said(engine: Engine, thread_id: UUID) -> list[str]:
    session = await engine.sessions.store.get_thread(thread_id)
    return [one.content for one in await engine.sessions.messages(session) if one.role == "assistant"]


async def signal(engine: Engine, run: HostedRun, key: str, payload: Any = None) -> SignalOutcome:
    return await engine.runs.signal(run.run_id, correlation_key=key, payload=payload, thread_id=run.thread_id)


async def in_a_group(context: RunContext) -> Any:
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(context.wait(kind="signal", correlation_key=key)) for key in ("payment", "parcel")]
    return [task.result() for task in waits]


@pytest.mark.parametrize("kind", ["webhook", "signal", "human"])
async def test_a_signal_continues_the_same_run_on_another_server(engine: Engine, database_url: str, kind: str) -> None:
    waiter, thread = Waiter(waiting_for(kind=kind, reason="The payment is open.")), str(uuid4())
    first = waiter.hosted(engine)
    run, asked = await begin(first, given("go", thread))
    assert (asked.id, asked.reason, asked.message) == ("payment", kind, "The payment is open.")
    assert (await stored(engine, run)).status is RunStatus.WAITING
    await first.close(seconds=0)
    async with Engine.open(database_url) as other, hosting(other, waiter) as host:
        connected = [frame async for _, frame in host.connect("waiter", "ada", thread, run_id="again")]
        assert interrupt_in(connected) == asked
        with pytest.raises(ConflictError):
            await signal(other, run, "another")
        assert await signal(other, run, "payment", {"euros": 5}) is SignalOutcome.RESUMED
        done = await ended(other, run)
        assert (done.status, done.error, done.attempt) == (RunStatus.COMPLETED, None, 2)
        assert await said(other, run.thread_id) == ["began", "got {'euros': 5}"]
        assert waiter.calls == [False, True]
        assert (await read_history(other.sessions.log, run.thread_id)).interrupts == []


async def test_a_signal_before_the_wait_ends_it_at_once(engine: Engine) -> None:
    may_wait, thread = asyncio.Event(), str(uuid4())

    async def waits(context: RunContext) -> Any:
        await may_wait.wait()
        return await context.wait(kind="webhook", correlation_key="payment")

    async with hosting(engine, Waiter(waits)) as host:
        run = await host.run("waiter", "ada", given("go", thread))
        assert await signal(engine, run, "payment", 5) is SignalOutcome.KEPT
        may_wait.set()
        done = await ended(engine, run)
        assert (done.status, done.attempt) == (RunStatus.COMPLETED, 1)
        assert await said(engine, run.thread_id) == ["began", "got 5"]


async def test_a_server_that_is_killed_before_the_wait_is_stored(
    engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked = asyncio.Event()

    async def hang(*_: Any, **__: Any) -> None:
        is_asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(engine.runs, "wait", hang)
    waiter = Waiter(waiting_for())
    run = await waiter.hosted(engine).run("waiter", "ada", given("go", str(uuid4())))
    await is_asked.wait()
    assert await signal(engine, run, "payment", 5) is SignalOutcome.KEPT
    async with Engine.open(database_url) as other, hosting(other, waiter):
        await expire_lease(other, await stored(other, run))
        done = await ended(other, run)
        assert (done.status, done.error, done.attempt) == (RunStatus.COMPLETED, None, 2)
        assert await said(other, run.thread_id) == ["began", "got 5"]
        assert (await read_history(other.sessions.log, run.thread_id)).interrupts == []
    assert run.task is not None
    run.task.cancel()
    await asyncio.wait([run.task])


async def test_a_timer_fires(engine: Engine) -> None:
    waits = waiting_for(kind="timer", expires_at=later(seconds=0.3))
    async with hosting(engine, Waiter(waits)) as host:
        run, asked = await begin(host, given("go", str(uuid4())))
        assert asked.expires_at
        assert (await ended(engine, run)).status is RunStatus.COMPLETED
        assert await said(engine, run.thread_id) == ["began", "got None"]


async def test_a_wait_that_expires_fails_its_run(engine: Engine) -> None:
    thread = str(uuid4())
    async with hosting(engine, Waiter(waiting_for(expires_at=later(seconds=0.3)))) as host:
        run, _ = await begin(host, given("go", thread))
        failed = await ended(engine, run)
        assert (failed.status, failed.error) == (RunStatus.FAILED, "no answer to payment arrived in time")
        await begin(host, given("go", thread))


@pytest.mark.parametrize("is_parallel", [False, True])
async def test_two_waits_of_one_run(engine: Engine, is_parallel: bool) -> None:
    async def in_turn(context: RunContext) -> Any:
        return [await context.wait(kind="signal", correlation_key=key) for key in ("payment", "parcel")]

    waiter = Waiter(in_a_group if is_parallel else in_turn)
    async with hosting(engine, waiter) as host:
        run, asked = await begin(host, given("go", str(uuid4())))
        payloads = {"payment": 1, "parcel": 2}
        if not is_parallel:
            assert asked.id == "payment"
        await signal(engine, run, asked.id, payloads.pop(asked.id))
        waiting = await until_status(engine, await stored(engine, run), RunStatus.WAITING, *ENDS)
        assert waiting.wait is not None
        [(key, payload)] = payloads.items()
        assert waiting.wait.correlation_key == key
        await signal(engine, run, key, payload)
        done = await ended(engine, run)
        assert (done.status, done.error) == (RunStatus.COMPLETED, None)
        assert await said(engine, run.thread_id) == ["began", "got [1, 2]"]


@pytest.mark.parametrize("way", ["cancel", "onBusy"])
async def test_a_run_is_cancelled_while_it_waits(engine: Engine, way: str) -> None:
    thread = str(uuid4())
    async with hosting(engine, Waiter(waiting_for())) as host:
        run, _ = await begin(host, given("go", thread))
        resumed = answer("payment", thread, "paid")
        for refused in (given("and now?", thread), resumed):
            with pytest.raises(ConflictError, match=r"waits for a webhook \(payment\), which no input can end"):
                await host.run("waiter", "ada", refused)
        if way == "cancel":
            assert await host.cancel("waiter", "ada", thread)
            again = given("again", thread)
        else:
            again = given("again", thread, forwarded_props={"cognizes": {"onBusy": "cancel"}})
        await begin(host, again)
        assert (await stored(engine, run)).status is RunStatus.CANCELLED


async def test_the_answers_of_inputs_continue_the_code_in_other_runs(engine: Engine) -> None:
    """The later runs have the signals of the runs that asked."""
    thread = str(uuid4())

    async def waits(context: RunContext) -> Any:
        paid = await context.wait(kind="webhook", correlation_key="payment")
        sure = await context.wait(kind="human", correlation_key="sure", reason="Sure?")
        really = await context.wait(kind="human", correlation_key="really", reason="Really?")
        return [paid, sure, really]

    waiter = Waiter(waits)
    async with hosting(engine, waiter) as host:
        run, _ = await begin(host, given("go", thread))
        await signal(engine, run, "payment", 5)
        await until_status(engine, await stored(engine, run), RunStatus.WAITING)
        with pytest.raises(ConflictError, match=r"answer to sure \(Sure\?\)"):
            await host.run("waiter", "ada", given("hello?", thread))
        second, asked = await begin(host, answer("sure", thread, {"yes": True}))
        assert asked.id == "really"
        last = await host.run("waiter", "ada", answer("really", thread, "ignored", status="cancelled"))
        await last.wait()
        found = [(await stored(engine, one)).status for one in (run, second, last)]
        assert found == [RunStatus.COMPLETED] * 3
        assert await said(engine, run.thread_id) == ["began", "got [5, {'yes': True}, None]"]
        assert waiter.calls == [False, True, True, True]
        # The next run of the thread asks again, under the same keys.
        _, asked = await begin(host, given("go", thread))
        assert asked.id == "payment"


async def twice(context: RunContext) -> Any:
    for _ in range(2):
        await context.wait(kind="timer", correlation_key="pause", expires_at=later(seconds=-1))


@pytest.mark.parametrize(
    ("capabilities", "waits", "cause"),
    [
        (AgentCapabilities(interrupts=True), waiting_for(), "declare AgentCapabilities(resumes_after_crash=True)"),
        (CAN_WAIT, waiting_for(kind="message"), "a hosted agent gets the next message as its next input"),
        (CAN_WAIT, waiting_for("a,b"), "must not contain a comma"),
        (CAN_WAIT, waiting_for(kind="timer"), "a timer needs expires_at"),
        (CAN_WAIT, twice, "the run has waited for 'pause' before"),
    ],
)
async def test_what_cannot_wait_fails_its_run_with_the_reason(
    engine: Engine, capabilities: AgentCapabilities, waits: Waits, cause: str
) -> None:
    async with hosting(engine, Waiter(waits, capabilities=capabilities)) as host:
        run = await host.run("waiter", "ada", given("go", str(uuid4())))
        failed = await ended(engine, run)
        assert failed.status is RunStatus.FAILED
        assert cause in (failed.error or "")
