"""The webhooks of an app: their URLs and secrets, and the calls that were given up.

A trigger queues a call in the transaction that changes a run. The sender delivers it at least once, with the signature
of Standard Webhooks; `webhook-id` is the same in each attempt.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import random
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.database.documents import decode_cursor, encode_cursor
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, Page, new_id
from cognizes.engine.pulse.events import check_name
from cognizes.engine.settings import Settings, networks
from cognizes.engine.supervision import SupervisedLoop
from cognizes.engine.webhooks.http_call import CallFailedError, parse_target, post, resolve

EVENTS = ("waiting", "failed", "completed")
"""What webhooks are called for: a run waits for a person, has failed, or has completed."""
_PREFIX = "whsec_"
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Webhook:
    """A URL that is called for some events of the runs of an app. `waiting` and `dead` count its deliveries."""

    id: str
    app_name: str
    url: str
    events: tuple[str, ...]
    created_at: datetime
    waiting: int = 0
    dead: int = 0

    def to_json(self) -> JsonObject:
        return {
            "id": self.id,
            "app_name": self.app_name,
            "url": self.url,
            "events": list(self.events),
            "created_at": self.created_at.isoformat(),
            "waiting": self.waiting,
            "dead": self.dead,
        }


@dataclass(frozen=True)
class DeadLetter:
    """A call that failed at each of its attempts."""

    id: str
    webhook_id: str
    app_name: str
    thread_id: str
    run_id: str
    event: str
    payload: Any
    attempts: int
    last_error: str | None
    created_at: datetime
    dead_at: datetime

    def to_json(self) -> JsonObject:
        times = {"created_at": self.created_at.isoformat(), "dead_at": self.dead_at.isoformat()}
        return {**vars(self), **times}


# `list` is a method of the class below.
_Webhooks = list[Webhook]


class Webhooks:
    """Creates and deletes webhooks, lists dead letters, and starts the sender of this process."""

    def __init__(self, database: Database, settings: Settings, *, sweeper: Sweeper) -> None:
        self._database = database
        # The role of tenants may not read or write secrets; the methods below compare the app.
        self._unrestricted = database.without_tenants()
        self._allowed = networks(settings.webhook_networks)
        self._sender = WebhookSender(self._unrestricted, settings, sweeper=sweeper)

    def start(self) -> None:
        """Send due calls in this process, unless it does so already."""
        self._sender.start()

    async def close(self) -> None:
        await self._sender.close()

    async def send_due(self) -> int:
        """Send the calls that are due now; return how many were answered."""
        return await self._sender.send_due()

    async def create(self, app_name: str, url: str, *, events: Iterable[str] = EVENTS) -> tuple[Webhook, str]:
        """Create a webhook; return it with its secret, which is not shown again.

        `InvalidInputError` when the URL is not https, or has an internal address that the settings do not allow.
        """
        check_name("app_name", app_name)
        self._check_tenant(app_name)
        wanted = tuple(dict.fromkeys(events))
        if not wanted or any(event not in EVENTS for event in wanted):
            raise InvalidInputError(f"the events are {', '.join(wanted) or 'none'}; use {', '.join(EVENTS)}")
        await resolve(parse_target(url), allowed=self._allowed)
        secret = secrets.token_bytes(_SECRET_BYTES)
        row = await self._unrestricted.fetch_row("create_webhook", new_id(), app_name, url, list(wanted), secret)
        assert row is not None  # noqa: S101 - the statement returns its row
        return _webhook(row), _shown(secret)

    async def rotate(self, webhook_id: str, *, app_name: str | None = None) -> str:
        """Replace the secret of a webhook; return the new one. Later calls are signed with it."""
        self._check_tenant(app_name)
        secret = secrets.token_bytes(_SECRET_BYTES)
        if not await self._unrestricted.fetch("replace_webhook_secret", _uuid(webhook_id), app_name, secret):
            raise _unknown(webhook_id)
        return _shown(secret)

    async def list(self, *, app_name: str | None = None) -> _Webhooks:
        return [_webhook(row) for row in await self._database.fetch("list_webhooks", app_name)]

    async def delete(self, webhook_id: str, *, app_name: str | None = None) -> None:
        """Delete a webhook, its secret and its deliveries."""
        self._check_tenant(app_name)
        if not await self._unrestricted.fetch("delete_webhook", _uuid(webhook_id), app_name):
            raise _unknown(webhook_id)

    async def dead_letters(
        self, *, app_name: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[DeadLetter]:
        """Return calls that were given up, newest first, a page at a time."""
        before = decode_cursor(cursor, _position) if cursor else (None, None)
        rows = await self._database.fetch("list_dead_letters", app_name, *before, limit + 1)
        found = [_dead_letter(row) for row in rows[:limit]]
        return Page(
            items=found,
            next_cursor=encode_cursor(found[-1].dead_at.isoformat(), found[-1].id) if len(rows) > limit else None,
        )

    async def redeliver(self, delivery_id: str, *, app_name: str | None = None) -> None:
        """Send a call that was given up again, now and with all its attempts."""
        if not await self._database.fetch("redeliver", _uuid(delivery_id), app_name):
            raise NotFoundError(f"there is no dead letter {delivery_id[:80]!r}")

    def _check_tenant(self, app_name: str | None) -> None:
        apps = self._database.acting_apps
        if apps is not None and app_name not in apps:
            raise NotFoundError("there is no such webhook")


def _webhook(row: asyncpg.Record) -> Webhook:
    counts = {name: row[name] for name in ("waiting", "dead") if name in row}
    return Webhook(str(row["id"]), row["app_name"], row["url"], tuple(row["events"]), row["created_at"], **counts)


def _dead_letter(row: asyncpg.Record) -> DeadLetter:
    return DeadLetter(
        id=str(row["id"]),
        webhook_id=str(row["webhook_id"]),
        app_name=row["app_name"],
        thread_id=str(row["thread_id"]),
        run_id=row["run_id"],
        event=row["event"],
        payload=json.loads(row["payload"]),
        attempts=row["attempts"],
        last_error=row["last_error"],
        created_at=row["created_at"],
        dead_at=row["dead_at"],
    )


def _shown(secret: bytes) -> str:
    return _PREFIX + base64.b64encode(secret).decode()


def _unknown(webhook_id: str) -> NotFoundError:
    return NotFoundError(f"there is no webhook {webhook_id[:80]!r}")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise NotFoundError(f"there is no webhook or dead letter {text[:80]!r}") from error


def _position(dead_at: str, delivery_id: str) -> tuple[datetime, UUID]:
    return datetime.fromisoformat(dead_at), UUID(delivery_id)


logger = logging.getLogger(__name__)

_SECONDS = 1.0
_AT_ONCE = 20
_LEASE_RESERVE = timedelta(seconds=30)
"""The lease of a delivery is longer than its call by this much."""
_LONGEST_BACKOFF = timedelta(hours=1)
_LONGEST_ERROR = 500


def sign(secret: bytes, delivery_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` of Standard Webhooks: HMAC-SHA256 of id, time and body."""
    content = f"{delivery_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()


