"""Principal: on whose behalf something is done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Permission(StrEnum):
    """What a caller may do. ADMIN may do everything, within its apps."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True)
class Principal:
    """Who calls, what for, and until when.

    `app_names` are the tenants it belongs to, None means all of them. With a `user_id` it is one end user, who sees
    nothing of other users.
    """

    name: str
    permissions: frozenset[Permission]
    app_names: frozenset[str] | None = None
    user_id: str | None = None
    key_id: str | None = None
    expires_at: datetime | None = None

    def may(self, permission: Permission) -> bool:
        """Whether it may do such a thing at all."""
        return permission in self.permissions or Permission.ADMIN in self.permissions

    def sees_app(self, app_name: str) -> bool:
        """Whether an app is one of its own."""
        return self.app_names is None or app_name in self.app_names

    def sees(self, app_name: str, user_id: str) -> bool:
        """Whether a session of that user of that app is its own."""
        return self.sees_app(app_name) and self.user_id in (None, user_id)

    @property
    def sees_everything(self) -> bool:
        """Whether it is bound to no app and no user."""
        return self.app_names is None and self.user_id is None


def permissions_of(words: Iterable[str]) -> frozenset[Permission]:
    """The permissions among some words; other words mean nothing here."""
    known = set(words)
    return frozenset(permission for permission in Permission if permission.value in known)


ANYONE = Principal(name="anyone", permissions=frozenset(Permission))
"""The caller of a server that asks for no key."""
