"""For whom the database is asked: the apps of the request that is being answered, or the engine itself.

Row level security needs to know it before the first row is judged, and in the same round trip. A query is put into a
lateral join behind `enter_tenant`, whose answer it depends on, so PostgreSQL cannot start with it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

Apps = tuple[str, ...]


@dataclass(frozen=True)
class _Tenancy:
    apps: Apps
    task: asyncio.Task[Any] | None


Result = TypeVar("Result")
_current: ContextVar[_Tenancy | None] = ContextVar("tenancy", default=None)
_PARAMETER = re.compile(r"\$(\d+)")
_COMMENT = re.compile(r"--[^\n]*")
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)


@contextmanager
def acting_for(apps: Iterable[str]) -> Iterator[None]:
    """Within it, what this task asks the database for is limited to rows of these apps.

    Only this task: one that it starts may work for others too (a batch of writes, a hub), and is the engine's own,
    unless it was started by `continue_in_task`.
    """
    token = _current.set(_Tenancy(tuple(sorted(apps)), asyncio.current_task()))
    try:
        yield
    finally:
        _current.reset(token)


def current_apps() -> Apps | None:
    """The apps of the request that this task answers; None when it works for the engine."""
    tenancy = _current.get()
    if tenancy is None or tenancy.task is not asyncio.current_task():
        return None
    return tenancy.apps


def continue_in_task(work: Coroutine[Any, Any, Result], *, name: str | None = None) -> asyncio.Task[Result]:
    """A task that a request starts for itself alone: it acts for whom this one acts."""
    apps = current_apps()
    if apps is None:
        return asyncio.create_task(work, name=name)
    context = copy_context()
    task = asyncio.create_task(work, name=name, context=context)
    # Before its first step: a task that was just created has not begun.
    context.run(_current.set, _Tenancy(apps, task))
    return task


def enter_first(sql: str, schema: str) -> str | None:
    """The query as one statement that first names its apps, in one more parameter; None when it cannot be one.

    Statements that write by themselves cannot stand inside another one. Those that call a function which writes can.
    """
    plain = _COMMENT.sub("", sql).strip()
    begins = plain.lstrip("( \n")[:6].upper()
    if begins[:4] == "WITH" and _WRITES.search(plain):
        return None
    if begins != "SELECT" and begins[:4] != "WITH":
        return None
    number = max((int(found) for found in _PARAMETER.findall(sql)), default=0) + 1
    # OFFSET 0 keeps the planner from taking the subquery apart, and so from scanning its tables in another order.
    return (
        f"SELECT result.* FROM {schema}.enter_tenant(${number}::text[]) AS entered (ok) "
        f"CROSS JOIN LATERAL (SELECT inside.* FROM (\n{sql}\n) inside WHERE entered.ok OFFSET 0) result"
    )
