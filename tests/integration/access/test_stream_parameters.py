"""Whatever the parameters of a stream are: it opens or says what is wrong, and never fails by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app
from tests.asgi_streams import AsgiStream

WORDS = st.one_of(
    st.sampled_from(
        ["", "0", "-1", "1", "*", "null", "9" * 30, "1.5", "a,b", ",", ",,", "%00", "\x00", "é", "0x1", "²"]
    ),
    st.text(max_size=20),
    st.integers().map(str),
)
HEADERS = st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)
QUERIES = st.dictionaries(
    st.sampled_from(["after", "profile", "contexts", "last_event_id", "wait", "ticket"]), WORDS, max_size=3
)


@pytest.fixture
async def opened(database_url: str) -> AsyncIterator[tuple[Any, str]]:
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.create("a", "u")
        yield create_app(engine=engine, agents=[]), session.thread_id


def path_of(template: str, name: str, query: dict[str, str]) -> str:
    encoded = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
    return template.replace("{}", name) + (f"?{encoded}" if encoded else "")


# One application for all examples: they only look.
MANY = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("template", ["/api/runs/{}/events", "/contexts/{}/events", "/events"])
@MANY
@given(name=st.one_of(st.just("own"), WORDS), query=QUERIES, last=HEADERS)
async def test_server_sent_events(
    opened: tuple[Any, str], template: str, name: str, query: dict[str, str], last: str
) -> None:
    app, thread = opened
    path = path_of(template, thread if name == "own" else name.replace("?", "").replace("/", "") or "x", query)
    async with AsgiStream(app, path, last_event_id=last) as stream:
        assert stream.status in (200, 400, 401, 403, 404, 405, 409, 422), (path, last)
        if stream.status == 200:
            assert stream.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("template", ["/ws/events/{}", "/ws/signals"])
@MANY
@given(
    name=st.one_of(st.just("own"), WORDS),
    query=QUERIES,
    said=st.lists(
        st.one_of(
            st.none(),
            WORDS,
            st.fixed_dictionaries(
                {"type": st.sampled_from(["subscribe", "unsubscribe", "nonsense"])},
                optional={
                    "contexts": st.one_of(WORDS, st.lists(st.one_of(WORDS, st.integers(), st.none()), max_size=3)),
                    "after": st.one_of(WORDS, st.dictionaries(WORDS, st.one_of(WORDS, st.integers()), max_size=2)),
                },
            ),
        ),
        max_size=3,
    ),
)
async def test_websockets(
    opened: tuple[Any, str], template: str, name: str, query: dict[str, str], said: list[Any]
) -> None:
    app, thread = opened
    path = path_of(template, thread if name == "own" else name.replace("?", "") or "x", query)
    async with AsgiStream(app, path, websocket=True) as socket:
        assert socket.status == 101 or socket.close_code in (1000, 1003, 1007, 1008), path
        if socket.status == 101:
            for message in said:
                socket.send_json(message)
            if template == "/ws/signals":
                # The connection still receives commands after all of that.
                socket.send_json({"type": "subscribe", "contexts": [thread]})
                while thread.encode() not in (piece := await socket.next() or b"the end"):
                    assert piece != b"the end", said
    # An application that failed would have raised here.
