"""Write data of every kind with one version of the engine and read it back with another.

As a program this file writes: the test of upgrades runs it with an older source tree on `PYTHONPATH`. It therefore uses
only names that all of these versions have.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cognizes.engine import Engine, Session
from cognizes.engine.runs import Worker

APP, USER, SESSION, SECOND_SESSION = "shop", "ada", "order-1", "order-2"
_SCOPES = next(filter(find_spec, ("cognizes.engine.memory.scope", "cognizes.engine.memory.records")))
_TEXTS = next(filter(find_spec, ("cognizes.engine.memory.ingest", "cognizes.engine.memory.records")))
"""The modules of `MemoryScope` and `Remembered`: older versions execute this file, too."""
SCOPE = import_module(_SCOPES).MemoryScope(APP, USER)
DELTAS = ["The lamp ", "is ", "reserved. ", "确认 ✓"]
EVENT_FIELDS = (
    "id", "thread_id", "invocation_id", "author", "event_type", "content", "actions", "created_at", "run_id",
    "sequence_num", "version",
)  # fmt: skip
MESSAGE_FIELDS = ("id", "thread_id", "event_id", "sequence_num", "role", "content", "metadata", "created_at")
RUN_FIELDS = (
    "id", "status", "thinking_steps", "tool_calls", "error", "created_at", "started_at", "completed_at", "handler",
    "input", "result", "attempt", "max_attempts", "resumption_context",
)  # fmt: skip
SESSION_FIELDS = (
    "id", "thread_id", "state", "version", "last_sequence", "title", "metadata", "created_at", "updated_at",
)  # fmt: skip
MEMORY_FIELDS = ("id", "agent_id", "kind", "namespace", "source_id", "session_id", "text", "content", "created_at")


class Orders:
    """The handler of the run that waits. It counts the executions of its step."""

    def __init__(self) -> None:
        self.reservations = 0

    async def reserve(self, item: str) -> str:
        self.reservations += 1
        return f"reservation of {item}"

    async def handle(self, run: Any) -> dict[str, Any]:
        reservation = await run.step("reserve", self.reserve, run.input["item"])
        answer = await run.wait(kind="human", correlation_key="approve", reason="more than 100 EUR")
        return {"reservation": reservation, "answer": answer}


async def write(engine: Engine) -> None:
    """Store sessions, all scopes of state, events, messages, a streamed message, runs, memories and a snapshot."""
    state = {"cart": [], "user:name": "Ada", "app:currency": "EUR", "temp:draft": 1}
    session = await engine.sessions.create(APP, USER, session_id=SESSION, state=state, title="Lamp", metadata={"n": 1})
    await engine.sessions.append(
        session, author="user", kind="message", content={"role": "user"}, text="A lamp, please"
    )
    delta = {"cart": [{"item": "lamp", "price": 120.5}], "user:orders": 1, "app:sold": {"lamp": 1}}
    await engine.sessions.append(session, author="agent", kind="message", text="Reserving it", state=delta)
    await engine.sessions.snapshot(session)
    await engine.sessions.update(session, {"paid": False})

    message = engine.stream_message(session, author="agent")
    async with message:
        for token in DELTAS:
            await message.write(token)

    async with engine.runs.start(session) as run:
        await run.think("the lamp is in stock")
        call_id = await run.call_tool("weigh", {"item": "lamp"})
        await run.finish_tool(call_id, {"kg": 2.5})
        await run.step("weigh", Orders().reserve, "scales")
    ended = (await engine.runs.list(session.thread_id))[0]

    await engine.memory.remember(SCOPE, [import_module(_TEXTS).Remembered("note-1", "Ada prefers brass lamps")])
    await engine.memory.remember_session(session)
    await engine.memory.long_term.set(SCOPE, "address", "city", {"name": "London"})
    await engine.memory.remember_run(session.thread_id, ended.id)

    waiting_session = await engine.sessions.create(APP, USER, session_id=SECOND_SESSION, state={"step": 1})
    queued = await engine.runs.enqueue(waiting_session, "order", input={"item": "lamp"})
    async with Worker(engine, {"order": Orders().handle}):
        async for event in engine.live(waiting_session):
            if event.event_type == "run_waiting":
                break
    assert (await engine.runs.get(waiting_session.thread_id, queued.id)).status == "waiting"


async def read(engine: Engine) -> dict[str, Any]:
    """Return all stored data as JSON values."""
    sessions = [await find_session(engine, session_id) for session_id in (SESSION, SECOND_SESSION)]
    memories = await engine.memory.list(APP, USER)
    city = await engine.memory.long_term.get(SCOPE, "address", "city")
    assert city is not None
    stored = {
        "sessions": [await _read_session(engine, session) for session in sessions],
        "memories": [_select(memory, MEMORY_FIELDS) for memory in memories],
        "city": city.value,
        "episodes": [episode.summary for episode in await engine.memory.episodic.list_by_agent(SCOPE)],
    }
    values: dict[str, Any] = json.loads(json.dumps(stored, default=str))
    return values


async def find_session(engine: Engine, session_id: str = SESSION) -> Session:
    session = await engine.sessions.get(APP, USER, session_id)
    assert session is not None, session_id
    return session


async def _read_session(engine: Engine, session: Session) -> dict[str, Any]:
    events = await engine.sessions.events(session)
    messages = await engine.sessions.messages(session)
    runs = await engine.runs.list(session.thread_id)
    return {
        **_select(session, SESSION_FIELDS),
        "events": [_select(event, EVENT_FIELDS) for event in events],
        "messages": [_select(message, MESSAGE_FIELDS) for message in messages],
        "chunks": {
            message.id: [asdict(chunk) for chunk in (await engine.streams.read(session.thread_id, message.id)).chunks]
            for message in messages
        },
        "past": [(await engine.sessions.at(session, sequence=event.sequence_num)).state for event in events],
        "runs": [_select(run, RUN_FIELDS) for run in runs],
        "steps": [asdict(step) for run in runs for step in await engine.runs.steps(session.thread_id, run.id)],
    }


def _select(item: object, fields: tuple[str, ...]) -> dict[str, Any]:
    return {field: getattr(item, field) for field in fields}


async def main(data_dir: str) -> None:
    async with Engine.open(data_dir=data_dir) as engine:
        await write(engine)
        json.dump({"module": sys.modules["cognizes.engine"].__file__, "stored": await read(engine)}, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