class WebhookSender:
    """Claims due deliveries with a lease and sends them.

    If the process dies, the lease expires and another process sends the delivery again. An answered delivery is
    deleted; one that failed is due again after a pause that doubles, and is given up after `webhook_attempts`.
    """

    def __init__(self, database: Database, settings: Settings, *, sweeper: Sweeper) -> None:
        self._database = database
        self._settings = settings
        self._allowed = networks(settings.webhook_networks)
        self._sweeper = sweeper
        self._due = WakeUp()
        self._loop: SupervisedLoop | None = None

    def start(self) -> None:
        if self._loop is None:
            self._loop = self._sweeper.start("send-webhooks", self.send_due, seconds=_SECONDS, wake_up=self._due)

    async def close(self) -> None:
        if self._loop is not None:
            await self._loop.stop()
            self._loop = None

    async def send_due(self) -> int:
        """Send the deliveries that are due, a batch at a time; return how many were answered."""
        lease = timedelta(seconds=self._settings.webhook_seconds) + _LEASE_RESERVE
        rows = await self._database.fetch("claim_deliveries", _AT_ONCE, lease)
        if len(rows) == _AT_ONCE:
            self._due.notify()
        return sum(await asyncio.gather(*map(self._send, rows)))

    async def _send(self, row: asyncpg.Record) -> bool:
        delivery_id: UUID = row["id"]
        body = row["payload"].encode()
        now = int(time.time())
        headers = {
            "webhook-id": str(delivery_id),
            "webhook-timestamp": str(now),
            "webhook-signature": sign(row["secret"], str(delivery_id), now, body),
        }
        try:
            await post(row["url"], body, headers=headers, allowed=self._allowed, seconds=self._settings.webhook_seconds)
        except CallFailedError as error:
            await self._retry(row, str(error)[:_LONGEST_ERROR])
            return False
        await self._database.fetch("end_delivery", delivery_id, row["attempts"])
        return True

    async def _retry(self, row: asyncpg.Record, error: str) -> None:
        attempts: int = row["attempts"]
        is_last = attempts >= self._settings.webhook_attempts
        seconds = self._settings.webhook_backoff_seconds * 2.0 ** min(attempts - 1, 30)
        pause = min(timedelta(seconds=min(seconds, 1e6)), _LONGEST_BACKOFF) * random.uniform(0.75, 1.0)  # noqa: S311
        logger.log(
            logging.WARNING if is_last else logging.INFO,
            "attempt %s of delivery %s of webhook %s failed%s: %s",
            attempts,
            row["id"],
            row["webhook_id"],
            " and was the last one" if is_last else "",
            error,
        )
        await self._database.fetch("retry_delivery", row["id"], attempts, error, is_last, pause)
