"""The engine's own user owns its tables and is no superuser, as on most managed servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded, new_thread


@pytest.fixture
async def owner_url(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    """An empty database of an owner who may create nothing else; a superuser has made it a member of the role."""
    name = f"owner_{uuid4().hex}"
    connection = await asyncpg.connect(postgres_server.url)
    user = await connection.fetchval("SELECT current_user")
    try:
        await connection.execute(f"CREATE ROLE {name} LOGIN")
        await connection.execute(f"GRANT cognizes_server TO {name}")
        await connection.execute(f"CREATE DATABASE {name} OWNER {name}")
        url = replace_database(postgres_server.url, name)
        try:
            database = await asyncpg.connect(url)
            await database.execute("CREATE EXTENSION vector")
            await database.close()
            yield url.replace(f"//{user}@", f"//{name}@")
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            await connection.execute(f"DROP ROLE {name}")
    finally:
        await connection.close()


async def test_the_engine_sees_everything_and_its_tenants_do_not(owner_url: str) -> None:
    async with Engine.open(owner_url, auth="required") as engine:
        assert await database_of(engine).pool.fetchval("SELECT current_user LIKE 'owner_%'")
        assert database_of(engine).has_row_level_security
        guarded = Guarded(engine)
        keys = [await guarded.key(app) for app in ("a", "b")]
        async with guarded.client(keys[0]) as ada, guarded.client(keys[1]) as bob:
            thread = await new_thread(ada, "a")
            assert (await ada.get(f"/api/sessions/{thread}")).status_code == 200
            assert (await bob.get(f"/api/sessions/{thread}")).status_code == 404
        session = await engine.sessions.create("c", "u")
        await engine.sessions.append(session, author="user", kind="user_message", text="hi")
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM threads") == 2


async def test_an_owner_that_becomes_a_member_later_sees_all_rows(
    owner_url: str, postgres_server: EmbeddedPostgres
) -> None:
    name = urlsplit(owner_url).username
    superuser = await asyncpg.connect(postgres_server.url)
    try:
        await superuser.execute(f"REVOKE cognizes_server FROM {name}")
        async with Engine.open(owner_url) as engine:
            await engine.sessions.create("a", "u")
        await superuser.execute(f"GRANT cognizes_server TO {name}")
    finally:
        await superuser.close()
    async with Engine.open(owner_url, auth="required") as engine:
        assert database_of(engine).has_row_level_security
        assert len((await engine.sessions.list("a")).items) == 1
