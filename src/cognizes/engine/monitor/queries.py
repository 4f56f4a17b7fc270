"""The Monitor's queries: find threads across apps and users, and read events, with large values cut to a preview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import decode_cursor, encode_cursor, escape_text, load_json, unescape_text
from cognizes.engine.errors import NotFoundError
from cognizes.engine.memory.words import join_words, split_words
from cognizes.engine.models import JsonObject, Page, RunStatus, TokenUsage
from cognizes.engine.pulse.events import check_text
from cognizes.engine.pulse.session_store import encode_position, read_position

_LARGE_EVENT = 512 * 1024
_MOST_WORDS = 16
_MOST_CALLS = 300
_USAGE_FIELDS = tuple(field.name for field in fields(TokenUsage))


class ThreadStatus(StrEnum):
    """The status of a thread's active run, else whether its newest run failed."""

    RUNNING = "running"
    WAITING = "waiting"
    PENDING = "pending"
    FAILED = "failed"
    IDLE = "idle"


@dataclass(frozen=True)
class ThreadSummary:
    thread_id: str
    session_id: str
    app_name: str
    user_id: str
    title: str | None
    status: ThreadStatus
    run_id: str | None
    version: int
    last_sequence: int
    first_message: str | None
    last_message: str | None
    last_role: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class MessageExcerpt:
    """A message that contains a text, with the part of it around the text."""

    sequence_num: int
    role: str
    excerpt: str


@dataclass(frozen=True)
class WaitSummary:
    """What a waiting run waits for."""

    kind: str
    correlation_key: str
    reason: str | None
    since: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True)
class RunSummary:
    """A run without its documents, with the user and the title of its thread."""

    id: str
    thread_id: str
    app_name: str
    user_id: str
    title: str | None
    first_message: str | None
    status: RunStatus
    handler: str | None
    error: str | None
    attempt: int
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    wait: WaitSummary | None


@dataclass(frozen=True)
class EventPreviews:
    """Events as JSON, with `cut: true` where a part was left out, and the newest sequence number of the thread."""

    events: list[JsonObject]
    last_sequence: int


@dataclass(frozen=True)
class ModelCall:
    """A call of a model that ended at a moment."""

    usage: TokenUsage
    ended_at: datetime


@dataclass(frozen=True)
class PastWait:
    """A wait of a run; `ended_at` is None while it lasts."""

    kind: str | None
    key: str | None
    reason: str | None
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class AgentStep:
    """A step that an agent announced, such as a node of a graph; `ended_at` is None while it is open."""

    name: str
    started_at: datetime
    ended_at: datetime | None


