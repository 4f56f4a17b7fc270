"""Finding threads across apps and users, for people who look into a running engine."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.database.documents import unescape_text
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import Page
from cognizes.engine.pulse.events import check_text


class ThreadStatus(StrEnum):
    """What a thread is doing: the status of its active run, else whether the newest one failed."""

    RUNNING = "running"
    WAITING = "waiting"
    PENDING = "pending"
    FAILED = "failed"
    IDLE = "idle"


@dataclass(frozen=True)
class ThreadSummary:
    """A thread in a list."""

    thread_id: str
    session_id: str
    app_name: str
    user_id: str
    title: str | None
    status: ThreadStatus
    run_id: str | None
    version: int
    last_sequence: int
    last_message: str | None
    last_role: str | None
    created_at: datetime
    updated_at: datetime


Summaries = list[ThreadSummary]


class ThreadSearch:
    """Pages of threads, newest activity first."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(
        self,
        *,
        text: str | None = None,
        app_name: str | None = None,
        user_id: str | None = None,
        status: ThreadStatus | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[ThreadSummary]:
        """Threads whose title, session, user or app holds `text`, in whatever case; a thread's own id finds it."""
        if text and (exact := _as_uuid(text)) and (found := await self.read([exact])):
            return Page(items=found, next_cursor=None)
        before, before_id = _decode(cursor) if cursor else (None, None)
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
        )
        page = rows[:limit]
        items = await self.read([row["id"] for row in page])
        return Page(items=items, next_cursor=_encode(page[-1]) if len(rows) > limit else None)

    async def read(self, thread_ids: Sequence[UUID]) -> Summaries:
        """The threads of these ids that exist, newest activity first."""
        if not thread_ids:
            return []
        return [_summary(row) for row in await self._database.fetch("read_thread_summaries", list(thread_ids))]

    async def apps(self) -> list[str]:
        """The names of all apps that have a thread."""
        return [row["app_name"] for row in await self._database.fetch("list_apps")]


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
        last_message=unescape_text(row["last_message"]) if row["last_message"] is not None else None,
        last_role=row["last_role"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _pattern(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _as_uuid(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def _encode(row: asyncpg.Record) -> str:
    return base64.urlsafe_b64encode(f"{row['updated_at'].isoformat()}|{row['id']}".encode()).decode()


def _decode(cursor: str) -> tuple[datetime, UUID]:
    try:
        moment, thread_id = base64.urlsafe_b64decode(cursor).decode().split("|")
        return datetime.fromisoformat(moment), UUID(thread_id)
    except (ValueError, binascii.Error) as error:
        raise InvalidInputError("this cursor was not made by us; start again without one") from error
