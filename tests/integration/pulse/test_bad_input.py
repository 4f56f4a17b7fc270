"""Bad and odd input through the library: kept as it is, or refused with a clear error and nothing stored."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from cognizes.engine import (
    AlreadyExistsError,
    ConcurrencyConflictError,
    DuplicateEventError,
    Engine,
    EngineError,
    Event,
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
    Session,
)
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.pulse.state_manager import StateManager
from tests.engine_parts import database_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNSTORABLE = ["nul\x00", "lone\ud800", "\udfff"]
ODD_NAMES = [
    "😀",
    "o'hara",
    'quo"te',
    "%s",
    "%(name)s",
    "$1",
    "{schema}",
    "{}",
    "a\nb\t",
    "; DROP TABLE events; --",
    "ÿ\ue000",
]
LONG_IDS = ["x" * 300, "é" * 300, "y" * 100_000, "😀" * 100_000]
NOT_JSON: list[Any] = [{1}, b"bytes", datetime.now(UTC), object(), 1j, Decimal("1.5"), 10**5000, {(1, 2): 3}, uuid4()]


def name_of(value: object) -> str:
    return ascii(value[:20]) if isinstance(value, str) else type(value).__name__


def event(**fields: Any) -> Event:
    return Event(
        **{"id": "", "thread_id": "", "invocation_id": "", "author": "agent", "event_type": "thought"} | fields
    )


def delta(state_delta: Any, **fields: Any) -> Event:
    return event(actions={"state_delta": state_delta}, **fields)


def nested(depth: int, leaf: Any = 1) -> Any:
    for number in range(depth):
        leaf = {"k": leaf} if number % 2 else [leaf]
    return leaf


async def stored(engine: Engine, session: Session) -> tuple[Any, ...]:
    """Everything that an append could have changed."""
    found = await engine.sessions.get(session.app_name, session.user_id, session.id)
    assert found is not None
    events = await engine.sessions.events(session)
    messages = await engine.sessions.messages(session)
    return (found, [vars(item) for item in events], messages)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """One database for all of them: what they do is small, and each has an app of its own."""
    connection = await asyncpg.connect(postgres_server.url)
    name = f"bad_input_{uuid4().hex}"
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE migrated")
    yield postgres_server.url.replace("/cognizes-engine?", f"/{name}?")
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str) -> AsyncIterator[Engine]:
    async with Engine.open(url) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(url: str) -> AsyncIterator[Engine]:
    """An engine with small limits."""
    async with Engine.open(url, max_event_bytes=20_000, max_state_bytes=5_000) as opened:
        yield opened


@pytest.fixture
def app() -> str:
    return f"app-{uuid4()}"


@pytest_asyncio.fixture(loop_scope="module")
async def session(engine: Engine, app: str) -> Session:
    """A session that has seen something already."""
    created = await engine.sessions.create(app, "ada", state={"k": 1, "user:k": 1, "app:k": 1, "temp:k": 1})
    await engine.sessions.append(
        created, author="user", kind="user_message", text="hi", state={"k": 2}, event_id="first"
    )
    return created


async def assert_refused(
    engine: Engine, session: Session, bad: Event, error: type[EngineError] = InvalidInputError
) -> EngineError:
    """Appends in vain, alone and in a batch: neither the store nor the objects change, and neighbours get through."""
    before = await stored(engine, session)
    fields, session_fields = dict(vars(bad)), copy.deepcopy(vars(session))
    with pytest.raises(error) as caught:
        await engine.sessions.append_event(session, bad)
    assert type(caught.value) is error
    neighbour = await engine.sessions.create(f"neighbours-{uuid4()}", "bob")
    twin = copy.copy(session)
    answers = await asyncio.gather(
        engine.sessions.append_event(neighbour, delta({"a": 1})),
        engine.sessions.append_to_thread(UUID(neighbour.thread_id), delta({"b": 2})),
        engine.sessions.append_event(twin, bad),
        engine.sessions.append_to_thread(UUID(neighbour.thread_id), delta({"c": 3})),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Event, bool, error, bool]
    assert (await StateManager(database_of(engine)).get_all_state(neighbour)) == {"a": 1, "b": 2, "c": 3}
    assert await stored(engine, session) == before
    assert vars(bad) == fields
    assert vars(session) == session_fields
    return caught.value


# Names and ids


@pytest.mark.parametrize("name", ["", " ", "\t\n", *UNSTORABLE, "x" * 1001, "é" * 501, None, 7, b"shop"], ids=name_of)
async def test_a_session_needs_a_name_for_app_and_user(engine: Engine, app: str, name: Any) -> None:
    with pytest.raises(InvalidInputError, match="app_name"):
        await engine.sessions.create(name, "ada", state={"app:k": 1})
    with pytest.raises(InvalidInputError, match="user_id"):
        await engine.sessions.create(app, name, state={"app:k": 1})
    assert (await engine.sessions.list(app)).items == []
    assert (await engine.sessions.create(app, "ada")).state == {}


@pytest.mark.parametrize("name", ["x" * 1000, "é" * 500, "😀" * 250, *ODD_NAMES], ids=name_of)
async def test_odd_names_are_kept(engine: Engine, name: str) -> None:
    created = await engine.sessions.create(name, name, session_id=name, state={name: name, f"user:{name}": 1})
    await engine.sessions.append(
        created, author=name, kind=name, event_id=name, invocation_id=name, run_id=name, state={f"app:{name}": 2}
    )
    found = await engine.sessions.get(name, name, name)
    assert found is not None
    assert (found.id, found.app_name, found.user_id) == (name, name, name)
    assert found.state == {name: name, f"user:{name}": 1, f"app:{name}": 2}
    (stored_event,) = await engine.sessions.events(created)
    fields = (stored_event.id, stored_event.author, stored_event.event_type, stored_event.invocation_id)
    assert fields == (name, name, name, name)
    assert stored_event.run_id == name
    assert (await engine.sessions.at(found, sequence=1)).state == found.state
    assert [item.id for item in (await engine.sessions.list(name, name)).items] == [name]
    assert await engine.sessions.delete(found) is True
    assert await engine.sessions.get(name, name, name) is None


@pytest.mark.parametrize("long_id", LONG_IDS, ids=lambda text: f"{len(text)}-{len(text.encode())}")
async def test_session_and_event_ids_have_any_length(engine: Engine, app: str, long_id: str) -> None:
    created = await engine.sessions.create(app, "ada", session_id=long_id)
    other = await engine.sessions.create(app, "ada", session_id=long_id + "!")
    with pytest.raises(AlreadyExistsError):
        await engine.sessions.create(app, "ada", session_id=long_id)
    for event_id in (long_id, long_id + "!", long_id):
        appended = await engine.sessions.append(created, author="a", kind="user_message", text="t", event_id=event_id)
        assert appended.id == event_id
    assert [item.id for item in await engine.sessions.events(created)] == [long_id, long_id + "!"]
    assert await engine.sessions.events(other) == []
    found = await engine.sessions.get(app, "ada", long_id)
    assert found is not None
    assert found.thread_id == created.thread_id


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
async def test_session_ids_that_no_text_column_holds_are_refused(engine: Engine, app: str, text: str) -> None:
    with pytest.raises(InvalidInputError):
        await engine.sessions.create(app, "ada", session_id=text)
    with pytest.raises(InvalidInputError):
        await engine.sessions.create(app, "ada", title=text)
    with pytest.raises(InvalidInputError):
        await engine.sessions.get(app, "ada", text)
    with pytest.raises(InvalidInputError):
        await engine.sessions.list(text)
    with pytest.raises(InvalidInputError):
        await StateManager(database_of(engine)).delete_session(app, "ada", text)
    source = await engine.sessions.create(app, "ada")
    with pytest.raises(InvalidInputError):
        await engine.sessions.fork(source, session_id=text)
    with pytest.raises(InvalidInputError):
        await engine.sessions.append_event(Session(text, app, "ada"), event())
    assert len((await engine.sessions.list(app)).items) == 1


@pytest.mark.parametrize("field", ["id", "author", "invocation_id", "event_type", "run_id"])
@pytest.mark.parametrize("text", [*UNSTORABLE, 7, b"x", ["x"]], ids=name_of)
async def test_event_fields_that_no_text_column_holds_are_refused(
    engine: Engine, session: Session, field: str, text: Any
) -> None:
    await assert_refused(engine, session, delta({"k": 3}, **{field: text}))


@pytest.mark.parametrize("field", ["event_type", "run_id"])
@pytest.mark.parametrize("text", [" ", "x" * 1001, "😀" * 251], ids=name_of)
async def test_event_names_are_neither_blank_nor_over_long(
    engine: Engine, session: Session, field: str, text: str
) -> None:
    await assert_refused(engine, session, delta({"k": 3}, **{field: text}))


async def test_an_event_needs_a_type(engine: Engine, session: Session) -> None:
    await assert_refused(engine, session, event(event_type=""))


@pytest.mark.parametrize("session_id", ["", " ", "\n"])
async def test_a_blank_session_id_asks_for_a_new_one(engine: Engine, app: str, session_id: str) -> None:
    created = await engine.sessions.create(app, "ada", session_id=session_id)
    assert created.id == created.thread_id
    fork = await engine.sessions.fork(created, session_id=session_id)
    assert fork.id == fork.thread_id


# Sessions that are not there


async def test_unknown_sessions_are_not_found(engine: Engine, app: str) -> None:
    assert await engine.sessions.get(app, "ada", "unknown") is None
    assert await StateManager(database_of(engine)).delete_session(app, "ada", "unknown") is False
    assert (await engine.sessions.list(app)).items == []
    unknown = [
        Session("unknown", app, "ada"),
        Session("unknown", app, "ada", thread_id=str(uuid4())),
        Session("unknown", app, "ada", thread_id="not a uuid"),
    ]
    for missing in unknown:
        untouched = copy.deepcopy(missing)
        for call in calls_on(engine):
            with pytest.raises(NotFoundError):
                await call(missing)
        sent = delta({"k": 1})
        with pytest.raises(NotFoundError):
            await engine.sessions.append_event(missing, sent)
        assert sent == delta({"k": 1})
        assert missing == untouched


def calls_on(engine: Engine) -> list[Callable[[Session], Any]]:
    return [
        lambda session: engine.sessions.append(session, author="a", kind="k"),
        lambda session: engine.sessions.update(session, {"k": 1}),
        lambda session: engine.sessions.update(session, lambda _: {"k": 1}),
        lambda session: engine.sessions.at(session, sequence=0),
        lambda session: engine.sessions.at(session, version=1),
        engine.sessions.snapshot,
        engine.sessions.fork,
        lambda session: engine.sessions.fork(session, at_sequence=0),
        lambda session: engine.sessions.change(session, title="t"),
        StateManager(database_of(engine)).get_all_state,
        engine.sessions.refresh,
    ]


async def test_a_missing_session_does_not_fail_its_neighbours(engine: Engine, session: Session) -> None:
    missing = uuid4()
    answers = await asyncio.gather(
        engine.sessions.append_event(session, event()),
        engine.sessions.append_to_thread(missing, event()),
        engine.sessions.append_to_thread(UUID(session.thread_id), event()),
        engine.sessions.append_to_thread(missing, event()),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Event, NotFoundError, bool, NotFoundError]


@pytest.mark.parametrize("when", [{"sequence": 2}, {"version": 0}, {"version": 3}], ids=str)
async def test_a_past_that_never_was_is_not_found(engine: Engine, session: Session, when: dict[str, int]) -> None:
    with pytest.raises(NotFoundError):
        await engine.sessions.at(session, **when)


@pytest.mark.parametrize(
    "when", [{}, {"sequence": 1, "version": 1}, {"sequence": -1}, {"version": -1}, {"sequence": 2**70}], ids=str
)
async def test_a_question_about_no_past_is_refused(engine: Engine, session: Session, when: dict[str, int]) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        await engine.sessions.at(session, **when)


@pytest.mark.parametrize("limit", [0, -1, -5, 2**70])
async def test_a_page_of_no_size_is_refused_or_empty(engine: Engine, session: Session, limit: int) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: engine.sessions.list(session.app_name, limit=limit),
        lambda: engine.sessions.events(session, limit=limit),
        lambda: engine.sessions.recent_events(session, limit=limit),
        lambda: engine.sessions.messages(session, limit=limit),
    ]
    for call in calls:
        try:
            found = await call()
        except InvalidInputError:
            continue
        assert limit == 0
        assert list(getattr(found, "items", found)) == []


@pytest.mark.parametrize("cursor", ["x", "é", "AAAA", "MjAyNnx4", "\x00"])
async def test_a_foreign_cursor_is_refused(engine: Engine, app: str, cursor: str) -> None:
    with pytest.raises(InvalidInputError, match="cursor"):
        await engine.sessions.list(app, cursor=cursor)


# Content that is not JSON, or not an object


@pytest.mark.parametrize("value", NOT_JSON, ids=name_of)
@pytest.mark.parametrize("key", ["k", "user:k", "app:k"])
async def test_values_that_are_not_json_are_refused(
    engine: Engine, app: str, session: Session, key: str, value: Any
) -> None:
    await assert_refused(engine, session, delta({key: value}))
    await assert_refused(engine, session, delta({"other": 1, key: ["\x00", math.nan, {"deep": value}]}))
    await assert_refused(engine, session, event(content={"c": value}))
    with pytest.raises(InvalidInputError):
        await engine.sessions.create(app, "ada", state={"other": 1, key: value}, session_id="new")
    assert await engine.sessions.get(app, "ada", "new") is None


@pytest.mark.parametrize("kind", ["thought", "message", "user_message", "observe"])
@pytest.mark.parametrize("content", [None, [], [1], "text", 7, True], ids=repr)
async def test_content_that_is_no_object_is_refused(engine: Engine, session: Session, kind: str, content: Any) -> None:
    await assert_refused(engine, session, event(event_type=kind, content=content))


@pytest.mark.parametrize("actions", [None, [], [1], "text", 7], ids=repr)
async def test_actions_that_are_no_object_are_refused(engine: Engine, session: Session, actions: Any) -> None:
    await assert_refused(engine, session, event(actions=actions))


@pytest.mark.parametrize("state_delta", [[1], [], "text", "", 7, 0, {1: 2}, {None: 1}], ids=repr)
async def test_a_delta_that_is_no_object_with_text_keys_is_refused(
    engine: Engine, session: Session, state_delta: Any
) -> None:
    await assert_refused(engine, session, delta(state_delta))


@pytest.mark.parametrize("state", [[1], "text", 7, {1: 2}, {None: 1}], ids=repr)
async def test_an_initial_state_that_is_no_object_with_text_keys_is_refused(
    engine: Engine, app: str, state: Any
) -> None:
    with pytest.raises(InvalidInputError):
        await engine.sessions.create(app, "ada", state=state)
    assert (await engine.sessions.list(app)).items == []


@pytest.mark.parametrize("metadata", [[1], "text", 7, {"k": {1}}, {"k": nested(10_000)}], ids=name_of)
async def test_metadata_that_is_no_object_is_refused_and_nothing_stored(
    engine: Engine, app: str, metadata: Any
) -> None:
    with pytest.raises(InvalidInputError):
        await engine.sessions.create(app, "ada", metadata=metadata)
    assert (await engine.sessions.list(app)).items == []
    created = await engine.sessions.create(app, "ada", metadata={"m": 1})
    with pytest.raises(InvalidInputError):
        await engine.sessions.change(created, metadata=metadata)
    assert (await engine.sessions.store.get_thread(created.thread_id)).metadata == created.metadata == {"m": 1}


@pytest.mark.parametrize("change", [None, 7, [1], lambda _: None, lambda _: [1], lambda _: {1: 2}], ids=name_of)
async def test_a_change_of_state_that_is_no_object_is_refused(engine: Engine, session: Session, change: Any) -> None:
    before, fields = await stored(engine, session), copy.deepcopy(vars(session))
    with pytest.raises(InvalidInputError):
        await engine.sessions.update(session, change)
    assert await stored(engine, session) == before
    assert vars(session) == fields


async def test_a_function_that_raises_changes_nothing(engine: Engine, session: Session) -> None:
    before, fields = await stored(engine, session), copy.deepcopy(vars(session))

    def spoil(state: dict[str, Any]) -> dict[str, Any]:
        state["k"] = "spoiled"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await engine.sessions.update(session, spoil)
    assert await stored(engine, session) == before
    assert vars(session) == fields
    await engine.sessions.update(session, {"k": 3})
    assert session.state["k"] == 3


async def test_no_retries_still_means_one_try(engine: Engine, session: Session) -> None:
    try:
        await engine.sessions.update(session, {"k": 3}, max_retries=0)
    except (InvalidInputError, ConcurrencyConflictError):
        return
    assert (await StateManager(database_of(engine)).get_all_state(session))["k"] == 3


# Numbers, nesting, size


@pytest.mark.parametrize(
    "value", [float("1e400"), -math.inf, math.nan, 2**63, -(10**4000), 1e22, 1e23, 1.5e300], ids=name_of
)
async def test_odd_numbers_come_back(engine: Engine, app: str, value: float) -> None:
    created = await engine.sessions.create(app, "ada", state={"k": value, "user:k": value})
    await engine.sessions.append(
        created, author="a", kind="k", content={"c": [value]}, state={"l": value, "app:l": value}
    )
    wanted = repr({"k": value, "l": value, "user:k": value, "app:l": value})
    found = await engine.sessions.get(app, "ada", created.id)
    assert found is not None
    for state in (created.state, found.state, (await engine.sessions.at(created, sequence=1)).state):
        assert repr({key: state[key] for key in ("k", "l", "user:k", "app:l")}) == wanted
    assert repr((await engine.sessions.events(created))[0].content) == repr({"c": [value]})


@pytest.mark.parametrize("leaf", [1, math.nan, "\x00", "\ud800"], ids=ascii)
@pytest.mark.parametrize("depth", [250, 600, 950, 10_000])
async def test_deep_nesting_is_refused(engine: Engine, app: str, session: Session, depth: int, leaf: Any) -> None:
    deep = nested(depth, leaf)
    for bad in (event(content={"c": deep}), delta({"k": deep}), delta({"user:k": deep}), delta({"app:k": deep})):
        before, session_before = await stored(engine, session), dict(vars(session))
        with pytest.raises(InvalidInputError, match="nested"):
            await engine.sessions.append_event(session, bad)
        assert await stored(engine, session) == before
        assert vars(session) == session_before
        assert (bad.id, bad.sequence_num, bad.version) == ("", None, None)
    for key in ("k", "user:k", "app:k"):
        with pytest.raises(InvalidInputError, match="nested"):
            await engine.sessions.create(app, "ada", state={key: deep}, session_id="new")
    assert await engine.sessions.get(app, "ada", "new") is None


@pytest.mark.parametrize("leaf", [1, math.nan, "\x00", "\ud800"], ids=ascii)
async def test_nesting_below_the_limit_works(engine: Engine, app: str, leaf: Any) -> None:
    deep = nested(190, leaf)
    created = await engine.sessions.create(app, "ada", state={"k": deep})
    await engine.sessions.append(created, author="a", kind="k", content={"c": deep}, state={"user:k": deep})
    await engine.sessions.update(created, lambda state: {"copy": state["user:k"]})
    found = await engine.sessions.get(app, "ada", created.id)
    assert found is not None
    assert repr(found.state["k"]) == repr(found.state["user:k"]) == repr(found.state["copy"]) == repr(deep)
    assert repr((await engine.sessions.events(created))[0].content["c"]) == repr(deep)


async def test_a_large_event_works(engine: Engine, app: str) -> None:
    created = await engine.sessions.create(app, "ada")
    text = "0123456789" * 1_000_000 + "\x00\ud800"
    await engine.sessions.append(created, author="a", kind="user_message", text=text)
    assert (await engine.sessions.events(created))[0].content == {"text": text}
    assert (await engine.sessions.messages(created))[0].content == text


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
async def test_a_large_state_works(engine: Engine, app: str, prefix: str) -> None:
    large = {f"{prefix}k{number}": f"{number:01000}" for number in range(1000)}
    created = await engine.sessions.create(app, "ada", state=large)
    await engine.sessions.append(
        created, author="a", kind="k", state={f"{prefix}k7": "changed", f"{prefix}one": "x" * 1_000_000}
    )
    found = await engine.sessions.get(app, "ada", created.id)
    assert found is not None
    assert found.state == created.state == large | {f"{prefix}k7": "changed", f"{prefix}one": "x" * 1_000_000}


@pytest_asyncio.fixture(loop_scope="module")
async def small_session(small: Engine, app: str) -> Session:
    created = await small.sessions.create(
        app, "ada", state={"k": "x" * 3_000, "user:k": "x" * 3_000, "app:k": "x" * 3_000}
    )
    await small.sessions.append(created, author="user", kind="user_message", text="hi", state={"n": 1})
    return created


@pytest.mark.parametrize("text", ["x" * 20_000, "é" * 15_000, "😀" * 6_000], ids=["ascii", "two bytes", "four bytes"])
async def test_an_event_over_the_limit_is_refused(small: Engine, small_session: Session, text: str) -> None:
    """The limit is in bytes."""
    error = await assert_refused(small, small_session, event(content={"text": text}), LimitExceededError)
    assert isinstance(error, LimitExceededError)
    assert error.limit == 20_000 < error.size
    assert "COGNIZES_MAX_EVENT_BYTES" in str(error)
    await assert_refused(small, small_session, event(actions={"a": text}), LimitExceededError)


@pytest.mark.parametrize("field", ["id", "author", "invocation_id"])
async def test_every_field_counts_for_the_limit_of_an_event(small: Engine, small_session: Session, field: str) -> None:
    await assert_refused(small, small_session, event(**{field: "x" * 1_000_000}), LimitExceededError)


@pytest.mark.parametrize("prefix", ["", "user:", "app:"])
async def test_a_state_over_the_limit_is_refused(small: Engine, app: str, small_session: Session, prefix: str) -> None:
    too_large = delta({f"{prefix}l": "y" * 3_000}, content={"text": "said"}, event_type="user_message")
    error = await assert_refused(small, small_session, too_large, LimitExceededError)
    assert isinstance(error, LimitExceededError)
    assert error.limit == 5_000 < error.size
    assert "COGNIZES_MAX_STATE_BYTES" in str(error)
    with pytest.raises(LimitExceededError):
        await small.sessions.create(app, "ada", session_id="new", state={f"{prefix}l": "y" * 6_000})
    with pytest.raises(LimitExceededError):
        await small.sessions.update(small_session, lambda _: {f"{prefix}l": "y" * 3_000})
    assert await small.sessions.get(app, "ada", "new") is None
    await small.sessions.update(small_session, {f"{prefix}k": "small again"})
    await small.sessions.append_event(small_session, too_large)
    assert small_session.state[f"{prefix}l"] == "y" * 3_000


async def test_a_session_over_the_limit_does_not_fail_those_created_beside_it(small: Engine, app: str) -> None:
    answers = await asyncio.gather(
        *(small.sessions.create(app, "ada", state={"k": "x" * size}) for size in (1, 2, 6_000, 3, 6_000, 4)),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [
        Session,
        Session,
        LimitExceededError,
        Session,
        LimitExceededError,
        Session,
    ]
    assert len((await small.sessions.list(app)).items) == 4


# Resends and conflicts


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 0}, {"a": False}),
        ({"a": None}, {}),
        ({"a": "1"}, {"a": 1}),
    ],
    ids=str,
)
async def test_another_content_under_the_same_id_is_refused(
    engine: Engine, session: Session, first: dict[str, Any], second: dict[str, Any]
) -> None:
    await engine.sessions.append_event(session, event(id="e", content=first))
    await assert_refused(engine, session, event(id="e", content=second), DuplicateEventError)
    await engine.sessions.append_event(session, delta(first, id="f"))
    await assert_refused(engine, session, delta(second, id="f"), DuplicateEventError)


async def test_a_resend_with_odd_values_in_another_order_is_the_same_event(engine: Engine, session: Session) -> None:
    await engine.sessions.append_event(
        session, event(id="e", content={"a": float("nan"), "b\x00": "\ud800", "c": -0.0})
    )
    before = await stored(engine, session)
    again = event(id="e", content={"c": -0.0, "b\x00": "\ud800", "a": float("nan")})
    await engine.sessions.append_event(session, again)
    assert again.sequence_num == 2
    assert repr(await stored(engine, session)) == repr(before)


async def test_a_stale_append_leaves_everything_as_it_was(engine: Engine, session: Session) -> None:
    stale = copy.deepcopy(session)
    await engine.sessions.update(session, {"k": 3})
    error = await assert_refused(engine, stale, delta({"k": 4}, id="mine"), ConcurrencyConflictError)
    assert isinstance(error, ConcurrencyConflictError)
    assert (error.expected, error.actual) == (2, 3)


async def test_a_message_id_used_twice_is_refused_clearly(engine: Engine, session: Session) -> None:
    first = event(event_type="user_message", content={"text": "a", "message_id": "m"})
    await engine.sessions.append_event(session, first)
    second = event(event_type="user_message", content={"text": "b", "message_id": "m"})
    before = await stored(engine, session)
    with pytest.raises(EngineError) as caught:
        await engine.sessions.append_event(session, second)
    assert "message" in str(caught.value)
    assert "constraint" not in str(caught.value), "the message tells the user what to do next"
    assert await stored(engine, session) == before
