"""Row level security through PgBouncer (transaction pooling): an owner that is no superuser, and a tenants' user.

The tests of the REST API for sessions, by a caller of one app, and two tenants apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cognizes.engine import Engine, NotFoundError
from cognizes.engine.cli.doctor import SERVER_CHECKS
from cognizes.engine.database.tenancy import acting_for
from tests.asgi_streams import AsgiStream
from tests.engine_parts import database_of
from tests.integration.access.conftest import READ_WRITE, Guarded, new_thread
from tests.integration.api.test_sessions_api import *  # noqa: F403 - the same tests, for this caller

pytestmark = pytest.mark.server

_ROLES = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cognizes_server') THEN
        CREATE ROLE cognizes_server NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'cognizes_owner') THEN
        CREATE ROLE cognizes_owner LOGIN;
        CREATE ROLE cognizes_tenant LOGIN IN ROLE cognizes_server;
    END IF;
    EXECUTE format('GRANT CREATE ON DATABASE %I TO cognizes_owner', current_database());
END $$;
CREATE EXTENSION vector;
ALTER SCHEMA public OWNER TO cognizes_owner;
"""


def _as(user: str, url: str) -> str:
    """The same server for another user."""
    assert url.count("//postgres@") == 1
    return url.replace("//postgres@", f"//{user}@")


@pytest.fixture
async def engine(debian_server: Any, server_url: str) -> AsyncIterator[Engine]:
    """Takes the place of the engine on the embedded server."""
    connection = await asyncpg.connect(server_url)
    await connection.execute(_ROLES)
    await connection.close()
    pooled = debian_server.pgbouncer_url
    async with Engine.open(
        _as("cognizes_owner", pooled),
        listen_url=_as("cognizes_owner", server_url),
        tenant_url=_as("cognizes_tenant", pooled),
        auth="required",
    ) as opened:
        assert database_of(opened).has_row_level_security
        yield opened


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    guarded = Guarded(engine)
    async with guarded.client(await guarded.key("shop", permissions=READ_WRITE)) as opened:
        yield opened


async def test_who_is_who(engine: Engine) -> None:
    assert await database_of(engine).pool.fetchval("SELECT current_user") == "cognizes_owner"
    async with database_of(engine).connection(for_tenants=True) as tenant:
        assert await tenant.fetchval("SELECT current_user") == "cognizes_tenant"
        assert await tenant.fetchval("SELECT count(*) FROM threads") == 0


async def test_the_doctor_may_look_at_less(engine: Engine) -> None:
    finding = await SERVER_CHECKS["extension pg_cron"](database_of(engine), engine.settings)
    assert "superuser" in finding.remedy


async def test_two_tenants_at_once_on_pooled_connections(engine: Engine) -> None:
    """Each creates, appends, changes, remembers and reads at the same time, and finds nothing of the other."""
    guarded = Guarded(engine)
    keys = {app: await guarded.key(app, permissions=READ_WRITE) for app in ("a", "b")}
    threads = dict(
        zip(keys, await asyncio.gather(*(_live(guarded, app, key) for app, key in keys.items())), strict=True)
    )
    async with guarded.client(keys["b"]) as bob:
        for path in ("", "/events", "/state", "/runs"):
            assert (await bob.get(f"/api/sessions/{threads['a']}{path}")).status_code == 404
    with acting_for(["b"]):
        with pytest.raises(NotFoundError):
            await engine.sessions.store.get_thread(threads["a"])
        async with aclosing(engine.feed.events(UUID(threads["a"]))) as events:
            with pytest.raises(NotFoundError):
                await anext(events)
        assert await engine.memory.recall("secret", app="a", user="ada") == []
    url = f"/ws/events/{threads['a']}?after=0"
    async with AsgiStream(guarded.app, url, websocket=True, authorization=f"Bearer {keys['a']}") as own:
        assert b'"sequence_num"' in (await own.next() or b"")


async def _live(guarded: Guarded, app: str, key: str) -> str:
    async with guarded.client(key) as client:
        thread = await new_thread(client, app)
        session = f"/api/sessions/{thread}"
        whose = {"app_name": app, "user_id": "ada"}
        said = {"author": "user", "event_type": "user_message", "content": {"text": f"secret of {app}"}}
        for method, path, body in [
            *[("POST", f"{session}/events", said)] * 10,
            ("POST", f"{session}/runs", {"start": True, "run_id": "r"}),
            ("POST", f"{session}/runs/r/finish", None),
            ("PATCH", session, {"title": f"title of {app}"}),
            ("PATCH", f"{session}/state", {"delta": {"k": 1, "user:k": 1, "app:k": 1}}),
            ("POST", f"{session}/fork", {}),
            ("POST", f"/contexts/{thread}/messages", {"role": "user", "content": "hello"}),
            ("GET", f"/contexts/{thread}/metadata", None),
            ("GET", f"/conversations/{thread}/messages", None),
            ("GET", f"/api/sessions?app_name={app}&user_id=ada", None),
            ("POST", "/memory", {**whose, "memories": [{"source_id": "1", "text": f"secret of {app}"}]}),
            ("PUT", "/memory/long-term", {**whose, "key": "k", "value": app}),
        ]:
            answer = await client.request(method, path, json=body)
            assert answer.is_success, f"{method} {path}: {answer.text}"
        recalled = await client.post("/memory/recall", json={**whose, "query": "secret"})
        assert f"secret of {app}" in recalled.text
        events = (await client.get(f"{session}/events")).json()["events"]
        assert [event["sequence_num"] for event in events] == list(range(1, len(events) + 1))
    return thread
