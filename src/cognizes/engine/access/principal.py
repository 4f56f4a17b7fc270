"""Principals, and the grants that connections of principals hold while they are open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class Permission(StrEnum):
    """What a caller may do. ADMIN includes the others, within the caller's apps."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True)
class Principal:
    """An authenticated caller.

    `app_names` are the tenants it belongs to; None means all of them. With a `user_id` it is one end user, who sees
    nothing of other users.
    """

    name: str
    permissions: frozenset[Permission]
    app_names: frozenset[str] | None = None
    user_id: str | None = None
    key_id: str | None = None
    expires_at: datetime | None = None

    @property
    def sees_everything(self) -> bool:
        return self.app_names is None and self.user_id is None

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)

    def may(self, permission: Permission) -> bool:
        return permission in self.permissions or Permission.ADMIN in self.permissions

    def sees_app(self, app_name: str) -> bool:
        return self.app_names is None or app_name in self.app_names

    def sees(self, app_name: str, user_id: str) -> bool:
        return self.sees_app(app_name) and self.user_id in (None, user_id)


def permissions_of(words: Iterable[str]) -> frozenset[Permission]:
    """Return the permissions among some words; unknown words are ignored."""
    known = set(words)
    return frozenset(permission for permission in Permission if permission.value in known)


ANONYMOUS = Principal(name="anyone", permissions=frozenset(Permission))
"""The caller of a server without authentication."""


class Grant:
    """The right of one connection to be served. `revoked` is set when its key is revoked or its token expires."""

    __slots__ = ("principal", "revoked", "timer")

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.revoked = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        if principal.expires_at is not None:
            seconds = (principal.expires_at - datetime.now(UTC)).total_seconds()
            self.timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self.revoked.set)


class Grants:
    """The grants of all open connections, by key."""

    def __init__(self) -> None:
        self._by_key: dict[str, set[Grant]] = {}

    @property
    def key_ids(self) -> list[str]:
        return list(self._by_key)

    def of_key(self, key_id: str) -> list[Grant]:
        return list(self._by_key.get(key_id, ()))

    def open(self, principal: Principal) -> Grant:
        grant = Grant(principal)
        if principal.key_id is not None:
            self._by_key.setdefault(principal.key_id, set()).add(grant)
        return grant

    def close(self, grant: Grant) -> None:
        if grant.timer is not None:
            grant.timer.cancel()
        key_id = grant.principal.key_id
        if key_id is not None and (grants := self._by_key.get(key_id)) is not None:
            grants.discard(grant)
            if not grants:
                del self._by_key[key_id]

    def revoke(self, key_id: str) -> None:
        for grant in self._by_key.get(key_id, ()):
            grant.revoked.set()
