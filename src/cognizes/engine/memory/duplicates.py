"""Find texts that say the same: equal ones, and near ones that differ in a few words.

Two texts are near duplicates if the Jaccard index of their sets of words reaches a threshold, and if none of the words
in which they differ changes the statement: a number, an identifier or a negation. No model is needed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from cognizes.engine.memory.words import split_words

_NEGATIONS = frozenset(
    {"no", "not", "never", "none", "nothing", "nor", "without", "nicht", "kein", "keine", "ohne", "pas", "sans", "sin"}
)


def find_duplicates(texts: Sequence[str], similarity: float) -> dict[int, int]:
    """Return the place of each duplicate and the place of the earlier text that it repeats.

    The earlier text is itself no duplicate. The search is exact: two sets whose Jaccard index reaches the threshold
    share one of their rarest words, so that only texts with such a common word are compared.
    """
    sets = [frozenset(split_words(text)) for text in texts]
    frequency = Counter(word for words in sets for word in words)
    found: dict[int, int] = {}
    equal: dict[str, int] = {}
    by_word: dict[str, list[int]] = defaultdict(list)
    for place, words in enumerate(sets):
        text = " ".join(texts[place].casefold().split())
        if text in equal:
            found[place] = equal[text]
            continue
        prefix = _rarest(words, frequency, similarity)
        original = _first_near(place, words, {other for word in prefix for other in by_word[word]}, sets, similarity)
        if original is not None:
            found[place] = original
            continue
        equal[text] = place
        for word in prefix:
            by_word[word].append(place)
    return found


def _rarest(words: frozenset[str], frequency: Counter[str], similarity: float) -> list[str]:
    count = len(words) - math.ceil(similarity * len(words)) + 1
    return sorted(words, key=lambda word: (frequency[word], word))[:count]


def _first_near(
    place: int, words: frozenset[str], others: Iterable[int], sets: Sequence[frozenset[str]], similarity: float
) -> int | None:
    for other in sorted(others):
        if other != place and _are_near(words, sets[other], similarity):
            return other
    return None


def _are_near(first: frozenset[str], second: frozenset[str], similarity: float) -> bool:
    common = len(first & second)
    if common < similarity * (len(first) + len(second) - common):
        return False
    return not any(_changes_meaning(word) for word in first ^ second)


def _changes_meaning(word: str) -> bool:
    return word in _NEGATIONS or word.endswith("n't") or any(character.isdigit() for character in word)
