"""Authentication: an API key, a token or a ticket becomes a principal.

A key looks like ``cgz_<id>_<secret>``. The secret has 256 random bits and is shown once; the database stores its
SHA-256. A ticket opens one stream of a browser, whose EventSource and WebSocket send no headers.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, Protocol
from uuid import UUID

import asyncpg
from cachetools import LRUCache

from cognizes.engine.access.audit import AuditLog
from cognizes.engine.database import Database
from cognizes.engine.errors import AuthenticationError, InvalidInputError, NotFoundError
from cognizes.engine.settings import Settings

KEY_PREFIX = "cgz_"
TICKET_SECONDS = 30
KEY_CACHE_SECONDS = 5.0
_KEY_FORMAT = re.compile(r"cgz_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ID_OF_KEY = slice(4, 16)
_KEY_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_MAX_CACHED_KEYS = 10_000
_MAX_CACHED_OWNERS = 20_000
_LOOKUP_ATTEMPTS = 3


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


class Credential(NamedTuple):
    """The credential of a request: a bearer (key or token), a ticket, or neither."""

    bearer: str = ""
    ticket: str = ""

    @property
    def text(self) -> str:
        return self.bearer or self.ticket


class Listener(Protocol):
    """The state of the listener that announces changed keys."""

    @property
    def is_running(self) -> bool: ...


class TokenVerifier(Protocol):
    """Verifies the tokens of an identity provider."""

    async def check(self, text: str) -> Principal:
        """Return the caller of a token; raise `AuthenticationError` for an invalid one."""
        ...


class Authenticator:
    """Keys, tokens, tickets, open grants and the audit log of one engine."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        listener: Listener | None = None,
        tokens: TokenVerifier | None = None,
    ) -> None:
        self._database = database
        self.is_required = settings.auth == "required"
        self.keys = ApiKeys(database, listener=listener)
        self.tickets = Tickets(database)
        self.audit = AuditLog(database)
        self.grants = Grants()
        self.tokens = tokens
        self._owners: LRUCache[UUID, tuple[str, str]] = LRUCache(_MAX_CACHED_OWNERS)

    async def authenticate(self, credential: Credential) -> Principal:
        """Return the caller; raise `AuthenticationError` without a valid credential.

        With authentication off every caller is ANONYMOUS.
        """
        if not self.is_required:
            return ANONYMOUS
        principal: Principal | None = None
        if credential.ticket:
            principal = await self._redeem(credential.ticket)
        elif credential.bearer.startswith(KEY_PREFIX):
            principal = await self.keys.check(credential.bearer)
        elif credential.bearer and self.tokens is not None:
            return await self.tokens.check(credential.bearer)
        elif not credential.bearer:
            raise AuthenticationError(
                "this server needs a key: send `Authorization: Bearer <key>`; `cognizes keys create` makes one"
            )
        if principal is None:
            raise AuthenticationError("the key or ticket is not valid, has expired or was revoked")
        return principal

    def find_cached(self, credential: Credential) -> Principal | None:
        """Return the caller of a key that was checked within the last seconds; None for any other credential."""
        return self.keys.find_cached(credential.bearer) if self.is_required and credential.bearer else None

    async def is_valid(self, principal: Principal) -> bool:
        """Return whether a caller that was authenticated before still is accepted."""
        if principal.has_expired:
            return False
        return principal.key_id is None or await self.keys.reload(principal.key_id) is not None

    def invalidate_key(self, key_id: str) -> None:
        """Drop what is cached of a changed key, and revoke its grants. A caller with a valid key connects again."""
        self.keys.invalidate(key_id)
        self.grants.revoke(key_id)

    async def invalidate_all(self) -> None:
        """Drop the cached keys, because notifications were missed, and revoke the grants of keys that are revoked."""
        self.keys.invalidate_all()
        for key_id in self.grants.key_ids:
            if not await self.keys.is_usable(key_id):
                self.grants.revoke(key_id)

    async def find_owner(self, thread_id: UUID) -> tuple[str, str] | None:
        """Return app and user of a thread. They never change, so they are cached."""
        if (owner := self._owners.get(thread_id)) is not None:
            return owner
        row = await self._database.fetch_row("read_thread_owner", thread_id)
        if row is None:
            return None
        owner = self._owners[thread_id] = row["app_name"], row["user_id"]
        return owner

    async def _redeem(self, ticket: str) -> Principal | None:
        before = self.keys.change_count
        principal = await self.tickets.redeem(ticket)
        # The notification of a revocation may arrive before the row that was read without it. The stream would then be
        # opened after its grant was to be revoked, so the key is read again.
        if principal is not None and principal.key_id is not None and self.keys.change_count != before:
            return await self.keys.reload(principal.key_id)
        return principal


