"""Row level security on a server of one's own, PostgreSQL 17, directly and through PgBouncer."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from cognizes.engine import Engine, SetupError
from cognizes.engine.access import Permission
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded, new_thread

pytestmark = pytest.mark.server


async def _two_tenants(engine: Engine) -> None:
    guarded = Guarded(engine)
    rights = (Permission.READ, Permission.WRITE)
    keys = [await guarded.key(app, permissions=rights) for app in ("a", "b")]
    async with guarded.client(keys[0]) as ada, guarded.client(keys[1]) as bob:
        thread = await new_thread(ada, "a")
        for path in (f"/api/sessions/{thread}", f"/api/sessions/{thread}/events", f"/contexts/{thread}/metadata"):
            assert (await ada.get(path)).status_code == 200
            assert (await bob.get(path)).status_code == 404


async def test_directly(server_url: str) -> None:
    async with Engine.open(server_url, auth="required") as engine:
        assert database_of(engine).has_row_level_security
        await _two_tenants(engine)


async def test_through_pgbouncer_a_member_is_named_or_row_level_security_is_switched_off(
    debian_server: Any, server_url: str
) -> None:
    async with Engine.open(server_url):
        pass  # creates the role and the policies
    settings: dict[str, Any] = {"listen_url": server_url, "auth": "required"}
    with pytest.raises(SetupError, match="COGNIZES_TENANT_URL"):
        async with Engine.open(debian_server.pgbouncer_url, **settings):
            pytest.fail("an engine started without row level security")
    async with Engine.open(debian_server.pgbouncer_url, row_level_security="off", **settings) as engine:
        await _two_tenants(engine)


async def test_a_user_that_row_level_security_does_not_hold_for_is_not_taken(server_url: str) -> None:
    """The URL of the engine itself owns the tables: as the tenants' URL it would be no wall."""
    connection = await asyncpg.connect(server_url)
    is_superuser = await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    await connection.close()
    if is_superuser:
        with pytest.raises(SetupError, match="policies are missing, or do not hold for"):
            await Engine.open(server_url, auth="required", tenant_url=server_url).start()
        return
    async with Engine.open(server_url, auth="required", tenant_url=server_url) as engine:
        assert database_of(engine).has_row_level_security
        await _two_tenants(engine)
