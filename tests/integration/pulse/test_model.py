"""The engine against a plain in-memory model of it: a hypothesis state machine, alone and with concurrency."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from cognizes.engine import (
    DELETE,
    AlreadyExistsError,
    ConcurrencyConflictError,
    DuplicateEventError,
    Engine,
    Event,
    NotFoundError,
    PastState,
    Session,
)
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.state_manager import StateManager
from tests.engine_parts import database_of

STEPS_PER_EXAMPLE = 50
STEPS_THAT_COUNT = 48
"""Each of several concurrent operations is a step, but some operations find nothing to do."""

Result = TypeVar("Result")
UNBOUNDED = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
NO_SHRINKING = (Phase.explicit, Phase.generate)  # concurrent outcomes differ from run to run

# Small sets, so that keys and ids meet again, with everything in them that JSONB refuses.
PLAIN_KEYS = ["a", "b", "%s", "$1", "nul\x00", "lone\ud800", "\ue0000000"]
WIDE_KEYS = ["user:a", "user:\x00", "user:", "app:a", "app:\udfff"]
TEMP_KEYS = ["temp:a", "temp:\x00"]
NUMBERS = [0, 1, -1, 10**30, 0.5, 1.0, 1e15, 1e23, 5e-324, math.nan, math.inf, -math.inf]
TEXTS = ["", "text", "nul\x00", "lone\ud800", "mark\ue000d800", "😀", "{schema}", "'\"\\"]
MARKS = [{"$delete": 1}, {"$delete": False}, {"$float": "x"}]
values = st.recursive(
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS, *MARKS]),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(["x", "\x00"]), below, max_size=2),
    max_leaves=3,
)
keys = st.sampled_from([*PLAIN_KEYS, *WIDE_KEYS, *TEMP_KEYS])
states = st.dictionaries(keys, values | st.just(DELETE), max_size=3)
deltas = st.dictionaries(keys, values | st.just(DELETE), min_size=1, max_size=3)
contents = st.dictionaries(st.sampled_from(["text", "x", "y\x00", "z\udc00"]), values, max_size=2)
users = st.sampled_from(["ada", "bob"])
kinds = st.sampled_from(["user_message", "message", "thought"])
picks = st.integers(min_value=0, max_value=1000)
scopes = st.sampled_from(["", "user:", "app:"])
CONCURRENT_APPENDS = ["shared", "shared", "shared_delta", "race", "race", "thread", "thread", "twice", "resend"]
CONCURRENT_OTHERS = ["increment", "increment", "update", "travel", "fork", "snapshot", "prune", "delete"]
concurrent_works = st.tuples(st.sampled_from(CONCURRENT_APPENDS + CONCURRENT_OTHERS), picks, scopes)


def canonical(value: Any) -> str:
    """Text that is the same for the same JSON: NaN is NaN, but True is not 1, and 1 is not 1.0."""
    return json.dumps(
        value, sort_keys=True, default=lambda other: {"$delete": True} if other is DELETE else repr(other)
    )


def assert_same(found: Any, wanted: Any) -> None:
    assert canonical(found) == canonical(wanted)


def in_scope(delta: JsonObject, scope: str) -> JsonObject:
    """The keys of a delta in one scope (`""` is the session's own), with their prefix."""
    scopes = [key.partition(":")[0] + ":" if key.startswith(("user:", "app:", "temp:")) else "" for key in delta]
    return {key: value for (key, value), own in zip(delta.items(), scopes, strict=True) if own == scope}


def without_temp(delta: JsonObject) -> JsonObject:
    return {key: value for key, value in delta.items() if not key.startswith("temp:")}


def replay(documents: list[JsonObject]) -> JsonObject:
    """The model's merge: keys are replaced, a marked key goes away."""
    state: JsonObject = {}
    for document in documents:
        state |= document
        for key, value in document.items():
            if value is DELETE:
                del state[key]
    return state


@dataclass
class Moment:
    """How many writes a wider scope had seen, by scope. Concurrent writes make it a range."""

    low: dict[str, int]
    high: dict[str, int]


@dataclass
class Stored:
    """An event of the model."""

    event: Event
    delta: JsonObject
    version: int
    moment: Moment


@dataclass
class Thread:
    """A thread of the model: where it began, its events, and the writes of the user and the app it belongs to."""

    session: Session
    initial: JsonObject
    wide: dict[str, list[JsonObject]]
    created: Moment
    events: list[Stored] = field(default_factory=list)

    @property
    def id(self) -> UUID:
        return UUID(self.session.thread_id)

    @property
    def version(self) -> int:
        return self.events[-1].version if self.events else 1

    def now(self) -> Moment:
        seen = {scope: len(writes) for scope, writes in self.wide.items()}
        return Moment(seen, dict(seen))

    def own_state(self, sequence: int | None = None) -> JsonObject:
        documents = [self.initial, *(stored.delta for stored in self.events[:sequence])]
        return replay([in_scope(document, "") for document in documents])

    def state(self) -> JsonObject:
        return self.own_state() | replay(self.wide["user:"]) | replay(self.wide["app:"])

    def write_wide(self, delta: JsonObject) -> None:
        for scope, writes in self.wide.items():
            if part := in_scope(delta, scope):
                writes.append(part)

    def add(self, event: Event, delta: JsonObject, moment: Moment | None = None) -> Stored:
        self.write_wide(delta)
        stored = Stored(event, delta, self.version + bool(delta), moment or self.now())
        self.events.append(stored)
        return stored

    def messages(self) -> list[tuple[int, str, str]]:
        roles = {"user_message": "user", "message": "assistant"}
        return [
            (number, roles[stored.event.event_type], stored.event.content["text"])
            for number, stored in enumerate(self.events, start=1)
            if stored.event.event_type in roles and isinstance(stored.event.content.get("text"), str)
        ]

    def check_past(self, past: PastState, sequence: int) -> None:
        """Compares time travel with a full replay."""
        assert past.sequence_num == sequence
        assert past.version == (self.events[sequence - 1].version if sequence else 1)
        assert_same(in_scope(past.state, ""), self.own_state(sequence))
        for scope in self.wide:
            self._check_wide_past(in_scope(past.state, scope), scope, sequence)

    def _check_wide_past(self, found: JsonObject, scope: str, sequence: int) -> None:
        moment = self.events[sequence - 1].moment if sequence else self.created
        low, high = moment.low[scope], moment.high[scope]
        certain = replay(self.wide[scope][:low])
        possible = replay(self.wide[scope][low:high])  # concurrent writes have keys of their own
        own = [self.initial, *(stored.delta for stored in self.events[:sequence])]
        certain |= {key: possible[key] for delta in own for key in in_scope(delta, scope) if key in possible}
        assert_same(found, certain | {key: value for key, value in possible.items() if key in found})


@dataclass
class Work:
    """One of several concurrent operations."""

    name: str
    thread: Thread
    call: Coroutine[Any, Any, Any]
    delta: JsonObject = field(default_factory=dict)
    event: Event | None = None
    result: Any = None


class Batch:
    """Concurrent operations on a few threads, by two writers that know nothing of each other, like two processes.

    Their outcome must be that of some order, one after the other.
    """

    def __init__(self, engine: Engine, other: StateManager, numbers: Iterator[int]) -> None:
        self.engine = engine
        self._managers = itertools.cycle([StateManager(database_of(engine), engine.settings), other])
        self.works: list[Work] = []
        self._numbers = numbers
        self._before: dict[int, tuple[Thread, Moment]] = {}

    def add(self, name: str, thread: Thread, scope: str) -> None:
        """Adds an operation; each delta has a key of its own."""
        self._before.setdefault(id(thread), (thread, Moment(thread.now().low, {})))
        number = next(self._numbers)
        delta = {f"{scope}c{number}": number}
        session = copy.deepcopy(thread.session)
        manager = next(self._managers)
        match name:
            case "shared":
                self._add_append(name, thread, thread.session, {})
            case "shared_delta":
                self._add_append(name, thread, thread.session, delta)
            case "race":
                event = new_event(f"e{number}", delta)
                self._add(name, thread, manager.append_event(session, event), delta, event)
            case "thread":
                event = new_event(f"e{number}", delta)
                self._add(name, thread, manager.sessions.append_to_thread(thread.id, event), delta, event)
            case "twice":
                for sender in (manager, manager, next(self._managers)):
                    event = new_event(f"e{number}", delta)
                    self._add(name, thread, sender.sessions.append_to_thread(thread.id, event), delta, event)
            case "resend" if thread.events:
                event = as_sent(thread.events[number % len(thread.events)].event)
                self._add(name, thread, manager.append_event(session, event), {}, event)
            case "increment":
                self._add(name, thread, manager.update_session_state(session, increment))
            case "update":
                self._add(name, thread, manager.update_session_state(session, delta), delta)
            case "travel":
                sequence = number % (len(thread.events) + 1)
                self._add(name, thread, self._travel(thread, sequence))
            case "fork":
                self._add(name, thread, self.engine.sessions.fork(session))
            case "snapshot":
                self._add(name, thread, self.engine.sessions.snapshot(session))
            case "prune":
                self._add(name, thread, database_of(self.engine).fetch_value("prune_snapshots", 1))
            case "delete":
                self._add(name, thread, self.engine.sessions.delete(session))

    def _add_append(self, name: str, thread: Thread, session: Session, delta: JsonObject) -> None:
        event = new_event(f"e{next(self._numbers)}", delta)
        self._add(name, thread, self.engine.sessions.append_event(session, event), delta, event)

    def _add(
        self,
        name: str,
        thread: Thread,
        call: Coroutine[Any, Any, Any],
        delta: JsonObject | None = None,
        event: Event | None = None,
    ) -> None:
        self.works.append(Work(name, thread, call, delta or {}, event))

    async def _travel(self, thread: Thread, sequence: int) -> None:
        thread.check_past(await self.engine.sessions.at(copy.copy(thread.session), sequence=sequence), sequence)

    async def run(self) -> tuple[list[Thread], list[Thread]]:
        """Runs everything at once and brings the model up to it. Returns the threads that came and went."""
        results = await asyncio.gather(*(work.call for work in self.works), return_exceptions=True)
        for work, result in zip(self.works, results, strict=True):
            work.result = result
        gone = [work.thread for work in self.works if work.name == "delete" and work.result is True]
        for work in self.works:
            self._check_answer(work, is_gone=any(work.thread is thread for thread in gone))
        new: list[Thread] = []
        for thread, moment in self._before.values():
            if any(thread is other for other in gone):
                continue
            events_before = len(thread.events)
            await self._catch_up(thread, moment)
            new += self._forks(thread, events_before)
        for thread, moment in self._before.values():
            moment.high = thread.now().high
        return new, gone

    def _check_answer(self, work: Work, *, is_gone: bool) -> None:
        """Some operations may lose, and only in one way."""
        result = work.result
        if isinstance(result, NotFoundError):
            assert is_gone
        elif isinstance(result, ConcurrencyConflictError):
            assert work.name in ("race", "shared_delta")
            assert result.expected is not None
            assert result.actual is not None
            assert result.expected < result.actual
            assert work.event is not None
            assert work.event.sequence_num is None
        elif isinstance(result, BaseException):
            raise result

    async def _catch_up(self, thread: Thread, moment: Moment) -> None:
        """Gives the model the events in the order that the engine chose, and checks that it is a possible one."""
        works = [work for work in self.works if work.thread is thread]
        accepted = {
            work.event.id: work
            for work in works
            if work.event is not None and work.name != "resend" and not isinstance(work.result, BaseException)
        }
        updates = [work.delta for work in works if work.name == "update"]
        events_before, version_before, count_before = len(thread.events), thread.version, thread.own_state().get("n", 0)
        found = await self.engine.sessions.log.read(thread.id, after=events_before)
        assert [event.sequence_num for event in found] == list(range(events_before + 1, events_before + 1 + len(found)))
        for event in found:
            if event.id in accepted:
                delta = accepted.pop(event.id).delta
            elif (delta := event.actions["state_delta"]) in updates:
                updates.remove(delta)
            else:
                assert delta == increment(thread.own_state())
            stored = thread.add(event, delta, moment)
            assert event.version == stored.version
        assert not accepted, "answered as stored, but not in the log"
        assert not updates, "an update by delta was lost"
        increments = sum(work.name == "increment" for work in works)
        assert thread.own_state().get("n", 0) == count_before + increments
        self._check_order(works, thread, version_before)

    @staticmethod
    def _check_order(works: list[Work], thread: Thread, version_before: int) -> None:
        """One shared object appends in the order of the calls; of the writers that race for one version, one wins."""
        shared = [work for work in works if work.name.startswith("shared")]
        numbers = [work.event.sequence_num for work in shared if work.event and work.event.sequence_num]
        assert numbers == sorted(numbers)
        won = [work for work in works if work.name == "race" and not isinstance(work.result, BaseException)]
        assert len(won) <= 1
        for work in works:
            if work.event is not None and work.event.sequence_num is not None:
                stored = thread.events[work.event.sequence_num - 1]
                assert (work.event.id, work.event.version) == (stored.event.id, stored.version)
                assert work.event.created_at == stored.event.created_at
        for work in won:
            assert work.event is not None
            assert work.event.version == version_before + 1

    def _forks(self, thread: Thread, events_before: int) -> list[Thread]:
        forks = []
        for work in self.works:
            if work.thread is thread and work.name == "fork":
                fork: Session = work.result
                assert events_before <= fork.last_sequence <= len(thread.events)
                forks.append(forked(thread, fork, fork.last_sequence))
        return forks


def forked(thread: Thread, session: Session, sequence: int) -> Thread:
    """The model of a fork: the same past."""
    return Thread(session, thread.initial, thread.wide, thread.created, thread.events[:sequence])


def increment(state: JsonObject) -> JsonObject:
    return {"n": state.get("n", 0) + 1}


def new_event(event_id: str, delta: JsonObject, *, kind: str = "thought", content: JsonObject | None = None) -> Event:
    actions = {"state_delta": delta} if delta else {}
    return Event(event_id, "", "invocation", "agent", kind, content=content or {}, actions=actions)


def as_sent(event: Event) -> Event:
    """The event as its sender made it, before it was stored."""
    sent = copy.deepcopy(event)
    sent.created_at = sent.sequence_num = sent.version = None
    return sent


def noted(function: Callable[..., None]) -> Callable[..., None]:
    """A rule whose failure tells what led to it: concurrent outcomes differ, so hypothesis may not find it again."""

    @wraps(function)
    def step(self: PulseMachine, **arguments: Any) -> None:
        self.history.append(f"{function.__name__}({arguments})")
        try:
            function(self, **arguments)
        except Exception as error:
            error.add_note("\n".join(self.history))
            raise

    return step


class PulseMachine(RuleBasedStateMachine):
    """Each example has an app of its own in one database."""

    def __init__(self, engine: Engine, other: StateManager, run: asyncio.Runner, steps: Counter[str]) -> None:
        super().__init__()
        self.engine = engine
        self.other = other
        self.sessions = engine.sessions
        self.manager = StateManager(database_of(engine), engine.settings)
        self.runner = run
        self.steps = steps
        self.app = f"app-{uuid4()}"
        self.app_writes: list[JsonObject] = []
        self.user_writes: dict[str, list[JsonObject]] = {"ada": [], "bob": []}
        self.threads: list[Thread] = []
        self.numbers = itertools.count()
        self.history: list[str] = []

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(coroutine)

    def pick(self, number: int) -> Thread:
        return self.threads[number % len(self.threads)]

    @initialize(user=users, is_named=st.booleans(), state=states)
    @noted
    def create_first(self, user: str, is_named: bool, state: JsonObject) -> None:
        self.create(user=user, is_named=is_named, state=state)

    @precondition(lambda self: len(self.threads) < 8)
    @rule(user=users, is_named=st.booleans(), state=states)
    @noted
    def create(self, user: str, is_named: bool, state: JsonObject) -> None:
        self.steps["create"] += 1
        session_id = f"s'{next(self.numbers)} %s 😀" if is_named else None
        session = self.run(self.sessions.create(self.app, user, state=state, session_id=session_id))
        assert session.id == (session_id or session.thread_id)
        assert session.version == 1
        wide = {"user:": self.user_writes[user], "app:": self.app_writes}
        thread = Thread(session, without_temp(state), wide, Moment({}, {}))
        thread.write_wide(thread.initial)
        thread.created = thread.now()
        self.threads.append(thread)
        assert_same(session.state, thread.state() | replay([in_scope(state, "temp:")]))
        self.check(thread)
        with pytest.raises(AlreadyExistsError):
            self.run(self.sessions.create(self.app, user, session_id=session.id, state={"user:a": "taken"}))

    @rule(number=picks, kind=kinds, content=contents, delta=st.just({}) | deltas, is_fresh=st.booleans())
    @noted
    def append(self, number: int, kind: str, content: JsonObject, delta: JsonObject, is_fresh: bool) -> None:
        self.steps["append"] += 1
        thread = self.pick(number)
        session = self.run(self.stored(thread)) if is_fresh else thread.session
        event = new_event("" if number % 2 else f"e'{next(self.numbers)}", delta, kind=kind, content=content)
        temp = in_scope(session.state, "temp:")
        answer = self.run(self.manager.append_event(session, event))
        assert answer is event
        stored = thread.add(event, without_temp(delta))
        assert (event.sequence_num, event.version) == (len(thread.events), stored.version)
        assert (session.last_sequence, session.version) == (len(thread.events), thread.version)
        assert session.updated_at == event.created_at
        assert_same(in_scope(session.state, ""), thread.own_state())
        assert_same(in_scope(session.state, "temp:"), replay([temp, in_scope(delta, "temp:")]))
        thread.session = session
        self.check(thread)

    @rule(number=picks, delta=deltas, age=st.integers(min_value=1, max_value=3))
    @noted
    def append_stale(self, number: int, delta: JsonObject, age: int) -> None:
        thread = self.pick(number)
        if not without_temp(delta) or thread.version <= age:
            return
        self.steps["append_stale"] += 1
        stale = copy.deepcopy(thread.session)
        stale.version -= age
        untouched = copy.deepcopy(stale)
        event = new_event(f"e{next(self.numbers)}", delta)
        with pytest.raises(ConcurrencyConflictError) as conflict:
            self.run(self.manager.append_event(stale, event))
        assert (conflict.value.expected, conflict.value.actual) == (thread.version - age, thread.version)
        assert_same(vars(stale), vars(untouched))
        assert event.sequence_num is None
        self.check(thread)

    @rule(number=picks, which=picks, change=st.sampled_from(["", "", "content", "author", "delta", "type"]))
    @noted
    def resend(self, number: int, which: int, change: str) -> None:
        thread = self.pick(number)
        if not thread.events:
            return
        self.steps["resend"] += 1
        original = thread.events[which % len(thread.events)].event
        event = as_sent(original)
        match change:
            case "content":
                event.content["other"] = math.nan
            case "author":
                event.author = "another author"
            case "delta":
                event.actions = {"state_delta": {"other": next(self.numbers)}}
            case "type":
                event.event_type = "act"
        sent, session = copy.deepcopy(event), copy.deepcopy(thread.session)
        if change:
            with pytest.raises(DuplicateEventError):
                self.run(self.manager.append_event(session, event))
            assert_same(vars(event), vars(sent))
            assert_same(vars(session), vars(thread.session))
        else:
            self.run(self.manager.append_event(session, event))
            assert_same(vars(event), vars(original) | {"thread_id": session.thread_id})
            assert session.version == thread.version
            assert_same(in_scope(session.state, ""), thread.own_state())
        self.check(thread)

    @rule(number=picks, is_stale=st.booleans(), delta=st.none() | deltas)
    @noted
    def update(self, number: int, is_stale: bool, delta: JsonObject | None) -> None:
        self.steps["update"] += 1
        thread = self.pick(number)
        session = copy.deepcopy(thread.session)
        if is_stale:
            session.version, session.state = session.version - 1, {}
        change = increment(thread.own_state()) if delta is None else delta
        self.run(self.manager.update_session_state(session, increment if delta is None else delta))
        (event,) = self.run(self.sessions.recent_events(session, limit=1))
        thread.add(event, without_temp(change))
        if without_temp(change):
            assert session.version == thread.version
            assert_same(in_scope(session.state, ""), thread.own_state())
            thread.session = session
        self.check(thread)

    @precondition(lambda self: len(self.threads) > 3)
    @rule(number=picks)
    @noted
    def delete(self, number: int) -> None:
        self.steps["delete"] += 1
        thread = self.threads.pop(number % len(self.threads))
        assert self.run(self.sessions.delete(thread.session)) is True
        assert self.run(self.sessions.delete(thread.session)) is False
        self.run(self.check_gone(thread))

    @precondition(lambda self: len(self.threads) < 8)
    @rule(number=picks, at=st.none() | picks, is_named=st.booleans())
    @noted
    def fork(self, number: int, at: int | None, is_named: bool) -> None:
        self.steps["fork"] += 1
        thread = self.pick(number)
        sequence = None if at is None else at % (len(thread.events) + 1)
        session_id = f"f{next(self.numbers)}" if is_named else None
        session = self.run(self.sessions.fork(thread.session, at_sequence=sequence, session_id=session_id))
        assert session.id == (session_id or session.thread_id)
        fork = forked(thread, session, len(thread.events) if sequence is None else sequence)
        self.threads.append(fork)
        self.check(fork)
        self.run(self.check_log(fork))
        with pytest.raises(NotFoundError):
            self.run(self.sessions.fork(thread.session, at_sequence=len(thread.events) + 1))

    @rule(number=picks, keep=st.none() | st.integers(min_value=0, max_value=3))
    @noted
    def snapshot(self, number: int, keep: int | None) -> None:
        self.steps["snapshot"] += 1
        thread = self.pick(number)
        assert self.run(self.sessions.snapshot(thread.session)) == thread.version
        if keep is not None:
            self.run(database_of(self.engine).fetch_value("prune_snapshots", keep))

    @rule(number=picks, when=picks)
    @noted
    def travel_to_sequence(self, number: int, when: int) -> None:
        self.steps["travel"] += 1
        thread = self.pick(number)
        sequence = when % (len(thread.events) + 1)
        thread.check_past(self.run(self.sessions.at(thread.session, sequence=sequence)), sequence)
        with pytest.raises(NotFoundError):
            self.run(self.sessions.at(thread.session, sequence=len(thread.events) + 1))

    @rule(number=picks, when=picks)
    @noted
    def travel_to_version(self, number: int, when: int) -> None:
        self.steps["travel"] += 1
        thread = self.pick(number)
        version = 1 + when % thread.version
        made_it = [place for place, stored in enumerate(thread.events, start=1) if stored.version == version]
        sequence = 0 if version == 1 else made_it[0]
        thread.check_past(self.run(self.sessions.at(thread.session, version=version)), sequence)
        with pytest.raises(NotFoundError):
            self.run(self.sessions.at(thread.session, version=thread.version + 1))

    @rule(user=users | st.none(), limit=st.integers(min_value=1, max_value=4))
    @noted
    def list_sessions(self, user: str | None, limit: int) -> None:
        self.steps["list"] += 1
        found = self.run(self.list_pages(user, limit))
        wanted = [thread for thread in self.threads if user in (None, thread.session.user_id)]
        assert {session.thread_id for session in found} == {thread.session.thread_id for thread in wanted}
        assert len(found) == len(wanted)
        moments = [session.updated_at for session in found]
        assert moments == sorted(moments, reverse=True)
        states = {thread.session.thread_id: thread.state() for thread in wanted}
        for session in found:
            assert_same(session.state, states[session.thread_id])

    @rule(number=picks)
    @noted
    def read_log(self, number: int) -> None:
        self.steps["read"] += 1
        self.run(self.check_log(self.pick(number)))

    @rule(works=st.lists(concurrent_works, min_size=2, max_size=12))
    @noted
    def concurrently(self, works: list[tuple[str, int, str]]) -> None:
        self.run(self._concurrently(works))

    # Rules are chosen evenly: these two count twice.
    append_too = append
    concurrently_too = concurrently

    async def _concurrently(self, works: list[tuple[str, int, str]]) -> None:
        batch = Batch(self.engine, self.other, self.numbers)
        doomed = {id(self.pick(number)) for name, number, _ in works if name == "delete"}
        may_delete = len(self.threads) > 3
        for name, number, scope in works:
            thread = self.pick(number)
            is_doomed = may_delete and id(thread) in doomed
            if (name == "delete" and not may_delete) or (name == "fork" and (is_doomed or len(self.threads) > 6)):
                continue
            # One process at a time does the housekeeping.
            if name == "prune" and any(work.name == "prune" for work in batch.works):
                continue
            # What a deleted session wrote to wider scopes stays, but no response says what it was.
            batch.add(name, thread, "" if is_doomed else scope)
        self.steps["concurrent"] += len(batch.works)
        new, gone = await batch.run()
        self.threads = [thread for thread in (*self.threads, *new) if not any(thread is other for other in gone)]
        for thread in gone:
            await self.check_gone(thread)
        for thread in self.threads:
            await self.manager.sessions.refresh(thread.session)
            await self.check_stored(thread)

    # Comparisons

    def check(self, thread: Thread) -> None:
        self.run(self.check_stored(thread))

    async def stored(self, thread: Thread) -> Session:
        found = await self.sessions.get(self.app, thread.session.user_id, thread.session.id)
        assert found is not None
        return found

    async def check_stored(self, thread: Thread) -> None:
        found = await self.stored(thread)
        assert (found.version, found.last_sequence) == (thread.version, len(thread.events))
        assert_same(found.state, thread.state())

    async def check_log(self, thread: Thread) -> None:
        found = await self.sessions.events(thread.session)
        assert [event.sequence_num for event in found] == list(range(1, len(thread.events) + 1))
        moments = [event.created_at for event in found]
        assert moments == sorted(moments)
        for event, stored in zip(found, thread.events, strict=True):
            assert (event.id, event.version) == (stored.event.id, stored.version)
            assert json.dumps(event.content) == json.dumps(stored.event.content)
            assert_same(event.actions.get("state_delta", {}), stored.delta)
        messages = await self.sessions.messages(thread.session)
        assert [(message.sequence_num, message.role, message.content) for message in messages] == thread.messages()

    async def check_gone(self, thread: Thread) -> None:
        assert await self.sessions.get(self.app, thread.session.user_id, thread.session.id) is None
        with pytest.raises(NotFoundError):
            await self.manager.append_event(copy.copy(thread.session), new_event("", {}))
        with pytest.raises(NotFoundError):
            await self.sessions.at(thread.session, sequence=0)

    async def list_pages(self, user: str | None, limit: int) -> list[Session]:
        page = await self.sessions.list(self.app, user, limit=limit)
        found = page.items
        while page.next_cursor:
            assert len(page.items) == limit
            page = await self.sessions.list(self.app, user, limit=limit, cursor=page.next_cursor)
            found += page.items
        return found


# One database and one engine for all examples


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as loop:
        yield loop


@pytest.fixture(scope="module")
def model_url(postgres_server: EmbeddedPostgres, runner: asyncio.Runner) -> Iterator[str]:
    name = f"model_{uuid4().hex}"

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(postgres_server.url)
        await connection.execute(statement)
        await connection.close()

    runner.run(execute(f"CREATE DATABASE {name} TEMPLATE migrated"))
    yield postgres_server.url.replace("/cognizes-engine?", f"/{name}?")
    runner.run(execute(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
def model_engine(model_url: str, runner: asyncio.Runner) -> Iterator[Engine]:
    engine = runner.run(Engine.open(model_url, snapshot_every=5).start())
    yield engine
    runner.run(engine.close())


@pytest.fixture(scope="module")
def one_batch_engine(model_url: str, runner: asyncio.Runner) -> Iterator[Engine]:
    """A pool so small that batches go one at a time: only within one is there an order between threads."""
    engine = runner.run(Engine.open(model_url, snapshot_every=5, pool_size=3).start())
    yield engine
    runner.run(engine.close())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each function for appends was called."""
    counted: Counter[str] = Counter()
    fetch = asyncpg.Connection.fetch

    async def count_and_fetch(connection: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        counted.update(re.findall(r"append_events?(?=\()", query))
        return await fetch(connection, query, *arguments, **options)

    monkeypatch.setattr(asyncpg.Connection, "fetch", count_and_fetch)
    return counted


@pytest.mark.timeout(900)
@pytest.mark.parametrize("wanted", [3_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_the_engine_is_its_model(
    model_engine: Engine, runner: asyncio.Runner, calls: Counter[str], wanted: int
) -> None:
    steps: Counter[str] = Counter()
    other = StateManager(database_of(model_engine), model_engine.settings)
    run_state_machine_as_test(
        lambda: PulseMachine(model_engine, other, runner, steps),
        settings=settings(
            UNBOUNDED,
            phases=NO_SHRINKING,
            max_examples=wanted // STEPS_THAT_COUNT,
            stateful_step_count=STEPS_PER_EXAMPLE,
        ),
    )
    runner.run(other.close())
    assert steps.total() >= wanted, dict(steps)
    assert steps["concurrent"] >= wanted / 4
    assert calls["append_event"] > wanted / 20, "appends alone"
    assert calls["append_events"] > wanted / 100, "appends in batches"


# The two ways of an append: alone (SQL function append_event) and in a batch (append_events)

appends = st.tuples(
    st.integers(min_value=0, max_value=2),
    st.sampled_from(["", "", "e1", "e2", "e3", "e4"]),
    kinds,
    contents,
    st.just({}) | deltas,
    st.none() | st.integers(min_value=1, max_value=4),
)


@pytest.mark.timeout(900)
@settings(UNBOUNDED, max_examples=100)
@given(works=st.lists(appends, min_size=2, max_size=10))
def test_a_batch_answers_and_stores_what_single_appends_do(
    one_batch_engine: Engine,
    runner: asyncio.Runner,
    works: list[tuple[int, str, str, JsonObject, JsonObject, int | None]],
) -> None:
    async def append(threads: list[Session], work: tuple[Any, ...]) -> tuple[Any, ...]:
        place, event_id, kind, content, delta, expected = copy.deepcopy(work)
        event = new_event(event_id, delta, kind=kind, content=content)
        thread_id = UUID(threads[place].thread_id)
        try:
            is_new = await one_batch_engine.sessions.append_to_thread(thread_id, event, expected_version=expected)
        except ConcurrencyConflictError as error:
            return ("conflict", error.expected, error.actual)
        except DuplicateEventError:
            return ("other content",)
        return (is_new, event.sequence_num, event.version)

    async def outcome(threads: list[Session]) -> str:
        found = []
        for thread in threads:
            session = await one_batch_engine.sessions.get(thread.app_name, thread.user_id, thread.id)
            assert session is not None
            events = await one_batch_engine.sessions.events(session)
            messages = await one_batch_engine.sessions.messages(session)
            found.append([session.state, session.version, session.last_sequence])
            found.append([[event.sequence_num, event.version, event.content, event.actions] for event in events])
            found.append([[message.sequence_num, message.role, message.content] for message in messages])
            pasts = [await one_batch_engine.sessions.at(session, sequence=number) for number in range(len(events) + 1)]
            found.append([[past.version, in_scope(past.state, "")] for past in pasts])
        return canonical(found)

    async def compare() -> None:
        names = [f"alone-{uuid4()}", f"batch-{uuid4()}"]
        alone, batch = [[await one_batch_engine.sessions.create(name, "ada") for _ in range(3)] for name in names]
        answers_alone = [await append(alone, work) for work in works]
        bystander = await one_batch_engine.sessions.create("bystander", "ada")
        # While the bystander's append is on its way the others gather, and go as one batch.
        first = one_batch_engine.sessions.append_event(bystander, new_event("", {}))
        _, *answers_batch = await asyncio.gather(first, *(append(batch, work) for work in works))
        assert answers_batch == answers_alone
        assert await outcome(batch) == await outcome(alone)

    runner.run(compare())


# What the state machine does not reach


@pytest.mark.parametrize("prefix", ["user:", "app:"])
async def test_increments_by_function_of_a_shared_key_are_exact_across_sessions(engine: Engine, prefix: str) -> None:
    sessions = [await engine.sessions.create("shop", "ada") for _ in range(5)]
    key = f"{prefix}n"

    async def count(session: Session) -> None:
        for _ in range(10):
            await engine.sessions.update(session, lambda state: {key: state.get(key, 0) + 1})

    await asyncio.gather(*map(count, sessions))
    assert (await StateManager(database_of(engine)).get_all_state(sessions[0]))[key] == 50


@pytest.mark.parametrize("prefix", ["user:", "app:"])
async def test_a_function_sees_the_fresh_value_of_a_shared_key(engine: Engine, prefix: str) -> None:
    first, second = [await engine.sessions.create("shop", "ada") for _ in range(2)]
    key = f"{prefix}n"
    for session in (first, second):
        await engine.sessions.update(session, lambda state: {key: state.get(key, 0) + 1})
    assert (await StateManager(database_of(engine)).get_all_state(first))[key] == 2


async def test_temp_keys_do_not_pass_from_one_session_object_to_another(engine: Engine) -> None:
    mine = await engine.sessions.create("shop", "ada")
    yours = await StateManager(database_of(engine)).get_session("shop", "ada", mine.id)
    assert yours is not None
    await StateManager(database_of(engine)).set_state(mine, "temp:secret", 1)
    await asyncio.gather(engine.sessions.update(mine, {"x": 1}), engine.sessions.update(yours, {"y": 1}))
    assert yours.state == {"x": 1, "y": 1}
    assert mine.state["temp:secret"] == 1


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
@pytest.mark.parametrize("value", [{"$delete": 1}, {"$delete": 1.0}, {"$delete": False}, {"$delete": True, "x": 1}])
async def test_only_the_delete_mark_deletes(engine: Engine, prefix: str, value: JsonObject) -> None:
    session = await engine.sessions.create("shop", "ada")
    await engine.sessions.append(session, author="agent", kind="thought", state={f"{prefix}k": value})
    assert_same(session.state, {f"{prefix}k": value})
    assert_same(await StateManager(database_of(engine)).get_all_state(session), {f"{prefix}k": value})
    assert_same((await engine.sessions.at(session, sequence=1)).state, {f"{prefix}k": value})


@pytest.mark.parametrize("prefix", ["", "user:", "app:", "temp:"])
@pytest.mark.parametrize("mark", [DELETE, {"$delete": True}], ids=repr)
async def test_a_delete_mark_in_an_initial_state_is_no_value(engine: Engine, prefix: str, mark: Any) -> None:
    await engine.sessions.create("shop", "ada", state={"user:k": 1, "app:k": 1})
    session = await engine.sessions.create("shop", "ada", state={f"{prefix}k": mark, "other": 1})
    wanted = {"user:k": 1, "app:k": 1, "other": 1}
    wanted.pop(f"{prefix}k", None)
    assert_same(session.state, wanted)
    assert_same(await StateManager(database_of(engine)).get_all_state(session), wanted)


async def test_time_travel_while_the_session_is_deleted_invents_nothing(engine: Engine) -> None:
    async def travel(session: Session) -> JsonObject | None:
        try:
            return (await engine.sessions.at(session, sequence=1)).state
        except NotFoundError:
            return None

    for _ in range(50):
        session = await engine.sessions.create("shop", "ada", state={"k": 0})
        await engine.sessions.append(session, author="agent", kind="thought", state={"k": 1})
        *found, _ = await asyncio.gather(*(travel(session) for _ in range(4)), engine.sessions.delete(session))
        assert all(state in (None, {"k": 1}) for state in found)


async def test_a_resend_while_the_session_is_deleted_is_no_other_content(engine: Engine) -> None:
    for _ in range(50):
        session = await engine.sessions.create("shop", "ada")
        await engine.sessions.append_event(session, new_event("e", {"k": 1}))
        answer, _ = await asyncio.gather(
            engine.sessions.append_event(session, new_event("e", {"k": 1})),
            engine.sessions.delete(session),
            return_exceptions=True,
        )
        assert isinstance(answer, Event | NotFoundError), repr(answer)


async def test_a_snapshot_while_the_session_is_deleted_finds_it_or_not(engine: Engine) -> None:
    for _ in range(50):
        session = await engine.sessions.create("shop", "ada")
        answers = await asyncio.gather(
            *(engine.sessions.snapshot(session) for _ in range(3)),
            engine.sessions.delete(session),
            return_exceptions=True,
        )
        assert all(isinstance(answer, int | NotFoundError) for answer in answers), answers


async def test_housekeeping_and_deleting_do_not_lock_each_other_out(engine: Engine) -> None:
    """Both remove snapshots; a circle of waiting would cost one of them its work."""
    for _ in range(10):
        sessions = [await engine.sessions.create("shop", "ada", state={"k": 0}) for _ in range(8)]
        for number in range(6):
            await asyncio.gather(*(engine.sessions.update(session, {"k": number}) for session in sessions))
            await asyncio.gather(*(engine.sessions.snapshot(session) for session in sessions))
        await asyncio.gather(
            *(database_of(engine).fetch_value("prune_snapshots", 1) for _ in range(2)),
            *(engine.sessions.delete(session) for session in sessions),
        )


async def test_the_same_event_twice_in_one_batch_is_a_resend_and_no_conflict(engine: Engine) -> None:
    session, bystander = [await engine.sessions.create("shop", "ada") for _ in range(2)]
    thread_id = UUID(session.thread_id)
    events = [new_event("e", {"k": 1}) for _ in range(2)]
    first = engine.sessions.append_event(bystander, new_event("", {}))
    _, *is_new = await asyncio.gather(
        first, *(engine.sessions.append_to_thread(thread_id, event, expected_version=1) for event in events)
    )
    assert is_new == [True, False]
    assert vars(events[0]) == vars(events[1])
