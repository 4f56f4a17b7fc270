"""Texts that say the same, without a database."""

from __future__ import annotations

import random

import pytest

from cognizes.engine.memory.words import RarestWords, find_duplicates, split_words

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


_FILLER = "while the others waited in the long hall of the old station and talked about nothing at all that evening"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("you can park in the yard", "you can't park in the yard"),
        ("you can park in the yard", "you cannot park in the yard"),
        (LONG, LONG.replace("was", "wasn\u2019t")),
        ("Bob paid Ada", "Ada paid Bob"),
        (f"then Bob paid Ada {_FILLER}", f"then Ada paid Bob {_FILLER} long"),
        (f"yesterday Alice left {_FILLER}", f"yesterday Bob left {_FILLER}"),
        (
            "我们明天下午三点在公司门口的咖啡馆见面然后一起去参加新产品的发布会议你要准时来",
            "我们明天下午三点在公司门口的咖啡馆见面然后一起去参加新产品的发布会议你要不准时来",
        ),
        ("明日は会社に行きます", "明日は会社に行きません"),
    ],
)
def test_texts_that_say_something_else_are_no_duplicates(first: str, second: str) -> None:
    assert find_duplicates([first, second], 0.8) == {}


def test_a_duplicate_is_never_the_original_of_another() -> None:
    texts = [LONG, LONG + " yesterday", LONG + " yesterday evening"]
    found = find_duplicates(texts, 0.85)
    assert not set(found) & set(found.values())


def test_texts_of_one_template_are_not_compared_with_each_other() -> None:
    template = ["today", "the", "customer", "asked", "in", "our", "shop", "about", "price", "of"]
    originals = RarestWords(0.9)
    for number in range(1000):
        words = [f"thing{number}", *template]
        assert originals.find(words) == set()
        originals.add(number, words)
    assert originals.find(["thing7", *template]) == {7}
    assert originals.find(["thing7", "blue", *template]) == {7}


@pytest.mark.parametrize("seed", range(10))
def test_the_search_misses_no_pair(seed: int) -> None:
    dice = random.Random(seed)
    words = [f"w{'abcdefghij'[n]}" for n in range(10)]
    texts = [" ".join(sorted(dice.sample(words, dice.randint(3, 8)))) for _ in range(60)]
    found = find_duplicates(texts, 0.6)
    originals = [place for place in range(len(texts)) if place not in found]
    for place, second in enumerate(originals):
        for first in originals[:place]:
            one, two = set(split_words(texts[first])), set(split_words(texts[second]))
            assert len(one & two) / len(one | two) < 0.6


@pytest.mark.timeout(30)
@pytest.mark.parametrize("character", ["中", "x", "'", "n't", " Ab,"])
def test_texts_without_a_break_are_compared_in_linear_time(character: str) -> None:
    # A search that starts again at each character takes minutes.
    text = character * (100_000 // len(character))
    assert find_duplicates([text] * 8, 0.8) == dict.fromkeys(range(1, 8), 0)
