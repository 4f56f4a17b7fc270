"""Sends the queued calls of webhooks: signed, with retries, each by one process at a time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import random
import time
from datetime import timedelta
from uuid import UUID

import asyncpg

from cognizes.engine.concurrency import Sweeper, WakeUp
from cognizes.engine.database import Database
from cognizes.engine.settings import Settings, networks
from cognizes.engine.supervision import SupervisedLoop
from cognizes.engine.webhooks.http_call import CallFailedError, post

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
