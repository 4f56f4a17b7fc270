"""Reading again fetches and decodes only what is new, and is exact all the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types

from cognizes.engine.adapters.adk import OpenSessionService, session_reader


class Decoded:
    """Counts the events that were decoded."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoded]:
    counter = Decoded()
    decode = session_reader.decode_event

    def count_and_decode(row: Any) -> Event:
        counter.count += 1
        return decode(row)

    monkeypatch.setattr(session_reader, "decode_event", count_and_decode)
    return counter


@pytest.fixture
async def other(database_url: str) -> Any:
    """A service with a cache of its own, as in another process."""
    async with OpenSessionService(database_url, pool_size=3) as service:
        yield service


def said(text: str, **fields: Any) -> Event:
    content = types.Content(role="user", parts=[types.Part(text=text)])
    return Event(author="user", invocation_id="inv", content=content, **fields)


async def reload(service: OpenSessionService, session_id: str = "s", **config: Any) -> Session:
    stored = await service.get_session(
        app_name="shop", user_id="ada", session_id=session_id, config=GetSessionConfig(**config) if config else None
    )
    assert stored is not None
    return stored


def texts(session: Session) -> list[str]:
    return [event.content.parts[0].text for event in session.events]


async def filled(service: OpenSessionService, count: int, session_id: str = "s") -> Session:
    session = await service.create_session(app_name="shop", user_id="ada", session_id=session_id)
    for number in range(count):
        await service.append_event(session, said(str(number), timestamp=100.0 + number))
    return session


async def test_only_new_events_are_decoded(
    ours: OpenSessionService, other: OpenSessionService, decoded: Decoded
) -> None:
    session = await filled(ours, 5)
    assert len((await reload(ours)).events) == 5
    assert decoded.taken() == 5
    await ours.append_event(session, said("mine"))
    assert texts(await reload(ours)) == ["0", "1", "2", "3", "4", "mine"]
    assert decoded.taken() == 1
    await other.append_event(await reload(other), said("theirs"))
    decoded.taken()
    assert texts(await reload(ours))[-2:] == ["mine", "theirs"]
    assert decoded.taken() == 1
    assert len((await reload(ours)).events) == 7
    assert decoded.taken() == 0


async def test_state_is_never_cached(ours: OpenSessionService, other: OpenSessionService) -> None:
    await filled(ours, 1)
    await reload(ours)
    delta = EventActions(state_delta={"a": 1, "user:b": 2})
    await other.append_event(await reload(other), Event(author="agent", actions=delta))
    assert (await reload(ours)).state == {"a": 1, "user:b": 2}


async def test_a_session_created_again_under_the_same_id_has_only_its_own_events(
    ours: OpenSessionService, other: OpenSessionService
) -> None:
    await filled(ours, 5)
    await reload(ours)
    await other.delete_session(app_name="shop", user_id="ada", session_id="s")
    await filled(other, 2)
    for config in ({}, {"num_recent_events": 1}, {"after_timestamp": 101.0}):
        stored = await reload(ours, **config)
        assert texts(stored) == (["0", "1"] if not config else ["1"])
        assert stored.events == (await reload(other, **config)).events
    await other.delete_session(app_name="shop", user_id="ada", session_id="s")
    assert await ours.get_session(app_name="shop", user_id="ada", session_id="s") is None


async def test_a_tail_grows_and_is_replaced_when_there_is_a_gap(
    ours: OpenSessionService, other: OpenSessionService, decoded: Decoded
) -> None:
    await filled(other, 10)
    assert texts(await reload(ours, num_recent_events=3)) == ["7", "8", "9"]
    assert decoded.taken() == 3
    await other.append_event(await reload(other, num_recent_events=0), said("10"))
    assert texts(await reload(ours, num_recent_events=3)) == ["8", "9", "10"]
    assert decoded.taken() == 1
    assert texts(await reload(ours, num_recent_events=4)) == ["7", "8", "9", "10"]
    for number in range(11, 20):
        await other.append_event(await reload(other, num_recent_events=0), said(str(number)))
    assert texts(await reload(ours, num_recent_events=2)) == ["18", "19"]
    assert texts(await reload(ours)) == [str(number) for number in range(20)]
    decoded.taken()
    assert texts(await reload(ours, num_recent_events=12)) == [str(number) for number in range(8, 20)]
    assert decoded.taken() == 0


