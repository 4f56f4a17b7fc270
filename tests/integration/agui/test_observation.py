"""Watching a run that another process executes, or that is stored: from its events alone."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from cognizes.engine import Engine, Event, Session
from cognizes.engine.agui.observation import Observation, started
from cognizes.engine.pulse.events import EventLog, EventPage
from tests.engine_parts import observer_of
from tests.unittests.agui.conftest import Part, call, response, said
from tests.unittests.agui.legality import assert_legal


class Watched:
    """An observation that is being read; its frames as JSON."""

    def __init__(self, observation: Observation) -> None:
        self.frames: list[dict[str, Any]] = []
        self.numbers: list[int | None] = []
        self._task = asyncio.create_task(self._read(observation))

    async def _read(self, observation: Observation) -> None:
        async for number, frame in observation:
            self.numbers.append(number)
            self.frames.append(frame.model_dump(by_alias=True, mode="json"))

    async def until(self, kind: str) -> None:
        async with asyncio.timeout(60):
            while not any(frame["type"] == kind for frame in self.frames):
                await asyncio.sleep(0.01)

    async def end(self) -> list[dict[str, Any]]:
        await asyncio.wait_for(self._task, 60)
        return self.frames


async def append(engine: Engine, session: Session, run_id: str, *parts: Part, **more: Any) -> int:
    fields = {"author": "root", **more}
    content = {"parts": list(parts), "role": "model", "adk": {"timestamp": 1.0, **fields.pop("adk", {})}}
    kind = "observe" if any("function_response" in part for part in parts) else "assistant_message"
    event = Event("", session.thread_id, "i", fields["author"], kind, content, fields.get("actions", {}), run_id=run_id)
    await engine.sessions.append_to_thread(UUID(session.thread_id), event, expected_version=None)
    assert event.sequence_num is not None
    return event.sequence_num


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("app", "user")


QUESTION = call("q1", "adk_request_confirmation", originalFunctionCall={"id": "c1", "name": "f"}, toolConfirmation={})


async def test_what_was_asked_before_one_connects_is_sent_at_the_end(engine: Engine, session: Session) -> None:
    run = await engine.runs.create(session, run_id="r", running=True)
    await append(engine, session, run.id, call("c2", "pick"), QUESTION, adk={"long_running_tool_ids": ["c2", "q1"]})
    watched = Watched(observer_of(engine).observe_thread(UUID(session.thread_id), started(session.id, run.id)))
    await watched.until("MESSAGES_SNAPSHOT")
    await engine.runs.finish(session.thread_id, run.id)
    frames = await watched.end()
    assert_legal(frames)
    assert [interrupt["id"] for interrupt in frames[-1]["outcome"]["interrupts"]] == ["q1"]


async def test_a_later_reader_receives_the_tool_calls_that_wait(engine: Engine, session: Session) -> None:
    run = await engine.runs.create(session, run_id="r", running=True)
    await append(engine, session, run.id, call("c1", "pick"), adk={"long_running_tool_ids": ["c1"]})
    thread = UUID(session.thread_id)
    watched = Watched(observer_of(engine).observe_thread(thread, started(session.id, run.id)))
    await watched.until("MESSAGES_SNAPSHOT")
    await engine.runs.finish(session.thread_id, run.id)
    late = Watched(observer_of(engine).observe_thread(thread, started(session.id, "connect")))
    for frames in (await watched.end(), await late.end()):
        assert frames[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    await append(engine, session, "r2", response("c1", {"result": 1}, "pick"), author="user")
    answered = Watched(observer_of(engine).observe_thread(thread, started(session.id, "connect")))
    assert "outcome" not in (await answered.end())[-1]


async def test_the_end_of_another_run_is_not_the_end_of_this_one(engine: Engine, session: Session) -> None:
    run = await engine.runs.create(session, run_id="mine", running=True)
    other = await engine.runs.create(session, run_id="other", running=True)
    watched = Watched(observer_of(engine).observe_thread(UUID(session.thread_id), started(session.id, run.id)))
    await watched.until("MESSAGES_SNAPSHOT")
    await engine.runs.finish(session.thread_id, other.id)
    await append(engine, session, run.id, said("still here"))
    await watched.until("TEXT_MESSAGE_END")
    await engine.runs.finish(session.thread_id, run.id)
    frames = await watched.end()
    assert_legal(frames)
    assert [frame["runId"] for frame in frames if frame["type"] == "RUN_FINISHED"] == ["mine"]


async def test_a_run_taken_up_in_the_middle_knows_what_came_before(engine: Engine, session: Session) -> None:
    run = await engine.runs.create(session, run_id="r", running=True)
    await append(engine, session, run.id, said("I begin"), actions={"state_delta": {"n": 1}})
    seen = await append(
        engine, session, run.id, said("I ask"), QUESTION, author="poet", adk={"long_running_tool_ids": ["q1"]}
    )
    watched = Watched(observer_of(engine).observe_run(run.id, after=seen))
    await append(engine, session, run.id, said("and wait"), author="poet", actions={"state_delta": {"n": 2}})
    await engine.runs.finish(session.thread_id, run.id)
    frames = await watched.end()
    assert_legal(frames)
    assert [frame["type"] for frame in frames] == [
        "RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "SUBAGENT_STARTED", "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STATE_DELTA", "SUBAGENT_FINISHED", "RUN_FINISHED",
    ]  # fmt: skip
    assert frames[1]["snapshot"] == {"n": 1}
    assert [interrupt["id"] for interrupt in frames[-1]["outcome"]["interrupts"]] == ["q1"]
    assert [number for number in watched.numbers if number] == [seen + 1, seen + 2]


async def test_a_reader_of_a_cancelled_run_does_not_read_the_rest_of_its_thread(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.runs.create(session, run_id="r", running=True)
    await engine.runs.cancel(session.thread_id, "r")
    await append(engine, session, "r", said("stored after the cancellation"))
    await asyncio.gather(*(append(engine, session, "later", said("more")) for _ in range(500)))
    read_page, read = EventLog.read_page, list[Event]()

    async def counted(log: EventLog, *arguments: Any, **named: Any) -> EventPage:
        page = await read_page(log, *arguments, **named)
        read.extend(page.events)
        return page

    monkeypatch.setattr(EventLog, "read_page", counted)
    frames = await Watched(observer_of(engine).observe_run("r")).end()
    assert_legal(frames)
    assert [frame["delta"] for frame in frames if "delta" in frame] == ["stored after the cancellation"]
    assert frames[-1]["outcome"]["type"] == "cancelled"
    # A page of the feed with the cancellation, and one with what follows it.
    assert len(read) <= 2 * 128


async def test_a_thread_that_is_deleted_ends_the_observation(engine: Engine, session: Session) -> None:
    run = await engine.runs.create(session, run_id="r", running=True)
    watched = Watched(observer_of(engine).observe_thread(UUID(session.thread_id), started(session.id, run.id)))
    await watched.until("MESSAGES_SNAPSHOT")
    await engine.sessions.delete(session)
    frames = await watched.end()
    assert frames[-1]["type"] == "MESSAGES_SNAPSHOT", "the stream around it says that it broke off"
