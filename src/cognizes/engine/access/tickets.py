"""Tickets: how a browser's EventSource or WebSocket, which can send no header, opens a stream."""

from __future__ import annotations

import secrets
from datetime import timedelta

from cognizes.engine.access.api_keys import hash_secret
from cognizes.engine.access.principal import Principal, permissions_of
from cognizes.engine.database import Database

SECONDS = 30


class Tickets:
    """A ticket stands for a caller, once, for half a minute. It may be seen in a URL: by then it is worth nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def issue(self, principal: Principal) -> str:
        """A ticket for whoever asks."""
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
            timedelta(seconds=SECONDS),
        )
        return ticket

    async def redeem(self, ticket: str) -> Principal | None:
        """Who the ticket was given to; a second time, too late, or after its key was revoked, nobody."""
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