@dataclass(frozen=True)
class ApiKey:
    """A key without its secret."""

    id: str
    name: str
    app_names: frozenset[str] | None
    user_id: str | None
    permissions: frozenset[Permission]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    @cached_property
    def principal(self) -> Principal:
        return Principal(
            name=f"key:{self.id}",
            permissions=self.permissions,
            app_names=self.app_names,
            user_id=self.user_id,
            key_id=self.id,
            expires_at=self.expires_at,
        )


@dataclass(frozen=True)
class _CachedKey:
    digest: bytes
    """Of the whole key."""
    read_at: float
    key: ApiKey


class ApiKeys:
    """The keys of a database.

    A key that was checked is cached for at most five seconds, and only while the listener receives notifications of
    changes: each calls `invalidate`, for a change in any process. Otherwise every check reads the database.
    """

    def __init__(
        self, database: Database, *, listener: Listener | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._listener = listener
        self._clock = clock
        self._cached: LRUCache[str, _CachedKey] = LRUCache(_MAX_CACHED_KEYS)
        self.change_count = 0

    async def create(
        self,
        *,
        permissions: Iterable[Permission],
        app_names: Iterable[str] | None = None,
        user_id: str | None = None,
        name: str = "",
        expires_at: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key; return it and its text, which is not stored. Without app names it is for all apps."""
        apps = None if app_names is None else sorted(set(app_names))
        rights = sorted(set(permissions))
        if apps is not None and not all(apps):
            raise InvalidInputError("the name of an app is empty")
        if apps == [] or not rights:
            raise InvalidInputError("a key needs at least one app and one permission")
        key_id = "".join(secrets.choice(_KEY_ID_CHARACTERS) for _ in range(12))
        secret = secrets.token_urlsafe(32)
        row = await self._database.fetch_row(
            "create_api_key", key_id, hash_secret(secret), name, apps, user_id, rights, expires_at
        )
        assert row is not None  # noqa: S101 - INSERT … RETURNING has a row
        return _key(row), f"{KEY_PREFIX}{key_id}_{secret}"

    async def check(self, text: str) -> Principal | None:
        """Return the caller that sends this key; None for a key that is not valid."""
        if (cached := self.find_cached(text)) is not None:
            return cached
        key = await self._look_up(text)
        return None if key is None or key.principal.has_expired else key.principal

    def find_cached(self, text: str) -> Principal | None:
        """Return the caller of a key that is cached and valid; None for any other key."""
        cached = self._cached.get(text[_ID_OF_KEY])
        if cached is None or self._listener is None or not self._listener.is_running:
            return None
        is_old = self._clock() - cached.read_at > KEY_CACHE_SECONDS
        if is_old or not secrets.compare_digest(cached.digest, hash_secret(text)):
            return None
        principal = cached.key.principal
        return None if principal.has_expired else principal

    async def reload(self, key_id: str) -> Principal | None:
        """Read a key again; None when it was revoked or has expired."""
        row = await self._database.fetch_row("read_api_key", key_id)
        if row is None or row["revoked_at"] is not None:
            return None
        principal = _key(row).principal
        return None if principal.has_expired else principal

    async def is_usable(self, key_id: str) -> bool:
        row = await self._database.fetch_row("read_api_key", key_id)
        return row is not None and row["revoked_at"] is None

    async def list(self) -> list[ApiKey]:
        """Return all keys, newest first, including revoked ones."""
        return [_key(row) for row in await self._database.fetch("list_api_keys")]

    async def revoke(self, key_id: str) -> None:
        """Revoke a key in every process."""
        if await self._database.fetch_value("revoke_api_key", key_id) is None:
            raise NotFoundError(f"there is no key {key_id}; `cognizes keys list` shows them")
        self.invalidate(key_id)

    async def rotate(self, key_id: str, *, grace: timedelta = timedelta(0)) -> tuple[ApiKey, str]:
        """Create a key with the same rights. The old key stays valid for the grace period, else it is revoked."""
        row = await self._database.fetch_row("read_api_key", key_id)
        if row is None:
            raise NotFoundError(f"there is no key {key_id}; `cognizes keys list` shows them")
        old = _key(row)
        if old.revoked_at is not None:
            raise InvalidInputError(f"key {key_id} is revoked; create a new one")
        created = await self.create(
            permissions=old.permissions,
            app_names=old.app_names,
            user_id=old.user_id,
            name=old.name,
            expires_at=old.expires_at,
        )
        if grace > timedelta(0):
            await self._database.fetch_value("expire_api_key", key_id, datetime.now(UTC) + grace)
            self.invalidate(key_id)
        else:
            await self.revoke(key_id)
        return created

    def invalidate(self, key_id: str) -> None:
        """Drop a key from the cache; a look-up that is under way is repeated."""
        self.change_count += 1
        self._cached.pop(key_id, None)

    def invalidate_all(self) -> None:
        """Empty the cache; look-ups that are under way are repeated."""
        self.change_count += 1
        self._cached.clear()

    async def _look_up(self, text: str) -> ApiKey | None:
        found = _KEY_FORMAT.fullmatch(text)
        if found is None:
            return None
        key_id, digest = found[1], hash_secret(found[2])
        key: ApiKey | None = None
        for _ in range(_LOOKUP_ATTEMPTS):
            before, read_at = self.change_count, self._clock()
            row = await self._database.fetch_row("use_api_key", key_id, digest)
            if row is None:
                self._cached.pop(key_id, None)
                return None
            key = _key(row)
            # The notification of a revocation may arrive before the row that was read without it: read again, because
            # nothing would end a stream that opens after its notification.
            if before == self.change_count:
                self._cached[key_id] = _CachedKey(hash_secret(text), read_at, key)
                break
        return key


class Tickets:
    """A ticket stands for a caller once, within half a minute. A URL in a log reveals only a used ticket."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def issue(self, principal: Principal) -> str:
        ticket = secrets.token_urlsafe(32)
        await self._database.fetch_value(
            "create_ticket",
            hash_secret(ticket),
            principal.name,
            principal.key_id,
            None if principal.app_names is None else sorted(principal.app_names),
            principal.user_id,
            sorted(principal.permissions),
            principal.expires_at,
            timedelta(seconds=TICKET_SECONDS),
        )
        return ticket

    async def redeem(self, ticket: str) -> Principal | None:
        """Return the caller of a ticket and delete it; None for one that is used, expired, or of a revoked key."""
        row = await self._database.fetch_row("redeem_ticket", hash_secret(ticket))
        if row is None or not row["is_valid"]:
            return None
        return Principal(
            name=row["name"],
            permissions=permissions_of(row["permissions"]),
            app_names=None if row["app_names"] is None else frozenset(row["app_names"]),
            user_id=row["user_id"],
            key_id=row["key_id"],
            expires_at=row["principal_expires_at"],
        )


class Grant:
    """The right of connections to be served. `revoked` is set when their key is revoked or their token expires."""

    __slots__ = ("connections", "principal", "revoked", "timer")

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.connections = 0
        self.revoked = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        if principal.expires_at is not None:
            seconds = (principal.expires_at - datetime.now(UTC)).total_seconds()
            self.timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self.revoked.set)


class Grants:
    """The grants of all open connections, by key. Connections of one cached key share a grant."""

    def __init__(self) -> None:
        # The inner dictionaries have the grants by the identity of their principals, which each grant keeps alive.
        self._by_key: dict[str, dict[int, Grant]] = {}

    @property
    def key_ids(self) -> list[str]:
        return list(self._by_key)

    def of_key(self, key_id: str) -> list[Grant]:
        return list(self._by_key.get(key_id, {}).values())

    def open(self, principal: Principal) -> Grant:
        """Count a connection; end it with `close`."""
        grant: Grant | None = None
        if principal.key_id is not None:
            grants = self._by_key.setdefault(principal.key_id, {})
            grant = grants.get(id(principal))
            if grant is None or grant.revoked.is_set():
                grant = grants[id(principal)] = Grant(principal)
        grant = grant or Grant(principal)
        grant.connections += 1
        return grant

    def close(self, grant: Grant) -> None:
        grant.connections -= 1
        if grant.connections:
            return
        if grant.timer is not None:
            grant.timer.cancel()
        key_id, place = grant.principal.key_id, id(grant.principal)
        if key_id is not None and (grants := self._by_key.get(key_id)) is not None and grants.get(place) is grant:
            del grants[place]
            if not grants:
                del self._by_key[key_id]

    def revoke(self, key_id: str) -> None:
        for grant in self._by_key.pop(key_id, {}).values():
            grant.revoked.set()


def hash_secret(secret: str) -> bytes:
    """Return what is stored of a secret of 256 random bits; the migration says why a plain hash suffices."""
    return hashlib.sha256(secret.encode()).digest()


def _key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        id=row["id"],
        name=row["name"],
        app_names=None if row["app_names"] is None else frozenset(row["app_names"]),
        user_id=row["user_id"],
        permissions=permissions_of(row["permissions"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