@pytest.mark.parametrize("warm", [None, {}, {"num_recent_events": 2}, {"num_recent_events": 0}])
async def test_filters_answer_the_same_whatever_is_cached(
    ours: OpenSessionService, other: OpenSessionService, database_url: str, warm: dict[str, Any] | None
) -> None:
    await filled(ours, 6)
    for config in (
        {},
        {"num_recent_events": 0},
        {"num_recent_events": 3},
        {"num_recent_events": 50},
        {"after_timestamp": 103.0},
        {"after_timestamp": 500.0},
        {"after_timestamp": 102.0, "num_recent_events": 2},
    ):
        async with OpenSessionService(database_url=database_url) as fresh:
            if warm is not None:
                await reload(fresh, **warm)
                await other.append_event(await reload(other, num_recent_events=0), said("new", timestamp=200.0))
            assert await reload(fresh, **config) == await reload(other, **config)


async def test_nothing_a_reader_does_reaches_the_cache(ours: OpenSessionService) -> None:
    session = await ours.create_session(app_name="shop", user_id="ada", session_id="s")
    call = types.FunctionCall(id="c", name="f", args={"deep": {"list": [1]}})
    event = Event(
        author="agent",
        invocation_id="inv",
        content=types.Content(role="model", parts=[types.Part(function_call=call)]),
        actions=EventActions(state_delta={"k": {"v": [1]}}, artifact_delta={"f": 1}),
        custom_metadata={"m": {"n": 1}},
        long_running_tool_ids={"c"},
        usage_metadata=types.GenerateContentResponseUsageMetadata(total_token_count=1),
        grounding_metadata=types.GroundingMetadata(web_search_queries=["q"]),
    )
    original = event.model_copy(deep=True)
    await ours.append_event(session, event)
    event.content.parts[0].function_call.args["deep"] = "appender"
    for _ in range(3):
        (stored,) = (await reload(ours)).events
        assert stored == original
        assert stored.model_dump() == original.model_dump()
        stored.content.parts[0].function_call.args["deep"]["list"].append(2)
        stored.content.parts.append(types.Part(text="x"))
        stored.actions.state_delta["k"]["v"].clear()
        stored.actions.artifact_delta["g"] = 2
        stored.custom_metadata["m"]["n"] = 2
        stored.long_running_tool_ids.add("d")
        stored.usage_metadata.total_token_count = 9
        stored.grounding_metadata.web_search_queries.append("r")
        stored.author = "reader"
        stored.branch = "b"


async def test_the_cache_is_bounded_and_can_be_off(database_url: str, decoded: Decoded) -> None:
    async with (
        OpenSessionService(database_url, cache_size=6) as small,
        OpenSessionService(database_url, cache_size=0) as off,
    ):
        for name in ("a", "b", "c"):
            await filled(small, 3, name)
        for name in ("a", "b", "c"):
            await reload(small, name)
        decoded.taken()
        await reload(small, "c")
        await reload(small, "b")
        assert decoded.taken() == 0
        await reload(small, "a")
        assert decoded.taken() == 3
        for _ in range(2):
            assert texts(await reload(off, "a")) == ["0", "1", "2"]
            assert decoded.taken() == 3


