"""The audit log: which caller changed what, for the changes that only administrators make and for deletions."""

from __future__ import annotations

import re
from typing import Any

from cognizes.engine.database import Database

EVERY_APP = "*"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with control characters and line breaks as %XX, so that it fills one line of a log.

    A path arrives decoded: a line break in it would look like another line, and PostgreSQL stores no NUL.
    """
    return text if text.isprintable() else _UNPRINTABLE.sub(lambda found: f"%{ord(found[0]):02X}", text)


class AuditLog:
    """Appends and reads entries; entries never change."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(
        self,
        *,
        actor: str,
        action: str,
        app_name: str = EVERY_APP,
        target: str = "",
        status: int | None = None,
        request_id: str = "",
    ) -> None:
        """Append an entry, its texts as `printable` writes them. Neither action nor target may hold a secret."""
        texts = [printable(text) for text in (app_name, actor, action, target)]
        await self._database.fetch_value("write_audit", *texts, status, request_id)

    async def read(self, *, app_name: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the newest entries, of one app or of all."""
        return [dict(row) for row in await self._database.fetch("read_audit", app_name, limit)]
