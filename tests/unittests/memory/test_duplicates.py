"""Texts that say the same, without a database."""

from __future__ import annotations

import random

import pytest

from cognizes.engine.memory.words import find_duplicates, split_words

LONG = "the espresso machine in the kitchen of the second floor was repaired by the technician of the Nord company"


def test_equal_texts_repeat_the_first_one() -> None:
    assert find_duplicates(["Green  tea", "green tea", "black tea", "GREEN TEA "], 1.0) == {1: 0, 3: 0}


def test_near_texts_repeat_the_first_one() -> None:
    assert find_duplicates([LONG, LONG.replace("technician", "mechanic"), "something else"], 0.8) == {1: 0}


@pytest.mark.parametrize(
    "other", [LONG.replace("was repaired", "was not repaired"), LONG + " for 80 euros", LONG.replace("Nord", "Nord2")]
)
def test_a_number_an_identifier_or_a_negation_makes_another_statement(other: str) -> None:
    assert find_duplicates([LONG, other], 0.8) == {}


def test_a_duplicate_is_never_the_original_of_another() -> None:
    texts = [LONG, LONG + " yesterday", LONG + " yesterday evening"]
    found = find_duplicates(texts, 0.85)
    assert not set(found) & set(found.values())


def test_the_search_misses_no_pair() -> None:
    dice = random.Random(3)
    words = [f"w{'abcdefghij'[n]}" for n in range(10)]
    texts = [" ".join(dice.sample(words, dice.randint(3, 8))) for _ in range(60)]
    found = find_duplicates(texts, 0.6)
    originals = [place for place in range(len(texts)) if place not in found]
    for place, second in enumerate(originals):
        for first in originals[:place]:
            one, two = set(split_words(texts[first])), set(split_words(texts[second]))
            assert len(one & two) / len(one | two) < 0.6
