"""The tenant of a database call: the apps of the request that is served, or the engine itself.

A context variable holds it, so every task that a request starts has the tenant of the request. Outside a request it is
the engine. While a request is served and its caller is not known yet, a database call is an error. Work for all tenants
that a request starts (a batch of writes, a background loop) runs in a task of `create_shared_task`.

Row level security needs the tenant before the first row is judged, and in the same round trip. A query is put into a
lateral join behind `enter_tenant`, on whose answer it depends, so PostgreSQL cannot start with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from enum import Enum

Apps = tuple[str, ...]


class _Without(Enum):
    ENGINE = "engine privileges"
    UNDECIDED = "a request whose tenant is not known"


_current: ContextVar[Apps | _Without] = ContextVar("tenancy", default=_Without.ENGINE)
_PARAMETER = re.compile(r"\$(\d+)")
_COMMENT = re.compile(r"--[^\n]*")
_WRITES = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE)\b", re.IGNORECASE)


class _Within:
    """A class and no generator: every request with a key enters two."""

    __slots__ = ("_tenancy", "_token")

    def __init__(self, tenancy: Apps | _Without) -> None:
        self._tenancy = tenancy
        self._token: Token[Apps | _Without] | None = None

    def __enter__(self) -> None:
        self._token = _current.set(self._tenancy)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None


def serving_request() -> AbstractContextManager[None]:
    """Refuse database calls until `acting_for` or `acting_as_engine` says with which rights they are made."""
    return _Within(_Without.UNDECIDED)


def acting_for(apps: Iterable[str]) -> AbstractContextManager[None]:
    """Limit the database calls of this task, and of the tasks it starts, to rows of these apps."""
    return _Within(tuple(sorted(apps)))


def acting_as_engine() -> AbstractContextManager[None]:
    """Make database calls with engine privileges: rows of all tenants."""
    return _Within(_Without.ENGINE)


def current_apps() -> Apps | None:
    """Return the apps for which this task acts; None when it acts with engine privileges.

    Raises RuntimeError while a request is served whose caller is not known.
    """
    tenancy = _current.get()
    if tenancy is _Without.ENGINE:
        return None
    if tenancy is _Without.UNDECIDED:
        raise RuntimeError(
            "a database call of a request without a tenant; use acting_for(apps), or acting_as_engine() if it concerns "
            "no tenant"
        )
    return tenancy


def as_tenant_statement(sql: str, schema: str) -> str | None:
    """Return the query as one statement that first sets its apps, in one more parameter; None when it cannot be one.

    A statement that writes by itself cannot be a subquery. One that calls a function which writes can.
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
