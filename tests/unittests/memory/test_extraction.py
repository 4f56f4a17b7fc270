"""The rule-based extractor, and the form of what an extractor returns."""

from __future__ import annotations

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
    [[], "text", {"episodes": [{}]}, {"facts": [{"key": "k"}]}, {"episodes": [{"summary": 1}]}, {"episodes": "x"}],
)
def test_an_answer_of_another_form_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInputError, match="invalid extraction"):
        Extraction.from_json(document)
