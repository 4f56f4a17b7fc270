"""The audit log: who changed what, of the things that only administrators change."""

from __future__ import annotations

from typing import Any

from cognizes.engine.database import Database

EVERY_APP = "*"


class AuditLog:
    """Lines that are added and never changed."""

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
        """Adds a line. Neither action nor target may hold a secret."""
        await self._database.fetch_value("write_audit", app_name, actor, action, target, status, request_id)

    async def read(self, *, app_name: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """The newest lines, of one app or of all."""
        return [dict(row) for row in await self._database.fetch("read_audit", app_name, limit)]
