"""A dump restored into a new cluster: the role, its grants and its policies are not part of it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from cognizes.engine import Engine, SetupError
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import binaries
from cognizes.engine.database.migrations import PROTECTION, Migrator
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded

OWNER = "engine_owner"


@pytest.fixture
async def new_cluster() -> AsyncIterator[EmbeddedPostgres]:
    """A server that has never seen the engine."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-restore-"))
    server = EmbeddedPostgres(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        shutil.rmtree(directory)


@pytest.fixture
async def dump(database_url: str) -> str:
    """A dump of a database with rows of the apps a and b."""
    async with Engine.open(database_url) as engine:
        for app in ("a", "b"):
            await engine.sessions.create(app, "u", session_id="s", state={"k": app, "user:k": app})
    pg_dump = [str(binaries() / "pg_dump"), "--no-owner", database_url]
    return (await asyncio.to_thread(subprocess.run, pg_dump, check=True, capture_output=True, text=True)).stdout


async def restore(url: str, dump: str) -> None:
    """Restore as psql does by default: it continues after the errors about the missing role."""
    psql = [str(binaries() / "psql"), "-q", url]
    done = await asyncio.to_thread(subprocess.run, psql, input=dump, check=True, capture_output=True, text=True)
    assert 'role "cognizes_server" does not exist' in done.stderr


def migrator(connection: Any) -> Migrator:
    return Migrator(connection, schema="public", embedding_dimension=256)


async def expect_isolation(url: str) -> None:
    async with Engine.open(url, auth="required") as engine:
        assert database_of(engine).has_row_level_security
        guarded = Guarded(engine)
        async with guarded.client(await guarded.key("a")) as ada:
            listed = await ada.get("/api/sessions", params={"app_name": "a"})
            assert [session["app_name"] for session in listed.json()["sessions"]] == ["a"], listed.text
        connection = await asyncpg.connect(url)
        await connection.execute("SET ROLE cognizes_server")
        assert await connection.fetch("SELECT app_name FROM threads") == []
        await connection.close()


async def test_the_start_of_a_server_with_keys_rebuilds_what_is_missing(
    new_cluster: EmbeddedPostgres, dump: str
) -> None:
    await restore(new_cluster.url, dump)
    connection = await asyncpg.connect(new_cluster.url)
    assert await migrator(connection).pending() == [PROTECTION]
    await expect_isolation(new_cluster.url)
    assert await migrator(connection).pending() == []
    # Only the policy of one table is missing: its rows would be visible to every tenant.
    await connection.execute("DROP POLICY tenant ON threads")
    assert await migrator(connection).migrate() == [PROTECTION]
    assert await connection.fetchval("SELECT count(*) FROM pg_policy WHERE polrelid = 'threads'::regclass") == 2
    await connection.close()


async def test_without_the_right_to_create_roles_the_server_refuses_to_start_until_migrate_ran(
    new_cluster: EmbeddedPostgres, dump: str
) -> None:
    superuser = await asyncpg.connect(new_cluster.url)
    await superuser.execute(
        f"CREATE ROLE {OWNER} LOGIN; CREATE EXTENSION vector; GRANT CREATE ON SCHEMA public TO {OWNER}"
    )
    name = urlsplit(new_cluster.url).username
    url = new_cluster.url.replace(f"//{name}@", f"//{OWNER}@")
    await restore(url, dump)
    with pytest.raises(
        SetupError, match=r"authentication is on, but row level security cannot be used.*cognizes migrate"
    ):
        await Engine.open(url, auth="required").start()
    async with Engine.open(url, auth="required", row_level_security="off") as engine:
        assert not database_of(engine).has_row_level_security
    assert PROTECTION in await migrator(superuser).migrate()
    await superuser.close()
    await expect_isolation(url)


async def test_a_missing_policy_is_a_refusal_where_the_engine_cannot_create_it(database_url: str) -> None:
    """The engine's user does not own the tables, so it cannot repair them; the role and its grants are there."""
    owner = await asyncpg.connect(database_url)
    user = f"other_{owner.get_server_pid()}"
    try:
        await owner.execute(
            f"DROP POLICY tenant ON events; CREATE ROLE {user} LOGIN;"
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}; GRANT cognizes_server TO {user} WITH INHERIT FALSE"
        )
        url = database_url.replace(f"//{urlsplit(database_url).username}@", f"//{user}@")
        with pytest.raises(SetupError, match=r"the policies are missing.*cognizes migrate"):
            await Engine.open(url, auth="required").start()
    finally:
        await owner.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
        await owner.close()
