"""Words of texts: split them for the index and for queries, and find texts that say the same.

PostgreSQL stems the words (`memory_term_keys`).

- Scripts written without spaces (Chinese, Japanese, Thai, …; Korean too) become pairs of adjacent characters: a
  word is found inside a sentence, and a whole sentence is not one token.
- An identifier (`ORD-4711`, `user_id`, `api.v2`, `a@b.example`) is a word in addition to its parts.
- Case, width and accents are ignored.
"""

from __future__ import annotations

import asyncio
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs of Arabic and Indic scripts are parts of a word, although Unicode does not class them as letters.
_LETTER = rf"(?:[^\W{UNSPACED}]|[\u064b-\u065f\u0900-\u0dff])"
_COMPOUND = re.compile(rf"{_LETTER}+(?:[-.:/@#+']+{_LETTER}+)*[#+]*|[{UNSPACED}]+")
_PART = re.compile(r"(?:[^\W_]|[\u064b-\u065f\u0900-\u0dff])+")
_RUN_OF_UNSPACED = re.compile(f"[{UNSPACED}]+")
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_SPELLED = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_POSSESSIVE = re.compile(r"['\u2019](?:s|d|m|ll|re|ve|t)$")
_LONGEST = 200
_INDEXED = 100_000
"""Characters of a text that are indexed, before and after normalising, which may replace one character by many."""
_AT_ONCE = 2000
"""Characters that take about a millisecond to split; longer texts are split in a thread."""
_SLICE = 16
_BREAK = re.compile("[\\s\u3001\u3002\uff01\uff0c\uff1f]")
"""Ends a word in any script."""


def split_words(text: str, *, for_index: bool = False) -> list[str]:
    """Return the words of a text in order, lower-case, with repetitions.

    The index contains each ideograph, too, because a single one may be the whole word of a query.
    """
    words: list[str] = []
    for found in _COMPOUND.finditer(_normalise(text)):
        token = found[0][:_LONGEST]
        if _RUN_OF_UNSPACED.match(token):
            words += [token[place : place + 2] for place in range(len(token) - 1)] or [token]
            if for_index and len(token) > 1:
                words += _IDEOGRAPH.findall(token)
        else:
            words += _with_parts(_POSSESSIVE.sub("", token))
    return words


def spelled_words(text: str) -> list[str]:
    """Return the words of a text in order, as they are spelled."""
    return _SPELLED.findall(text)


async def off_loop(length: int, work: Callable[[], Result]) -> Result:
    """Call `work`, in a thread if the texts that it processes are long."""
    return work() if length <= _AT_ONCE else await asyncio.to_thread(work)


async def in_slices(
    items: Sequence[Item], work: Callable[[list[Item]], list[Result]], *, size: Callable[[Item], int] | None = None
) -> list[Result]:
    """Call `work` in a thread with a few items at a time; return all results in order.

    A slice has at most 16 items, and at most 2 000 of `size` unless one item is larger. It holds the interpreter for
    about a millisecond, and the event loop serves requests between two slices.
    """
    results: list[Result] = []
    part: list[Item] = []
    total = 0
    for item in items:
        length = size(item) if size is not None else 0
        if part and (len(part) == _SLICE or total + length > _AT_ONCE):
            results += await asyncio.to_thread(work, part)
            part, total = [], 0
        part.append(item)
        total += length
    return results + (await asyncio.to_thread(work, part) if part else [])


async def index_words(texts: Sequence[str]) -> list[str]:
    """Return the words of each text as the argument of the SQL functions. Threads split long texts, in slices."""
    if sum(map(len, texts)) <= _AT_ONCE:
        return [join_words(split_words(text, for_index=True)) for text in texts]
    pieces = [(place, piece) for place, text in enumerate(texts) for piece in _pieces(text[:_INDEXED])]
    words: list[list[str]] = [[] for _ in texts]
    split = await in_slices(
        pieces, lambda part: [split_words(piece, for_index=True) for _, piece in part], size=lambda one: len(one[1])
    )
    for (place, _), found in zip(pieces, split, strict=True):
        words[place].append(join_words(found))
    return [join_words([part for part in parts if part]) for parts in words]


def _pieces(text: str) -> Iterator[str]:
    """Cut a text between words into pieces of about 2 000 characters."""
    start = 0
    while start < len(text):
        end = found.end() if (found := _BREAK.search(text, start + _AT_ONCE - 1)) else len(text)
        yield text[start:end]
        start = end


def join_words(words: Sequence[str]) -> str:
    """Return the argument of the SQL functions. Words contain no spaces."""
    return " ".join(words)


def _normalise(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text[:_INDEXED])[:_INDEXED].casefold().replace("\u2019", "'")
    if plain.isascii():
        return plain
    bare = "".join(character for character in unicodedata.normalize("NFD", plain) if not _is_accent(character))
    # Recompose what is not an accent: Hangul, and the voicing marks of Japanese.
    return unicodedata.normalize("NFC", bare)


def _is_accent(character: str) -> bool:
    return "\u0300" <= character <= "\u036f" or "\ud800" <= character <= "\udfff"


def _with_parts(token: str) -> list[str]:
    parts = _PART.findall(token)
    return parts if parts == [token] else [token, *parts]


