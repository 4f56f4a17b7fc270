"""Split texts into words, for the index and for queries; PostgreSQL stems them (`memory_term_keys`).

- Scripts written without spaces (Chinese, Japanese, Thai, …; Korean too) become pairs of adjacent characters: a
  word is found inside a sentence, and a whole sentence is not one token.
- An identifier (`ORD-4711`, `user_id`, `api.v2`, `a@b.example`) is a word in addition to its parts.
- Case, width and accents are ignored.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs of Arabic and Indic scripts are parts of a word, although Unicode does not class them as letters.
_LETTER = rf"(?:[^\W{_UNSPACED}]|[\u064b-\u065f\u0900-\u0dff])"
_COMPOUND = re.compile(rf"{_LETTER}+(?:[-.:/@#+']+{_LETTER}+)*[#+]*|[{_UNSPACED}]+")
_PART = re.compile(r"(?:[^\W_]|[\u064b-\u065f\u0900-\u0dff])+")
_RUN_OF_UNSPACED = re.compile(f"[{_UNSPACED}]+")
_SPELLED = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_POSSESSIVE = re.compile(r"['\u2019](?:s|d|m|ll|re|ve|t)$")
_LONGEST = 200
_INDEXED = 100_000
"""Characters of a text that are indexed, before and after normalising, which may replace one character by many."""
_AT_ONCE = 2000
"""Characters that take at most a few milliseconds to split; longer texts are split in a thread."""


def split_words(text: str) -> list[str]:
    """Return the words of a text in order, lower-case, with repetitions."""
    words: list[str] = []
    for found in _COMPOUND.finditer(_normalise(text)):
        token = found[0][:_LONGEST]
        if _RUN_OF_UNSPACED.match(token):
            words += [token[place : place + 2] for place in range(len(token) - 1)] or [token]
        else:
            words += _with_parts(_POSSESSIVE.sub("", token))
    return words


def spelled_words(text: str) -> list[str]:
    """Return the words of a text in order, as they are spelled."""
    return _SPELLED.findall(text)


async def off_loop(length: int, work: Callable[[], Result]) -> Result:
    """Call `work`, in a thread if the texts that it processes are long."""
    return work() if length <= _AT_ONCE else await asyncio.to_thread(work)


def join_words(words: list[str]) -> str:
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
        and (any(character.isdigit() for character in token) or "_" in token or _PART.findall(token) != [token])
        and len(token) > 2
    ]
