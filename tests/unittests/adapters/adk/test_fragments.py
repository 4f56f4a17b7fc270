"""Fragments of a text take a shorter way to frames than events that are stored, and become the same frames."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui.core import BaseEvent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from cognizes.engine.adapters.adk.events import encode_event, encode_fragment
from cognizes.engine.agui.translator import Translator


def fragment(*parts: types.Part, **more: Any) -> Event:
    fields = {"id": "f", "author": "root", "invocation_id": "i", "partial": True} | more
    return Event(content=types.Content(role="model", parts=list(parts)), **fields)


def frames(translator: Translator, event: Any) -> list[dict[str, Any]]:
    made: list[BaseEvent] = translator.translate(event)
    return [frame.model_dump(exclude={"timestamp"}) for frame in made]


@pytest.mark.parametrize(
    "events",
    [
        [fragment(types.Part(text="a")), fragment(types.Part(text="b"))],
        [fragment(types.Part(text="hm", thought=True)), fragment(types.Part(text="yes"))],
        [fragment(types.Part(text="hm", thought=True), types.Part(text="yes"))],
        [fragment(types.Part(text="a"), author="poet", branch="root.poet")],
        [fragment(types.Part(text="\ud800"))],
    ],
)
def test_a_fragment_becomes_the_same_frames(events: list[Event]) -> None:
    short, long = (Translator(thread_id="t", run_id="r", root_agent="root") for _ in range(2))
    for event in events:
        encoded = encode_fragment(event, thread_id="t")
        assert encoded is not None
        assert frames(short, encoded) == frames(long, encode_event(event, thread_id="t"))
    assert short.unfinished_turns() == long.unfinished_turns()


@pytest.mark.parametrize(
    "event",
    [
        fragment(types.Part(text="whole"), partial=False),
        fragment(types.Part(text="a"), actions=EventActions(state_delta={"k": 1})),
        fragment(types.Part(text="a"), custom_metadata={"client_history": True}),
        fragment(types.Part(function_call=types.FunctionCall(id="c", name="search"))),
        fragment(types.Part(text="a"), types.Part(inline_data=types.Blob(data=b"x", mime_type="image/png"))),
        Event(author="root", partial=True),
    ],
)
def test_other_events_take_the_long_way(event: Event) -> None:
    assert encode_fragment(event, thread_id="t") is None