class MonitorQueries:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_threads(
        self,
        *,
        text: str | None = None,
        app_name: str | None = None,
        user_id: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[ThreadSummary]:
        """Find threads whose title, session, user or app contains `text`, ignoring case, newest activity first.

        A thread with a message that contains all words of `text` is found too, as soon as the message is indexed. The
        id of a thread finds that thread.
        """
        if text and (exact := _as_uuid(text)):
            found = await self.read_threads([exact], app_name=app_name, user_id=user_id)
            if found:
                return Page(items=found, next_cursor=None)
        before, before_id = decode_cursor(cursor, read_position) if cursor else (None, None)
        by_run = status not in (None, ThreadStatus.IDLE)
        rows = await self._database.fetch(
            "find_threads_by_run" if by_run else "find_threads",
            None if app_name is None else check_text("app_name", app_name),
            None if user_id is None else check_text("user_id", user_id),
            _pattern(check_text("q", text)) if text else None,
            before,
            before_id,
            limit + 1,
            status if by_run else status is ThreadStatus.IDLE,
            await self._find_by_words(text, app_name, user_id) if text else [],
        )
        page = rows[:limit]
        items = await self.read_threads([row["id"] for row in page])
        return Page(items=items, next_cursor=encode_position(page[-1]) if len(rows) > limit else None)

    async def _find_by_words(self, text: str, app_name: str | None, user_id: str | None) -> list[UUID]:
        words = join_words(split_words(text)[:_MOST_WORDS])
        rows = await self._database.fetch("find_threads_with_words", app_name, words, user_id) if words else []
        return [row["thread_id"] for row in rows]

    async def read_threads(
        self, thread_ids: Sequence[UUID], *, app_name: str | None = None, user_id: str | None = None
    ) -> list[ThreadSummary]:
        """Return the summaries of these threads, as far as they are of the app and of the user (None: of all)."""
        rows = await self._database.fetch("read_thread_summaries", list(thread_ids)) if thread_ids else []
        found = [_summary(row) for row in rows]
        return [one for one in found if app_name in (None, one.app_name) and user_id in (None, one.user_id)]

    async def find_messages(
        self, thread_id: UUID, text: str, *, before: int | None = None, limit: int = 50
    ) -> tuple[list[MessageExcerpt], bool]:
        """Find messages of a thread that contain `text`, ignoring case, newest first, and whether there are more."""
        text = escape_text(check_text("q", text))
        rows = await self._database.fetch("find_messages_with_text", thread_id, text, _pattern(text), before, limit + 1)
        found = [
            MessageExcerpt(row["sequence_num"], row["role"], unescape_text(row["excerpt"])) for row in rows[:limit]
        ]
        return found, len(rows) > limit

    async def find_runs(
        self,
        *,
        status: Sequence[str] | None = None,
        wait_kind: Sequence[str] | None = None,
        app_name: str | None = None,
        user_id: str | None = None,
        handler: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RunSummary]:
        """Find runs of all threads, newest first.

        `handler` is the beginning of the name of a handler or of a hosted agent.
        """
        after = decode_cursor(cursor, _run_position) if cursor else (None, None, None)
        rows = await self._database.fetch(
            "find_run_summaries",
            None if status is None else list(status),
            None if wait_kind is None else list(wait_kind),
            None if app_name is None else check_text("app_name", app_name),
            None if user_id is None else check_text("user_id", user_id),
            check_text("handler", handler) if handler else None,
            *after,
            limit + 1,
        )
        items = [_run_summary(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return Page(items=items, next_cursor=None)
        last = items[-1]
        return Page(items=items, next_cursor=encode_cursor(last.created_at.isoformat(), last.thread_id, last.id))

    async def read_active_path(self, thread_id: UUID) -> list[tuple[int, int]]:
        """Return the events of the active branch as ranges of sequence numbers, both ends included."""
        rows = await self._database.fetch("read_active_path", thread_id)
        return [(row["first_sequence"], row["last_sequence"]) for row in rows]

    async def list_model_calls(self, thread_id: UUID, run_id: str) -> list[ModelCall]:
        """Return the first calls of models of a run."""
        rows = await self._database.fetch("list_model_calls", thread_id, run_id, _MOST_CALLS)
        return [
            ModelCall(TokenUsage(**{name: row[name] for name in _USAGE_FIELDS}), ended_at=row["created_at"])
            for row in rows
        ]

    async def list_waits(self, thread_id: UUID, run_id: str) -> list[PastWait]:
        """Return the first waits of a run. A wait ends when the status of the run changes again."""
        waits: list[PastWait] = []
        for row in await self._database.fetch("list_status_changes", thread_id, run_id, 2 * _MOST_CALLS):
            if waits and waits[-1].ended_at is None:
                waits[-1] = replace(waits[-1], ended_at=row["created_at"])
            if row["event_type"] == "run_waiting":
                waits.append(PastWait(row["wait_kind"], row["wait_key"], row["reason"], row["created_at"], None))
        return waits

    async def list_agent_steps(self, thread_id: UUID, run_id: str) -> list[AgentStep]:
        """Return the first steps that the agent of a run announced. An end closes the newest open step of its name."""
        steps: list[AgentStep] = []
        for row in await self._database.fetch("list_agent_steps", thread_id, run_id, 2 * _MOST_CALLS):
            name = unescape_text(row["name"] or "")
            if row["event_type"] == "step_start":
                steps.append(AgentStep(name, row["created_at"], None))
                continue
            for place in range(len(steps) - 1, -1, -1):
                if steps[place].name == name and steps[place].ended_at is None:
                    steps[place] = replace(steps[place], ended_at=row["created_at"])
                    break
        return steps

    async def list_apps(self, user_id: str | None = None) -> list[str]:
        """Return the names of all apps, or of those in which a user has threads."""
        return [row["app_name"] for row in await self._database.fetch("list_apps", user_id)]

    async def preview_events(self, thread_id: UUID, *, after: int, limit: int) -> EventPreviews:
        """Return events after a sequence number with large values cut; `NotFoundError` without the thread."""
        largest = self._database.page_bytes // limit
        rows = await self._database.fetch("read_event_previews", thread_id, after, limit, largest, _LARGE_EVENT)
        head = await self._database.fetch_row("read_thread_head", thread_id)
        if head is None:
            raise NotFoundError(f"there is no thread {thread_id}")
        previews = {row["sequence_num"]: _preview_event(row) for row in rows}
        # One at a time: a preview is small, the event is not.
        for row in rows:
            if (row["content"] is None or row["actions"] is None) and row["bytes"] <= _LARGE_EVENT:
                whole = await self._database.fetch_row("read_events_at", thread_id, [row["sequence_num"]])
                if whole is not None:
                    previews[row["sequence_num"]] = _preview_event(whole)
        return EventPreviews(list(previews.values()), head["last_sequence"])


def _summary(row: asyncpg.Record) -> ThreadSummary:
    run_status = row["run_status"]
    is_telling = run_status in ("pending", "running", "waiting", "failed")
    return ThreadSummary(
        thread_id=str(row["id"]),
        session_id=row["session_id"],
        app_name=row["app_name"],
        user_id=row["user_id"],
        title=row["title"],
        status=ThreadStatus(run_status) if is_telling else ThreadStatus.IDLE,
        run_id=row["run_id"],
        version=row["version"],
        last_sequence=row["last_sequence"],
        first_message=unescape_text(row["first_message"]) if row["first_message"] is not None else None,
        last_message=unescape_text(row["last_message"]) if row["last_message"] is not None else None,
        last_role=row["last_role"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _run_summary(row: asyncpg.Record) -> RunSummary:
    status = RunStatus(row["status"])
    wait = None
    if status is RunStatus.WAITING:
        reason = unescape_text(row["wait_reason"]) if row["wait_reason"] is not None else None
        wait = WaitSummary(row["wait_kind"], row["wait_key"], reason, row["waiting_since"], row["wait_expires_at"])
    return RunSummary(
        id=row["id"],
        thread_id=str(row["thread_id"]),
        app_name=row["app_name"],
        user_id=row["user_id"],
        title=row["title"],
        first_message=unescape_text(row["first_message"]) if row["first_message"] is not None else None,
        status=status,
        handler=row["handler"],
        error=unescape_text(row["error"]) if row["error"] is not None else None,
        attempt=row["attempt"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        completed_at=row["completed_at"],
        wait=wait,
    )


def _run_position(created_at: str, thread_id: str, run_id: str) -> tuple[datetime, UUID, str]:
    return datetime.fromisoformat(created_at), UUID(thread_id), check_text("run_id", run_id)


def _preview_event(row: asyncpg.Record) -> JsonObject:
    cutting = Preview(longest_text=_LONGEST_MESSAGE if row["event_type"] in _SPOKEN else _MAX_TEXT)
    content: Any
    if row["content"] is None:
        cutting.has_cut = True
        text = unescape_text(row["text"]) if row["text"] is not None else None
        content = {CUT: "object", "length": row["content_bytes"]} | (
            {"preview": text, "role": row["role"]} if text else {}
        )
    else:
        content = cutting.of(load_json(row["content"]))
    if row["actions"] is None:
        cutting.has_cut = True
        actions: Any = {CUT: "object", "length": row["actions_bytes"]}
    else:
        actions = cutting.of(load_json(row["actions"]))
    return {
        "sequence_num": row["sequence_num"],
        "id": row["id"],
        "run_id": row["run_id"],
        "invocation_id": row["invocation_id"],
        "author": row["author"],
        "event_type": row["event_type"],
        "content": content,
        "actions": actions,
        "version": row["version"],
        "created_at": row["created_at"].isoformat(),
        "cut": cutting.has_cut,
    }


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


CUT = "$cut"
"""The key that marks what was cut: `{"$cut": "text" | "list" | "object", "length": N, "preview": …}`."""
_MAX_TEXT = 2000
_TEXT_PREVIEW = 500
_LONGEST_MESSAGE = 20_000
_SPOKEN = ("user_message", "assistant_message", "system_message", "message", "thought")
_MAX_ITEMS = 200
_BUDGET = 24_000
_MAX_DEPTH = 40


class Preview:
    """Copies values up to a budget of characters. What exceeds it is replaced by its kind and length."""

    def __init__(self, budget: int = _BUDGET, *, longest_text: int = _MAX_TEXT) -> None:
        self._left = budget
        self._longest_text = longest_text
        self.has_cut = False

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the value with every large part replaced by a mark."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list):
            return self._list(value, depth)
        self._left -= 8
        return value

    def _text(self, value: str) -> str | JsonObject:
        if len(value) <= self._longest_text and self._left > 0:
            self._left -= len(value)
            return value
        return self._cut("text", len(value), value[:_TEXT_PREVIEW])

    def _object(self, value: JsonObject, depth: int) -> JsonObject:
        if value and (self._left <= 0 or depth > _MAX_DEPTH):
            return self._cut("object", len(value))
        shown: JsonObject = {}
        for number, (key, item) in enumerate(value.items()):
            if number == _MAX_ITEMS or self._left <= 0:
                return {**shown, CUT: self._cut("object", len(value))[CUT], "length": len(value)}
            self._left -= len(key)
            shown[key[:_MAX_TEXT]] = self.of(item, depth + 1)
        return shown

    def _list(self, value: list[Any], depth: int) -> list[Any] | JsonObject:
        if value and (self._left <= 0 or depth > _MAX_DEPTH):
            return self._cut("list", len(value))
        shown: list[Any] = []
        for item in value:
            if len(shown) == _MAX_ITEMS or self._left <= 0:
                return [*shown, self._cut("list", len(value))]
            shown.append(self.of(item, depth + 1))
        return shown

    def _cut(self, kind: str, length: int, preview: str | None = None) -> JsonObject:
        self.has_cut = True
        self._left -= len(preview or "") + 40
        return {CUT: kind, "length": length} | ({} if preview is None else {"preview": preview})


def preview(value: Any, *, budget: int = _BUDGET) -> Any:
    """Return a value cut to about `budget` characters."""
    return Preview(budget).of(value)
