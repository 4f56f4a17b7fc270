"""Cutting the connections on which engines listen."""

from __future__ import annotations

from typing import Any

from cognizes.engine.pulse.pg_notify_listener import LISTENER_NAME


async def kill_listeners(pool: Any) -> int:
    """Ends the backend of every listener on the pool's database; how many there were."""
    killed = await pool.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = $1",
        LISTENER_NAME,
    )
    return len(killed)
