"""Snapshots: the state at any event is the same with them, without them, and after some were pruned."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cognizes.engine import DELETE, Engine, Event, NotFoundError, Session
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.state_manager import StateManager
from tests.engine_parts import database_of

UNBOUNDED = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
KEYS = ["a", "b", "nul\x00", "user:a", "user:lone\ud800", "app:a", "temp:a"]
values = st.sampled_from([None, 0, 1, True, 0.5, "text", "\x00", "\udfff", float("nan"), [1, {"x": None}], {}, DELETE])
deltas = st.dictionaries(st.sampled_from(KEYS), values, max_size=3)
initial_states = st.dictionaries(st.sampled_from(KEYS), values.filter(lambda value: value is not DELETE), max_size=3)
# (which thread, delta) or a word: an explicit snapshot, or pruning down to a number of them.
works = st.lists(
    st.tuples(st.integers(min_value=0, max_value=2), deltas | st.sampled_from(["snapshot", "prune 0", "prune 2"])),
    max_size=25,
)


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def replay(deltas: list[JsonObject]) -> JsonObject:
    state: JsonObject = {}
    for delta in deltas:
        state |= delta
        for key in [key for key, value in delta.items() if value is DELETE]:
            del state[key]
    return state


def in_scope(delta: JsonObject, scope: str) -> JsonObject:
    if scope:
        return {key: value for key, value in delta.items() if key.startswith(scope)}
    return {key: value for key, value in delta.items() if not key.startswith(("user:", "app:", "temp:"))}


@dataclass
class History:
    """What was written, in order: enough to say every state that ever was."""

    writes: list[tuple[Session, JsonObject]] = field(default_factory=list)
    moments: dict[str, list[int]] = field(default_factory=dict)
    """By thread: how many writes there were right after its creation and after each of its events."""

    def write(self, session: Session, delta: JsonObject) -> None:
        self.writes.append((session, delta))
        self.moments.setdefault(session.thread_id, []).append(len(self.writes))

    def state(self, session: Session, sequence: int) -> JsonObject:
        past = self.writes[: self.moments[session.thread_id][sequence]]
        return (
            replay([in_scope(delta, "") for writer, delta in past if writer is session])
            | replay([in_scope(delta, "user:") for writer, delta in past if writer.user_id == session.user_id])
            | replay([in_scope(delta, "app:") for _, delta in past])
        )

    def version(self, session: Session, sequence: int) -> int:
        past = self.writes[: self.moments[session.thread_id][sequence]]
        own = [delta for writer, delta in past if writer is session][1:]
        return 1 + sum(any(not key.startswith("temp:") for key in delta) for delta in own)


async def check_every_moment(engine: Engine, history: History, sessions: list[Session]) -> None:
    for session in sessions:
        for sequence in range(len(history.moments[session.thread_id])):
            past = await engine.sessions.at(session, sequence=sequence)
            assert (past.sequence_num, past.version) == (sequence, history.version(session, sequence))
            assert canonical(past.state) == canonical(history.state(session, sequence))


async def play(
    engine: Engine, manager: StateManager, states: list[JsonObject], works: list[tuple[int, Any]]
) -> tuple[History, list[Session]]:
    """Two threads of one user and one of another, in one app."""
    history = History()
    sessions = []
    app = f"app-{uuid4()}"
    for user, state in zip(["ada", "ada", "bob"], states, strict=True):
        sessions.append(await manager.create_session(app, user, state))
        history.write(sessions[-1], state)
    for place, work in works:
        session = sessions[place]
        if work == "snapshot":
            await engine.sessions.snapshot(session)
        elif isinstance(work, str):
            await database_of(engine).fetch_value("prune_snapshots", int(work.removeprefix("prune ")))
        else:
            await manager.append_event(session, Event("", "", "", "agent", "thought", actions={"state_delta": work}))
            history.write(session, work)
    return history, sessions


async def snapshot_sequences(engine: Engine, session: Session) -> list[int]:
    async with database_of(engine).connection() as connection:
        rows = await connection.fetch(
            "SELECT sequence_num FROM snapshots WHERE thread_id = $1 ORDER BY sequence_num", UUID(session.thread_id)
        )
    return [row["sequence_num"] for row in rows]


@pytest.mark.parametrize("every", [0, 1, 2, 3, 4, 5, 6, 7])
@settings(UNBOUNDED, max_examples=40)
@given(states=st.lists(initial_states, min_size=3, max_size=3), works=works, keep=st.integers(0, 3))
async def test_the_state_at_every_event_is_a_full_replay(
    engine: Engine, every: int, states: list[JsonObject], works: list[tuple[int, Any]], keep: int
) -> None:
    manager = StateManager(database_of(engine), engine.settings.model_copy(update={"snapshot_every": every}))
    history, sessions = await play(engine, manager, states, works)
    await check_every_moment(engine, history, sessions)
    await database_of(engine).fetch_value("prune_snapshots", keep)
    await check_every_moment(engine, history, sessions)
    for session in sessions:
        with pytest.raises(NotFoundError):
            await engine.sessions.at(session, sequence=len(history.moments[session.thread_id]))
    await manager.close()


@settings(UNBOUNDED, max_examples=40)
@given(states=st.lists(initial_states, min_size=3, max_size=3), works=works, at=st.integers(0, 30))
async def test_a_fork_remembers_what_its_source_does(
    engine: Engine, states: list[JsonObject], works: list[tuple[int, Any]], at: int
) -> None:
    manager = StateManager(database_of(engine), engine.settings.model_copy(update={"snapshot_every": 3}))
    _, sessions = await play(engine, manager, states, works)
    for session in sessions:
        fork = await engine.sessions.fork(session, at_sequence=min(at, session.last_sequence))
        for sequence in range(fork.last_sequence + 1):
            of_source = await engine.sessions.at(session, sequence=sequence)
            of_fork = await engine.sessions.at(fork, sequence=sequence)
            assert canonical(vars(of_fork)) == canonical(vars(of_source))
    await manager.close()


async def test_a_fork_shows_shared_keys_as_they_were_at_each_event(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada", state={"user:k": 0})
    for number in (1, 2):
        await engine.sessions.update(session, {"user:k": number, "app:k": number})
    fork = await engine.sessions.fork(session)
    pasts = [await engine.sessions.at(fork, sequence=sequence) for sequence in range(3)]
    assert [past.state for past in pasts] == [
        {"user:k": 0},
        {"user:k": 1, "app:k": 1},
        {"user:k": 2, "app:k": 2},
    ]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
async def test_a_snapshot_is_taken_every_n_events(database_url: str, every: int) -> None:
    # Housekeeping may prune at any moment.
    async with Engine.open(database_url, snapshot_every=every, snapshots_kept=100) as engine:
        session = await engine.sessions.create("shop", "ada", state={"k": 0})
        for number in range(1, 22):
            await engine.sessions.update(session, {"k": number})
        assert await snapshot_sequences(engine, session) == [0, *range(every, 22, every)]


async def test_a_snapshot_is_taken_in_batches_too(engine: Engine) -> None:
    manager = StateManager(database_of(engine), engine.settings.model_copy(update={"snapshot_every": 5}))
    session = await manager.create_session("shop", "ada")

    def append(number: int) -> Coroutine[Any, Any, bool]:
        event = Event("", "", "", "agent", "thought", actions={"state_delta": {f"k{number}": number}})
        return manager.sessions.append_to_thread(UUID(session.thread_id), event)

    await asyncio.gather(*(append(number) for number in range(23)))
    assert await snapshot_sequences(engine, session), "23 events and no snapshot"
    for sequence in range(24):
        wanted = {f"k{number}": number for number in range(sequence)}
        assert (await engine.sessions.at(session, sequence=sequence)).state == wanted
    await manager.close()


async def test_time_travel_starts_at_the_nearest_snapshot(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada", state={"a": 0})
    await engine.sessions.update(session, {"b": 1})
    await engine.sessions.snapshot(session)
    await engine.sessions.update(session, {"c": 2})
    async with database_of(engine).connection() as connection:
        await connection.execute("""UPDATE snapshots SET state = '{"marked": true}' WHERE sequence_num = 1""")
    assert (await engine.sessions.at(session, sequence=0)).state == {"a": 0}
    assert (await engine.sessions.at(session, sequence=1)).state == {"marked": True}
    assert (await engine.sessions.at(session, sequence=2)).state == {"marked": True, "c": 2}


async def test_pruning_keeps_the_newest_of_every_thread_and_the_beginning(engine: Engine) -> None:
    sessions = [await engine.sessions.create("shop", user, state={"k": 0}) for user in ("ada", "bob")]
    for session in sessions:
        for number in range(1, 6):
            await engine.sessions.update(session, {"k": number})
            await engine.sessions.snapshot(session)
    assert await database_of(engine).fetch_value("prune_snapshots", 2) == 6
    for session in sessions:
        assert await snapshot_sequences(engine, session) == [0, 4, 5]


async def test_a_snapshot_without_a_change_of_state_is_not_taken_twice(engine: Engine) -> None:
    session = await engine.sessions.create("shop", "ada")
    await engine.sessions.update(session, {"k": 1})
    assert await engine.sessions.snapshot(session) == 2
    await engine.sessions.append(session, author="agent", kind="thought")
    assert await engine.sessions.snapshot(session) == 2
    assert await snapshot_sequences(engine, session) == [1]
    assert (await engine.sessions.at(session, sequence=2)).state == {"k": 1}


async def test_the_snapshot_of_no_session_is_not_found(engine: Engine) -> None:
    with pytest.raises(NotFoundError):
        await engine.sessions.snapshot(Session("x", "shop", "ada", thread_id=str(uuid4())))


async def first_states(engine: Engine) -> list[tuple[int, int, str]]:
    rows = await database_of(engine).pool.fetch(
        "SELECT version, sequence_num, state::text FROM snapshots ORDER BY version"
    )
    return [tuple(row) for row in rows]


async def at_start(engine: Engine, session: Session) -> JsonObject:
    return (await engine.sessions.at(session, sequence=0)).state


def change(**delta: Any) -> Event:
    return Event("", "", "", "agent", "thought", actions={"state_delta": delta})


async def test_what_a_session_was_created_with_becomes_a_snapshot_when_it_changes(engine: Engine) -> None:
    """Creating costs one row; the first change of the session's own state keeps what it was."""
    alone, *batch = [await engine.sessions.create("app", "user", state={"n": number}) for number in range(4)]
    assert await first_states(engine) == []
    assert await at_start(engine, alone) == {"n": 0}
    await engine.sessions.append_event(alone, change(**{"user:seen": True}))
    assert await first_states(engine) == []
    assert (await engine.sessions.at(alone, sequence=1)).state == {"n": 0, "user:seen": True}
    await engine.sessions.append_event(alone, change(n=9))
    await asyncio.gather(
        *(engine.sessions.append_event(session, change(n=9)) for session in batch[:2]),
        engine.sessions.append_event(batch[2], change()),
    )
    assert sorted(await first_states(engine)) == [(1, 0, '{"n": 0}'), (1, 0, '{"n": 1}'), (1, 0, '{"n": 2}')]
    for number, session in enumerate([alone, *batch]):
        assert await at_start(engine, session) == {"n": number}
    assert [(await engine.sessions.at(alone, sequence=number)).state["n"] for number in (0, 1, 2)] == [0, 0, 9]


async def test_a_snapshot_or_a_fork_of_a_session_that_is_as_created(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 0})
    fork = await engine.sessions.fork(session)
    for number in range(3):
        await engine.sessions.append_event(session, change(**{"user:n": number}))
        await engine.sessions.snapshot(session)
    await database_of(engine).fetch_value("prune_snapshots", 1)
    for changed in (session, fork, await engine.sessions.fork(session, at_sequence=1)):
        await engine.sessions.append_event(changed, change(n=9))
        await database_of(engine).fetch_value("prune_snapshots", 1)
        assert await at_start(engine, changed) == {"n": 0}
        assert (await engine.sessions.at(changed, version=changed.version)).state["n"] == 9


async def test_a_state_changed_by_hand_takes_the_first_one_with_it_into_the_past(engine: Engine) -> None:
    session = await engine.sessions.create("app", "user", state={"n": 0})
    await database_of(engine).pool.execute("UPDATE threads SET title = 'x'")
    assert await first_states(engine) == []
    await database_of(engine).pool.execute("""UPDATE threads SET state = '{"n": 7}'""")
    assert await first_states(engine) == [(1, 0, '{"n": 0}')]
    assert await at_start(engine, session) == {"n": 0}
