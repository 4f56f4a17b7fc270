"""The rule-based extractor, and the form of what an extractor returns."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cognizes.engine import InvalidInputError
from cognizes.engine.memory.extraction import Extraction, RuleExtractor, TranscriptTurn, find_facts

START = datetime(2026, 11, 1, tzinfo=UTC)


def turn(text: str, number: int = 0, *, role: str = "user", minutes: int = 0) -> TranscriptTurn:
    return TranscriptTurn(number, f"e{number}", role, None, text, START + timedelta(minutes=minutes))


def facts(text: str) -> dict[str, Any]:
    return {f"{fact.namespace}/{fact.key}": fact.value for fact in find_facts(turn(text))}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hi, my name is Ada Lovelace.", {"profile/name": "Ada Lovelace"}),
        ("I live in Lisbon, and I work at Nord.", {"profile/home": "Lisbon", "profile/employer": "Nord"}),
        ("My favourite colour is sage green!", {"preferences/favourite colour": "sage green"}),
        ("I really like green tea.", {"preferences/likes green tea": True}),
        ("I don\u2019t like Green Tea.", {"preferences/likes green tea": False}),
        ("I'm allergic to peanuts", {"health/allergy to peanuts": True}),
        ("Please remember that the key is under the mat.", {"notes/the key is under the mat": True}),
        ("my email is ada@shop.example", {"profile/email": "ada@shop.example"}),
        ("Do you know what I like?", {}),
        ("The weather is nice.", {}),
        ("I don't know.", {}),
        ("I do not have a car", {}),
        ("I don't really like snow", {"preferences/likes snow": False}),
        ("Call me tomorrow", {}),
        ("Call me Ada.", {"profile/name": "Ada"}),
        ("call me Ada tomorrow", {}),
        ("My birthday is 3 May. I live in Lisbon.", {"profile/birthday": "3 May", "profile/home": "Lisbon"}),
        ("I live in Lisbon and I work at Nord", {"profile/home": "Lisbon", "profile/employer": "Nord"}),
        ("  I live in Lisbon", {"profile/home": "Lisbon"}),
    ],
)
def test_phrases_of_a_user_are_facts(text: str, found: dict[str, Any]) -> None:
    assert facts(text) == found


async def test_a_session_is_cut_at_long_pauses_and_only_the_user_states_facts() -> None:
    transcript = [
        turn("my name is Ada", 0),
        turn("my name is Assistant", 1, role="assistant", minutes=1),
        turn("book a table", 2, minutes=90),
        turn("it is booked for eight", 3, role="assistant", minutes=91),
    ]
    found = await RuleExtractor().extract(transcript)
    assert [(list(one.turns), one.summary) for one in found.episodes] == [
        ([0, 1], "my name is Ada\nmy name is Assistant"),
        ([2, 3], "book a table\nit is booked for eight"),
    ]
    assert [(one.value, list(one.turns)) for one in found.facts] == [("Ada", [0])]
    assert Extraction.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    "document",
    [[], "text", {"episodes": "x"}, {"facts": {"key": "k"}}],
)
def test_an_answer_of_another_form_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInputError, match="invalid extraction"):
        Extraction.from_json(document)


def test_what_cannot_be_stored_is_left_out() -> None:
    good = {"key": "home", "value": "Lisbon", "turns": [0]}
    bad = [{"key": "k"}, {"key": "", "value": 1}, {"key": "a\x00b", "value": 1}, {**good, "turns": ["x"]}, "text", None]
    document = {"episodes": [{}, {"summary": 1}, {"summary": "met"}], "facts": [*bad, good]}
    found = Extraction.from_json(document)
    assert [one.summary for one in found.episodes] == ["met"]
    assert [one.key for one in found.facts] == ["home"]


async def test_a_long_transcript_does_not_hold_the_event_loop() -> None:
    threads: set[int] = set()

    class Text(str):
        __slots__ = ()

        def replace(self, *given: Any) -> str:
            threads.add(threading.get_ident())
            return str.replace(self, *given)

    await RuleExtractor().extract([turn(Text(", " * 10_000))])
    assert threads
    assert threading.get_ident() not in threads
