"""Build the context of a prompt: working memory, recalled memories and recent turns that fit into a budget of tokens.

The order does not depend on scores: working memory by name, memories by time, turns by sequence. Two calls that choose
the same items give the same text, and what changes most often stands last, so that a model server can reuse its prompt
cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cognizes.engine.database import Database
from cognizes.engine.database.documents import canonical_json, unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.records import Hit
from cognizes.engine.memory.snapshot import MemorySnapshots
from cognizes.engine.memory.words import find_duplicates
from cognizes.engine.models import JsonObject, Session
from cognizes.engine.pulse.sessions import Sessions

_SECTIONS = ("working memory", "memories", "recent turns")
_WORKING_SHARE = 0.25
_RECENT_SHARE = 0.4
"""Share of the budget that recent turns get before memories; they also get what memories leave."""
_SIMILARITY = 0.9
_MAX_BUDGET = 10_000_000
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_SPACES = re.compile(r"\s+")

CountTokens = Callable[[str], int]


def estimate_tokens(text: str) -> int:
    """Return an estimate of the tokens of a text: four characters each, one for each character without spaces.

    Common tokenizers need fewer tokens for English. Give the tokenizer of the model to count exactly.
    """
    dense = len(_UNSPACED.findall(text))
    return dense + -(-(len(text) - dense) // 4)


@dataclass(frozen=True)
class ContextItem:
    """A part of a context. `citation` names it in the text and does not change between calls."""

    section: str
    citation: str
    text: str
    created_at: datetime | None = None
    memory_id: str | None = None
    kind: str | None = None
    visibility: str | None = None
    session_id: str | None = None
    event_id: str | None = None
    score: float | None = None

    @property
    def line(self) -> str:
        return f"[{self.citation}] {self.text}"

    def to_json(self) -> JsonObject:
        return vars(self) | {"created_at": self.created_at.isoformat() if self.created_at else None}


@dataclass(frozen=True)
class MemoryContext:
    """The text of a context, its items in the order of the text, and the number of items that did not fit."""

    text: str
    items: list[ContextItem]
    tokens: int
    left_out: int

    def to_json(self) -> JsonObject:
        return {
            "text": self.text,
            "items": [item.to_json() for item in self.items],
            "tokens": self.tokens,
            "left_out": self.left_out,
        }


class ContextSources:
    """Reads the parts of a context that belong to a session."""

    def __init__(self, database: Database, sessions: Sessions, snapshots: MemorySnapshots) -> None:
        self._database = database
        self._sessions = sessions
        self._snapshots = snapshots

    async def working(self, session: Session, *, agent_id: str | None) -> list[ContextItem]:
        """Return the scratchpad and the variables of a session, by name."""
        taken = await self._snapshots.take(session, agent_id=agent_id, messages=1, episodes=0)
        memory = taken.working_memory
        named: list[tuple[str, Any]] = [("scratchpad", memory.scratchpad)] if memory.scratchpad else []
        named += [(f"state:{name}", memory.variables[name]) for name in sorted(memory.variables)]
        return [ContextItem(_SECTIONS[0], name, _readable(value), session_id=session.id) for name, value in named]

    async def recent(self, session: Session, *, limit: int) -> list[ContextItem]:
        """Return the newest messages of a session, newest first."""
        thread_id = await self._sessions.store.find_thread(session)
        rows = await self._database.fetch("read_recent_turns", thread_id, limit)
        return [
            ContextItem(
                _SECTIONS[2],
                f"t{row['sequence_num']}",
                f"{row['role']}: {unescape_text(row['content'])}",
                created_at=row["created_at"],
                session_id=session.id,
                event_id=row["event_id"],
            )
            for row in rows
        ]


def recalled_items(hits: Sequence[Hit]) -> list[ContextItem]:
    """Return recalled memories as items, best first."""
    return [
        ContextItem(
            _SECTIONS[1],
            f"m{hit.memory.id}",
            f"{hit.memory.author}: {hit.text}" if hit.memory.author else hit.text,
            created_at=hit.memory.created_at,
            memory_id=hit.memory.id,
            kind=hit.memory.kind,
            visibility=hit.memory.visibility,
            session_id=hit.memory.session_id,
            event_id=hit.memory.source_id if hit.memory.kind == "turn" else None,
            score=hit.score,
        )
        for hit in hits
    ]


def check_budget(budget_tokens: int) -> None:
    if not 1 <= budget_tokens <= _MAX_BUDGET:
        raise InvalidInputError(f"invalid budget_tokens {budget_tokens}; it must be between 1 and {_MAX_BUDGET}")


def build_context(
    working: Sequence[ContextItem],
    recalled: Sequence[ContextItem],
    recent: Sequence[ContextItem],
    *,
    budget_tokens: int,
    count_tokens: CountTokens = estimate_tokens,
) -> MemoryContext:
    """Choose what fits into the budget. `recalled` comes best first, `recent` newest first.

    Working memory may take a quarter of the budget and recent turns 40 %; memories take what is left, best first, and
    older turns the rest. The newest turn is truncated if it alone is too long. A memory that repeats a recent turn or
    another memory is left out.
    """
    check_budget(budget_tokens)
    newest = [_truncate(recent[0], budget_tokens, count_tokens), *recent[1:]] if recent else []
    unique = _without_repetitions(recalled, newest)
    chosen: list[ContextItem] = []
    used = 0

    def take(items: Sequence[ContextItem], limit: float) -> None:
        nonlocal used
        for item in items:
            cost = count_tokens(f"{item.line}\n")
            if item not in chosen and used + cost <= limit:
                chosen.append(item)
                used += cost

    headings = sum(count_tokens(f"\n## {name}\n") for name in _SECTIONS)
    room = max(budget_tokens - headings, 0)
    take(newest[:1], room)
    take(working, max(_WORKING_SHARE * room, 0) + used)
    take(_from_start(newest, _RECENT_SHARE * room, count_tokens), room)
    take(unique, room)
    take(_from_start(newest, room, count_tokens), room)
    # A tokenizer may need more tokens for the whole than for its parts.
    while chosen and count_tokens(_render(chosen)) > budget_tokens:
        chosen.pop()
    text = _render(chosen)
    left_out = len(working) + len(unique) + len(newest) - len(chosen)
    return MemoryContext(text, _ordered(chosen), count_tokens(text) if text else 0, left_out)


def _from_start(items: Sequence[ContextItem], limit: float, count_tokens: CountTokens) -> list[ContextItem]:
    """Return the first items that fit into a limit, without a gap: turns in between are not left out."""
    found, used = [], 0
    for item in items:
        used += count_tokens(f"{item.line}\n")
        if used > limit:
            break
        found.append(item)
    return found


def _truncate(item: ContextItem, budget_tokens: int, count_tokens: CountTokens) -> ContextItem:
    limit = max(int(_RECENT_SHARE * budget_tokens), 1)
    text = item.text
    while count_tokens(text) > limit and len(text) > 1:
        text = text[: max(len(text) * limit // max(count_tokens(text), 1), 1)].rstrip() if len(text) > 8 else ""
    return item if text == item.text else replace(item, text=f"{text}\u2026")


def _without_repetitions(recalled: Sequence[ContextItem], recent: Sequence[ContextItem]) -> list[ContextItem]:
    known = {(item.session_id, item.event_id) for item in recent}
    others = [item for item in recalled if item.event_id is None or (item.session_id, item.event_id) not in known]
    texts = [_said(item) for item in (*recent, *others)]
    repeated = find_duplicates(texts, _SIMILARITY)
    return [item for place, item in enumerate(others, len(recent)) if place not in repeated]


def _said(item: ContextItem) -> str:
    """Return the text without the name in front of it, which is a role in one section and an author in the other."""
    return item.text.partition(": ")[2] or item.text


def _ordered(items: Sequence[ContextItem]) -> list[ContextItem]:
    def place(item: ContextItem) -> tuple[int, str, float, int]:
        number = int(item.citation[1:]) if item.section != _SECTIONS[0] else 0
        moment = item.created_at.timestamp() if item.created_at and item.section == _SECTIONS[1] else 0.0
        name = item.citation if item.section == _SECTIONS[0] else ""
        return _SECTIONS.index(item.section), name, moment, number

    return sorted(items, key=place)


def _render(items: Sequence[ContextItem]) -> str:
    parts = []
    ordered = _ordered(items)
    for section in _SECTIONS:
        lines = [item.line for item in ordered if item.section == section]
        if lines:
            parts.append(f"## {section}\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _readable(value: Any) -> str:
    return _SPACES.sub(" ", value).strip() if isinstance(value, str) else canonical_json(value)
