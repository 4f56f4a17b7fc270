"""AccessDesk: where a credential becomes a caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from cognizes.engine.access.api_keys import PREFIX, ApiKeys
from cognizes.engine.access.audit import AuditLog
from cognizes.engine.access.leases import Leases
from cognizes.engine.access.principal import ANYONE, Principal
from cognizes.engine.access.tickets import Tickets
from cognizes.engine.access.tokens import Tokens
from cognizes.engine.database import Database
from cognizes.engine.errors import AuthenticationError
from cognizes.engine.settings import Settings

_OWNERS_REMEMBERED = 20_000


@dataclass(frozen=True)
class Credential:
    """What a caller showed. One of them, or none."""

    bearer: str = ""
    ticket: str = ""

    @property
    def text(self) -> str:
        """What it is; empty for none."""
        return self.bearer or self.ticket


class AccessDesk:
    """Keys, tokens, tickets and the audit log of one engine, and whether any of them is asked for."""

    def __init__(self, database: Database, settings: Settings, *, can_hear: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self.is_required = settings.auth == "required"
        self.keys = ApiKeys(database, can_hear=can_hear)
        self.tickets = Tickets(database)
        self.audit = AuditLog(database)
        self.leases = Leases()
        self.tokens = Tokens(settings) if settings.jwt_jwks else None
        self._owners: OrderedDict[UUID, tuple[str, str]] = OrderedDict()

    async def identify(self, credential: Credential) -> Principal:
        """Who calls. Without authentication everybody is ANYONE; with it, `AuthenticationError` for nobody."""
        if not self.is_required:
            return ANYONE
        principal: Principal | None = None
        if credential.ticket:
            principal = await self._redeem(credential.ticket)
        elif credential.bearer.startswith(PREFIX):
            principal = await self.keys.check(credential.bearer)
        elif credential.bearer and self.tokens is not None:
            return await self.tokens.check(credential.bearer)
        elif not credential.bearer:
            raise AuthenticationError(
                "this server asks for a key: send `Authorization: Bearer <key>`; `cognizes keys create` makes one"
            )
        if principal is None:
            raise AuthenticationError("the key or ticket is not valid, has expired or was revoked")
        return principal

    async def _redeem(self, ticket: str) -> Principal | None:
        before = self.keys.changes
        principal = await self.tickets.redeem(ticket)
        # The word of a change may overtake the answer that knows nothing of it yet, and nobody would end a stream that
        # opens after the word was heard.
        if principal is not None and principal.key_id is not None and self.keys.changes != before:
            return await self.keys.look_again(principal.key_id)
        return principal

    async def is_valid(self, principal: Principal) -> bool:
        """Return whether a caller that was identified before is still accepted."""
        if principal.expires_at is not None and principal.expires_at <= datetime.now(UTC):
            return False
        return principal.key_id is None or await self.keys.look_again(principal.key_id) is not None

    def forget_key(self, key_id: str) -> None:
        """A key changed: it is looked up anew, and what it holds open ends. Whoever still may comes back."""
        self.keys.forget(key_id)
        self.leases.end(key_id)

    async def forget_all(self) -> None:
        """Changes may have been missed: nothing remembered is believed, and streams of keys now gone end."""
        self.keys.forget_all()
        for key_id in self.leases.key_ids:
            if not await self.keys.is_usable(key_id):
                self.leases.end(key_id)

    async def find_owner(self, thread_id: UUID) -> tuple[str, str] | None:
        """App and user of a thread. A thread never changes hands, so what was read once stays true."""
        if (owner := self._owners.get(thread_id)) is not None:
            self._owners.move_to_end(thread_id)
            return owner
        row = await self._database.fetch_row("read_thread_owner", thread_id)
        if row is None:
            return None
        owner = (row["app_name"], row["user_id"])
        self._owners[thread_id] = owner
        if len(self._owners) > _OWNERS_REMEMBERED:
            self._owners.popitem(last=False)
        return owner
