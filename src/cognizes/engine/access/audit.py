"""The audit log, and what no log may hold: line breaks of a caller, and tickets in query strings.

The audit log has the changes that only administrators make, and deletions.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from cognizes.engine.database import Database

EVERY_APP = "*"
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LOGGERS = ("uvicorn.error", "uvicorn.access")


def printable(text: str) -> str:
    """Return the text with control characters and line breaks as %XX, so that it fills one line of a log.

    A path arrives decoded: a line break in it would look like another line, and PostgreSQL stores no NUL.
    """
    return _UNPRINTABLE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def keep_queries_out_of_logs() -> None:
    """Remove query strings from uvicorn's log, however it is configured: a query may hold a ticket."""
    for name in _LOGGERS:
        # A logger keeps a filter once, also when it is added again.
        logging.getLogger(name).addFilter(without_query)


def without_query(record: logging.LogRecord) -> bool:
    """Filter log records: uvicorn logs the path of each WebSocket, and of each request in its access log."""
    if record.name in _LOGGERS and isinstance(record.args, tuple):
        record.args = tuple(
            argument.partition("?")[0] if isinstance(argument, str) and argument.startswith("/") else argument
            for argument in record.args
        )
    return True


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
        return [dict(row) for row in await self._database.fetch("read_audit", app_name, limit)]
