"""What a session leaves in memory: episodes and facts, found by an extractor in its messages.

`RuleExtractor` needs no model: it cuts a session at long pauses and takes what a user says about herself in a few fixed
phrases. `language_models` has extractors that ask a model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject

_PAUSE = timedelta(minutes=30)
_TURNS_OF_EPISODE = 40
_SUMMARY_LENGTH = 400
_MAX_VALUE = 120
_MAX_SENTENCES = 2000


@dataclass(frozen=True)
class TranscriptTurn:
    """A message of a session; `number` counts from 0 in its transcript."""

    number: int
    event_id: str
    role: str
    author: str | None
    text: str
    created_at: datetime


@dataclass(frozen=True)
class EpisodeDraft:
    """An episode that an extractor found, and the numbers of its turns."""

    summary: str
    turns: Sequence[int] = ()


@dataclass(frozen=True)
class FactDraft:
    """A fact that an extractor found, and the numbers of the turns that say so. Recall searches `text`."""

    namespace: str
    key: str
    value: Any
    turns: Sequence[int] = ()
    text: str | None = None


@dataclass(frozen=True)
class Extraction:
    """What an extractor found in a transcript."""

    episodes: Sequence[EpisodeDraft] = field(default_factory=list)
    facts: Sequence[FactDraft] = field(default_factory=list)

    def to_json(self) -> JsonObject:
        return {
            "episodes": [{"summary": one.summary, "turns": list(one.turns)} for one in self.episodes],
            "facts": [
                {
                    "namespace": one.namespace,
                    "key": one.key,
                    "value": one.value,
                    "turns": list(one.turns),
                    "text": one.text,
                }
                for one in self.facts
            ],
        }

    @classmethod
    def from_json(cls, document: Any) -> Extraction:
        """Read the answer of a model or the result of a step. Raise `InvalidInputError` if its form is another."""
        try:
            return cls(
                [EpisodeDraft(_text(one["summary"]), _numbers(one)) for one in document.get("episodes") or []],
                [
                    FactDraft(
                        _text(one.get("namespace") or ""),
                        _text(one["key"]),
                        one["value"],
                        _numbers(one),
                        None if one.get("text") is None else _text(one["text"]),
                    )
                    for one in document.get("facts") or []
                ],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"invalid extraction: {type(error).__name__}: {error}") from error


class Extractor(Protocol):
    """Turns a transcript into episodes and facts."""

    async def extract(self, transcript: Sequence[TranscriptTurn]) -> Extraction: ...


_PERSONAL = r"e-?mail(?: address)?|phone(?: number)?|birthday|address|time ?zone|language|age"
_RULES: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(rf"(?:^|[.!?,;]\s*|\band\s+|\bbut\s+|\bhi\s+|\bhello\s+)\s*{pattern}", re.IGNORECASE), namespace, key)
    for pattern, namespace, key in (
        (r"(?:my name is|i am called|i'm called|call me)\s+(?P<value>[^.!?;,\n]{1,60})", "profile", "name"),
        (r"i (?:now )?live in\s+(?P<value>[^.!?;,\n]{1,80})", "profile", "home"),
        (r"i (?:have )?moved to\s+(?P<value>[^.!?;,\n]{1,80})", "profile", "home"),
        (r"i (?:now )?work (?:at|for)\s+(?P<value>[^.!?;,\n]{1,80})", "profile", "employer"),
        (r"i work as (?:an? )?(?P<value>[^.!?;,\n]{1,80})", "profile", "occupation"),
        (rf"my (?P<name>{_PERSONAL}) is\s+(?P<value>[^!?;\n]{{1,120}})", "profile", "{name}"),
        (r"my favou?rite (?P<name>[\w -]{1,40}?) is\s+(?P<value>[^.!?;,\n]{1,80})", "preferences", "favourite {name}"),
        (r"i prefer\s+(?P<value>[^.!?;\n]{1,100})", "preferences", "prefers {value}"),
        (r"i (?:really )?(?:like|love|enjoy)\s+(?P<value>[^.!?;,\n]{1,80})", "preferences", "likes {value}"),
        (r"i (?:do not|don't|dislike|hate)(?: like)?\s+(?P<value>[^.!?;,\n]{1,80})", "preferences", "dislikes {value}"),
        (r"i(?: am|'m) allergic to\s+(?P<value>[^.!?;,\n]{1,80})", "health", "allergy to {value}"),
        (r"(?:please )?remember(?: that)?\s+(?P<value>[^.!?;\n]{5,120})", "notes", "{value}"),
    )
)
_SPACES = re.compile(r"\s+")


class RuleExtractor:
    """Extracts without a model: fixed phrases of the user become facts, parts between long pauses become episodes.

    "I like tea" and "I don't like tea" are values of one key, so the later one supersedes the earlier one.
    """

    def __init__(self, *, pause: timedelta = _PAUSE, turns_of_episode: int = _TURNS_OF_EPISODE) -> None:
        self._pause = pause
        self._turns_of_episode = turns_of_episode

    async def extract(self, transcript: Sequence[TranscriptTurn]) -> Extraction:
        facts = [fact for turn in transcript if turn.role == "user" for fact in find_facts(turn)]
        return Extraction([_episode(part) for part in self._parts(transcript)], facts)

    def _parts(self, transcript: Sequence[TranscriptTurn]) -> list[list[TranscriptTurn]]:
        parts: list[list[TranscriptTurn]] = []
        for turn in transcript:
            last = parts[-1] if parts else []
            if not last or len(last) >= self._turns_of_episode or turn.created_at - last[-1].created_at > self._pause:
                parts.append([turn])
            else:
                last.append(turn)
        return parts


def find_facts(turn: TranscriptTurn) -> list[FactDraft]:
    """Return the facts that fixed phrases of a message state."""
    text = turn.text.replace("\u2019", "'")[: _MAX_SENTENCES * 10]
    found: dict[tuple[str, str], FactDraft] = {}
    for rule, namespace, key in _RULES:
        for match in rule.finditer(text):
            value = _SPACES.sub(" ", match["value"]).strip(" .,'\"")[:_MAX_VALUE]
            if not value:
                continue
            name = _SPACES.sub(" ", match.groupdict().get("name") or "").casefold()
            # Both are values of one key, so that the later statement supersedes the earlier one.
            is_dislike = key == "dislikes {value}"
            pattern = "likes {value}" if is_dislike else key
            stated = False if is_dislike else True if "{value}" in pattern else value
            full_key = pattern.format(value=value.casefold(), name=name)
            statement = match[0].lstrip(" .!?,;")
            found[namespace, full_key] = FactDraft(namespace, full_key, stated, [turn.number], statement)
    return list(found.values())


def _episode(part: Sequence[TranscriptTurn]) -> EpisodeDraft:
    said = [turn for turn in part if turn.role == "user"]
    answers = [turn for turn in part if turn.role != "user"]
    lines = [_shorten(said[0].text)] if said else []
    if len(said) > 1:
        lines.append(_shorten(said[-1].text))
    if answers:
        lines.append(_shorten(answers[-1].text))
    return EpisodeDraft("\n".join(dict.fromkeys(lines)), [turn.number for turn in part])


def _shorten(text: str) -> str:
    line = _SPACES.sub(" ", text[: 4 * _SUMMARY_LENGTH]).strip()
    return line if len(line) <= _SUMMARY_LENGTH else line[: _SUMMARY_LENGTH - 1].rstrip() + "\u2026"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _numbers(document: Any) -> list[int]:
    return [int(number) for number in document.get("turns") or []]