READS = {
    "iterate": lambda events: [event for event in events],  # noqa: C416
    "list": list,
    "tuple": tuple,
    "unpack": lambda events: [*events],
    "index": lambda events: [events[0], events[-2], events[2]],
    "slice": lambda events: events[:],
    "part": lambda events: [*events[0:2], events[-1]],
    "reversed": lambda events: list(reversed(events))[::-1],
    "sorted": lambda events: sorted(events, key=lambda event: event.timestamp),
    "enumerate": lambda events: [event for _, event in enumerate(events)],
    "add": lambda events: events + [],  # noqa: RUF005
    "added to": lambda events: [] + events,  # noqa: RUF005
    "repeat": lambda events: events * 1,
    "extend": lambda events: [found for other in [[]] if other.extend(events) is None for found in other],
    "pop": lambda events: [events.pop(0), events.pop(0), events.pop()],
    "copy": lambda events: events.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda events: pickle.loads(pickle.dumps(events)),
    "insert": lambda events: events.insert(1, said("x")) or [events[0], *events[2:]],
    "replace": lambda events: events.__setitem__(1, events[1]) or list(events),
    "delete": lambda events: events.__delitem__(0) or list(events),
    "reverse": lambda events: events.reverse() or list(events)[::-1],
    "sort": lambda events: events.sort(key=lambda event: event.timestamp) or list(events),
}


@pytest.mark.parametrize("read", READS)
async def test_however_the_events_are_read_they_are_the_readers_own(ours: OpenSessionService, read: str) -> None:
    await filled(ours, 3)
    await reload(ours)
    for event in READS[read]((await reload(ours)).events):
        event.content.parts[0].text = "changed"
        event.author = "changed"
    stored = await reload(ours)
    assert texts(stored) == ["0", "1", "2"]
    assert {event.author for event in stored.events} == {"user"}


async def test_sessions_behave_like_adks_own(ours: OpenSessionService) -> None:
    written = await filled(ours, 3)
    await reload(ours)
    for same in (
        await reload(ours),
        (await reload(ours)).model_copy(deep=True),
        Session.model_validate_json((await reload(ours)).model_dump_json()),
        Session.model_validate((await reload(ours)).model_dump()),
    ):
        assert same.model_dump() == written.model_dump()
        assert same.events == written.events
        assert len(same.events) == 3
        assert written.events[1] in same.events
        assert same.events.index(written.events[2]) == 2
    appended = await reload(ours)
    appended.events.append(said("local"))
    assert texts(appended) == ["0", "1", "2", "local"]
    with pytest.raises(IndexError):
        (await reload(ours)).events[3]


async def test_what_a_reader_does_to_its_events_is_seen_by_no_later_one(
    ours: OpenSessionService, database_url: str
) -> None:
    """The first copy of an event is made in another way than the later ones, and without a cache there is none."""
    session = await ours.create_session(app_name="shop", user_id="ada", session_id="s")
    for number in range(3):
        delta = {"list": [number], "deep": {"inner": {"n": number}}}
        await ours.append_event(session, said(str(number), actions=EventActions(state_delta=delta)))
    async with OpenSessionService(database_url, pool_size=3, cache_size=0) as uncached:
        expected = [event.model_dump() for event in (await reload(uncached)).events]
        for service in (ours, ours, ours, ours, uncached, uncached):
            read = await reload(service)
            assert [event.model_dump() for event in read.events] == expected
            for event in read.events:
                assert event.content is not None
                assert event.content.parts is not None
                event.actions.state_delta["list"].append("mine")
                event.actions.state_delta["deep"]["inner"]["n"] = "mine"
                event.content.parts[0].text = "mine"
                event.content.parts.append(types.Part(text="more"))
                event.author = "me"


async def test_a_session_larger_than_the_cache_evicts_no_other(database_url: str, decoded: Decoded) -> None:
    async with OpenSessionService(database_url, pool_size=3, cache_size=5) as service:
        await filled(service, 3, "small")
        await filled(service, 8, "large")
        assert len((await reload(service, "small")).events) == 3
        large = await reload(service, "large")
        assert type(large.events) is list, "no other object holds them, so nothing is copied"
        assert texts(large) == [str(number) for number in range(8)]
        decoded.taken()
        assert texts(await reload(service, "small")) == ["0", "1", "2"]
        assert decoded.taken() == 0
        assert len((await reload(service, "large")).events) == 8
        assert decoded.taken() == 8