def identifiers(text: str) -> list[str]:
    """Return the words of a text that contain a digit or consist of several parts."""
    found = (_POSSESSIVE.sub("", match[0][:_LONGEST]) for match in _COMPOUND.finditer(_normalise(text)))
    return [
        token
        for token in found
        if not _RUN_OF_UNSPACED.match(token)
        and (_has_digit(token) or "_" in token or _PART.findall(token) != [token])
        and len(token) > 2
    ]


_NEGATIONS = frozenset(
    {
        "no",
        "not",
        "never",
        "none",
        "nothing",
        "nor",
        "without",
        "cannot",
        "nicht",
        "kein",
        "keine",
        "ohne",
        "pas",
        "sans",
        "sin",
    }
)
_NEGATING = re.compile(
    "\\b\\w+n't\\b|[\u4e0d\u6ca1\u7121\u65e0\u975e\u672a\u52ff\u522b]|\u306a\u3044|\u307e\u305b\u3093|\uc54a"
)
"""Contractions, and negations in Chinese, Japanese and Korean.

The leading boundary keeps the search linear: a run of characters without a break is scanned once, not at every place.
"""
_NAME = re.compile(r"(?<=[^\W\d_][,;:)'\" ])[ '\"(]*([^\W\d_]\w*)")
"""A word that does not begin a sentence."""


@dataclass(frozen=True)
class _Statement:
    """A text to compare: its words in order, and what must be equal in two texts that say the same."""

    sequence: list[str]
    words: frozenset[str]
    negations: frozenset[tuple[str, int]]
    particulars: frozenset[str]

    @classmethod
    def of(cls, text: str) -> _Statement:
        sequence = split_words(text)
        words = frozenset(sequence)
        negating = Counter(_NEGATING.findall(text[:_INDEXED].casefold().replace("\u2019", "'")))
        negations = frozenset(negating.items()) | {(word, 1) for word in words & _NEGATIONS}
        names = {name.casefold() for name in _NAME.findall(text[:_INDEXED]) if name[0].isupper()}
        return cls(sequence, words, negations, frozenset(names) | {word for word in words if _has_digit(word)})


def find_duplicates(texts: Sequence[str], similarity: float) -> dict[int, int]:
    """Return the place of each duplicate and the place of the earlier text that it repeats.

    A duplicate has the same words in the same order, or nearly so: the Jaccard index of both sets of words reaches
    `similarity`, the common words have one order, and no number, identifier, negation, or name inside a sentence is
    among the words in which they differ.

    The earlier text is itself no duplicate. The search is exact: two sets of given sizes whose Jaccard index reaches
    the threshold share one of their few rarest words, so that only texts with such a common word, and equal numbers
    and negations, are compared. Texts that differ in one word of a template are not.
    """
    statements = [_Statement.of(text) for text in texts]
    frequency = Counter(word for statement in statements for word in statement.words)
    found: dict[int, int] = {}
    equal: dict[Hashable, int] = {}
    originals: dict[Hashable, RarestWords] = defaultdict(lambda: RarestWords(similarity))
    for place, one in enumerate(statements):
        # A text of signs alone has no words.
        text = (*one.sequence, one.negations) if one.sequence else " ".join(texts[place].casefold().split())
        if text in equal:
            found[place] = equal[text]
            continue
        words = sorted(one.words, key=lambda word: (frequency[word], word))
        comparable = originals[one.negations, one.particulars]
        others = sorted(comparable.find(words))
        original = next((other for other in others if _are_near(one, statements[other], similarity)), None)
        if original is not None:
            found[place] = original
            continue
        equal[text] = place
        comparable.add(place, words)
    return found


class RarestWords:
    """Finds sets of words by a common word among their rarest, for a threshold of the Jaccard index.

    Two sets of m and n words that reach the threshold t have at least c = t / (1 + t) * (m + n) words in common, so one
    of the m - c + 1 rarest words of the first is one of the n - c + 1 rarest words of the second.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._sizes: set[int] = set()

    def add(self, place: int, words: Sequence[str]) -> None:
        """Add a set of words, rarest first."""
        size = len(words)
        self._sizes.add(size)
        for rank, word in enumerate(words[: size - _at_least(self._threshold * size) + 1]):
            self._found[word, size].append((rank, place))

    def find(self, words: Sequence[str]) -> set[int]:
        """Return the places of the sets that may reach the threshold with this one."""
        found: set[int] = set()
        own = len(words)
        for size in self._sizes:
            if min(own, size) < self._threshold * max(own, size):
                continue
            common = _at_least(self._threshold / (1 + self._threshold) * (own + size))
            for word in words[: own - common + 1]:
                found.update(place for rank, place in self._found.get((word, size), ()) if rank <= size - common)
        return found


def _at_least(number: float) -> int:
    # Not one more because of the rounding of a float.
    return math.ceil(number - 1e-9)


def _are_near(first: _Statement, second: _Statement, similarity: float) -> bool:
    common = first.words & second.words
    if len(common) < similarity * (len(first.words) + len(second.words) - len(common)):
        return False
    return [word for word in first.sequence if word in common] == [word for word in second.sequence if word in common]


def _has_digit(word: str) -> bool:
    return any(character.isdigit() for character in word)
