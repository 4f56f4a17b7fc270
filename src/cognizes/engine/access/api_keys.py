"""API keys: made, remembered for a moment, revoked everywhere at once.

A key looks like ``cgz_<id>_<secret>``. The secret has 256 random bits and is shown once; the database has its SHA-256.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg

from cognizes.engine.access.principal import Permission, Principal, permissions_of
from cognizes.engine.database import Database
from cognizes.engine.errors import InvalidInputError, NotFoundError

PREFIX = "cgz_"
CHANNEL = "access_changed"
_FORM = re.compile(r"cgz_([a-z0-9]{12})_([A-Za-z0-9_-]{43})")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_REMEMBERED_SECONDS = 5.0
_MOST_REMEMBERED = 10_000
_LOOKS = 3


@dataclass(frozen=True)
class ApiKey:
    """What is known of a key; not its secret."""

    id: str
    name: str
    app_names: frozenset[str] | None
    user_id: str | None
    permissions: frozenset[Permission]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None

    @property
    def principal(self) -> Principal:
        """The caller that brings this key."""
        return Principal(
            name=f"key:{self.id}",
            permissions=self.permissions,
            app_names=self.app_names,
            user_id=self.user_id,
            key_id=self.id,
            expires_at=self.expires_at,
        )


class ApiKeys:
    """The keys of a database.

    A key that was checked is believed for at most five seconds, and only while changes are heard of: `forget` is
    called for every change, whichever process made it. `can_hear` says whether that works right now; while it does
    not, every request asks the database.
    """

    def __init__(self, database: Database, *, can_hear: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._can_hear = can_hear
        self._known: dict[str, tuple[bytes, float, ApiKey]] = {}
        self._changes = 0

    async def create(
        self,
        *,
        permissions: Iterable[Permission],
        app_names: Iterable[str] | None = None,
        user_id: str | None = None,
        name: str = "",
        expires_at: datetime | None = None,
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which nobody will see again. Without app names it is for all apps."""
        apps = None if app_names is None else sorted(set(app_names))
        rights = sorted(set(permissions))
        if apps is not None and not all(apps):
            raise InvalidInputError("the name of an app is empty")
        if apps == [] or not rights:
            raise InvalidInputError("a key needs at least one app and one permission")
        key_id = "".join(secrets.choice(_ALPHABET) for _ in range(12))
        secret = secrets.token_urlsafe(32)
        row = await self._database.fetch_row(
            "create_api_key", key_id, hash_secret(secret), name, apps, user_id, rights, expires_at
        )
        assert row is not None  # noqa: S101 - INSERT … RETURNING has a row
        return _key(row), f"{PREFIX}{key_id}_{secret}"

    async def check(self, text: str) -> Principal | None:
        """The caller that brings this key, if it may be used."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        key_id, digest = found[1], hash_secret(found[2])
        key = self._remembered(key_id, digest) or await self._look_up(key_id, digest)
        if key is None or (key.expires_at is not None and key.expires_at <= datetime.now(UTC)):
            return None
        return key.principal

    @property
    def changes(self) -> int:
        """How often something about keys is known to have changed."""
        return self._changes

    async def look_again(self, key_id: str) -> Principal | None:
        """The caller that brings a key, as it is now; None when it opens nothing."""
        row = await self._database.fetch_row("read_api_key", key_id)
        if row is None or row["revoked_at"] is not None:
            return None
        key = _key(row)
        return None if key.expires_at is not None and key.expires_at <= datetime.now(UTC) else key.principal

    async def is_usable(self, key_id: str) -> bool:
        """Whether a key opens anything today."""
        row = await self._database.fetch_row("read_api_key", key_id)
        return row is not None and row["revoked_at"] is None

    async def list(self) -> list[ApiKey]:
        """All keys, newest first, the revoked ones too."""
        return [_key(row) for row in await self._database.fetch("list_api_keys")]

    async def revoke(self, key_id: str) -> None:
        """From now on the key opens nothing, in no process."""
        if await self._database.fetch_value("revoke_api_key", key_id) is None:
            raise NotFoundError(f"there is no key {key_id}; `cognizes keys list` shows them")
        self.forget(key_id)

    async def rotate(self, key_id: str, *, grace: timedelta = timedelta(0)) -> tuple[ApiKey, str]:
        """Another key for the same things. The old one works for the time of grace, or no longer."""
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
            self.forget(key_id)
        else:
            await self.revoke(key_id)
        return created

    def forget(self, key_id: str) -> None:
        """Something about a key changed: what was known of it, or is being read right now, is not believed."""
        self._changes += 1
        self._known.pop(key_id, None)

    def forget_all(self) -> None:
        """Changes may have been missed."""
        self._changes += 1
        self._known.clear()

    def _remembered(self, key_id: str, digest: bytes) -> ApiKey | None:
        known = self._known.get(key_id)
        if known is None or not self._can_hear():
            return None
        remembered_digest, since, key = known
        if time.monotonic() - since > _REMEMBERED_SECONDS or not secrets.compare_digest(remembered_digest, digest):
            return None
        return key

    async def _look_up(self, key_id: str, digest: bytes) -> ApiKey | None:
        key: ApiKey | None = None
        for _ in range(_LOOKS):
            before = self._changes
            since = time.monotonic()
            row = await self._database.fetch_row("use_api_key", key_id, digest)
            if row is None:
                self._known.pop(key_id, None)
                return None
            key = _key(row)
            # The word of a revocation may overtake the answer that knows nothing of it yet: then it is looked up again,
            # since nobody would end a stream that opens after the word was heard.
            if before == self._changes:
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.clear()
                self._known[key_id] = (digest, since, key)
                break
        return key


def hash_secret(secret: str) -> bytes:
    """What is stored of a secret of 256 random bits; see the note in the migration."""
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
