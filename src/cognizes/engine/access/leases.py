"""Leases: what is open on a caller's behalf ends when the caller may no longer be there."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from cognizes.engine.access.principal import Principal


class Lease:
    """One connection of one caller. `over` is set when its key is revoked or its token has expired."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.over = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None


class Leases:
    """The open connections of all callers that can lose their right to be there."""

    def __init__(self) -> None:
        self._by_key: dict[str, set[Lease]] = {}

    @property
    def key_ids(self) -> list[str]:
        """The keys that hold something open."""
        return list(self._by_key)

    def open(self, principal: Principal) -> Lease:
        """A lease, to be given to `close`."""
        lease = Lease(principal)
        if principal.key_id is not None:
            self._by_key.setdefault(principal.key_id, set()).add(lease)
        if principal.expires_at is not None:
            seconds = (principal.expires_at - datetime.now(UTC)).total_seconds()
            lease.timer = asyncio.get_running_loop().call_later(max(0.0, seconds), lease.over.set)
        return lease

    def close(self, lease: Lease) -> None:
        """The connection ended by itself."""
        if lease.timer is not None:
            lease.timer.cancel()
        key_id = lease.principal.key_id
        if key_id is not None and (leases := self._by_key.get(key_id)) is not None:
            leases.discard(lease)
            if not leases:
                del self._by_key[key_id]

    def end(self, key_id: str) -> None:
        """Everything that a key holds open ends."""
        for lease in self._by_key.get(key_id, ()):
            lease.over.set()
