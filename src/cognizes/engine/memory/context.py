"""Build the context of a prompt: working memory, recalled memories and recent turns that fit into a budget of tokens.

The order does not depend on scores: working memory by name, memories by time, turns by sequence. Two calls that choose
the same items give the same text, so that a model server can reuse its prompt cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from cognizes.engine.database import Database
from cognizes.engine.database.documents import canonical_json, load_jsonb, unescape_text
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.memory.records import Hit, MemoryScope
from cognizes.engine.memory.words import UNSPACED, find_duplicates
from cognizes.engine.models import JsonObject, Session
from cognizes.engine.pulse.sessions import Sessions

_SECTIONS = ("working memory", "memories", "recent turns")
_WORKING_SHARE = 0.25
_RECENT_SHARE = 0.4
"""Share of the budget that recent turns get before memories; they also get what memories leave."""
_SIMILARITY = 0.9
_MAX_BUDGET = 10_000_000
_DENSE = re.compile(f"[{UNSPACED}]")
_CHARACTERS_PER_TOKEN = 8
"""A text with more characters per token of the budget does not fit in any case."""
_SPACES = re.compile(r"\s+")

CountTokens = Callable[[str], int]


def estimate_tokens(text: str) -> int:
    """Return an estimate of the tokens of a text: one for four bytes of UTF-8, and for each character without spaces.

    Common tokenizers need fewer tokens. Give the tokenizer of the model to count exactly.
    """
    spaced = _DENSE.sub("", text)
    return len(text) - len(spaced) + -(-len(spaced.encode(errors="replace")) // 4)


@dataclass(frozen=True)
class ContextItem:
    """A part of a context. `citation` names it in the text and does not change between calls.

    `said` is the text without the author or role in front of it, to compare items; None if there is none.
    """

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
    said: str | None = field(default=None, repr=False)

    @property
    def line(self) -> str:
        """The item in the text. Its further lines are indented, so that they cannot look like other items."""
        return f"[{self.citation}] " + "\n  ".join(self.text.splitlines())

    def to_json(self) -> JsonObject:
        found = vars(self) | {"created_at": self.created_at.isoformat() if self.created_at else None}
        del found["said"]
        return found


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

    def __init__(self, database: Database, sessions: Sessions) -> None:
        self._database = database
        self._sessions = sessions

    async def working(self, session: Session, *, agent_id: str | None) -> list[ContextItem]:
        """Return the scratchpad and the variables of a session, by name."""
        thread_id = await self._sessions.store.find_thread(session)
        agent = MemoryScope.of(session, agent_id).agent_id
        row = await self._database.fetch_row("read_context_state", thread_id, agent)
        if row is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        state, scratchpad = load_jsonb(row["state"]), load_jsonb(row["scratchpad"] or '""')
        named: list[tuple[str, Any]] = [("scratchpad", scratchpad)] if scratchpad else []
        named += [(f"state:{name}", state[name]) for name in sorted(state)]
        return [ContextItem(_SECTIONS[0], name, _readable(value), session_id=session.id) for name, value in named]

    async def recent(self, session: Session, *, limit: int, budget_tokens: int) -> list[ContextItem]:
        """Return the newest messages of a session that may fit into a budget, newest first."""
        thread_id = await self._sessions.store.find_thread(session)
        characters = _CHARACTERS_PER_TOKEN * budget_tokens
        rows = await self._database.fetch("read_recent_turns", thread_id, limit, characters)
        return [
            ContextItem(
                _SECTIONS[2],
                f"t{row['sequence_num']}",
                f"{row['role']}: {unescape_text(row['content'])}",
                created_at=row["created_at"],
                session_id=session.id,
                event_id=row["event_id"],
                said=unescape_text(row["content"]),
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
            said=hit.text,
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
    older turns the rest. The newest turn is truncated if it alone is too long. A memory that repeats a turn in the
    context or another memory is left out, as is an older turn that a memory in the context repeats.
    """
    check_budget(budget_tokens)
    newest = [_truncate(recent[0], budget_tokens, count_tokens), *recent[1:]] if recent else []
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
    unique = _without_repetitions(recalled, [item for item in chosen if item.section == _SECTIONS[2]])
    take(unique, room)
    memories = [item for item in chosen if item.section == _SECTIONS[1]]
    turns = [item for item in newest if item in chosen or not _is_repeated(item, memories)]
    take(_from_start(turns, room, count_tokens), room)
    # A tokenizer may need more tokens for the whole than for its parts.
    while chosen and count_tokens(_render(chosen)) > budget_tokens:
        chosen.pop()
    text = _render(chosen)
    left_out = len(working) + len(unique) + len(turns) - len(chosen)
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
    while (tokens := count_tokens(replace(item, text=text).line)) > limit and len(text) > 1:
        text = text[: max(len(text) * limit // max(tokens, 1), 1)].rstrip() if len(text) > 8 else ""
    return item if text == item.text else replace(item, text=f"{text}\u2026")


def _without_repetitions(recalled: Sequence[ContextItem], turns: Sequence[ContextItem]) -> list[ContextItem]:
    others = [item for item in recalled if not any(_is_of_event(item, turn) for turn in turns)]
    repeated = find_duplicates([_said(item) for item in (*turns, *others)], _SIMILARITY)
    return [item for place, item in enumerate(others, len(turns)) if place not in repeated]


def _is_repeated(turn: ContextItem, memories: Sequence[ContextItem]) -> bool:
    return any(_is_of_event(memory, turn) or _said(memory) == _said(turn) for memory in memories)


def _is_of_event(memory: ContextItem, turn: ContextItem) -> bool:
    return memory.event_id is not None and (memory.session_id, memory.event_id) == (turn.session_id, turn.event_id)


def _said(item: ContextItem) -> str:
    return item.text if item.said is None else item.said


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
