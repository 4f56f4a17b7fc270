"""API keys: what opens, what does not, and when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from cognizes.engine import DatabaseError, Engine, InvalidInputError, NotFoundError
from cognizes.engine.access import Permission
from cognizes.engine.access.authenticator import KEY_CACHE_SECONDS, ApiKeys, hash_secret
from tests.engine_parts import database_of, supervisor_of
from tests.integration.access.conftest import READ_WRITE, Guarded, key_id, new_thread


async def until(condition: Callable[[], Any]) -> None:
    """Waits for something that happens in its own time."""
    async with asyncio.timeout(60):
        while True:
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
            await asyncio.sleep(0.02)


async def test_a_request_without_a_key_is_401_and_says_how_to_get_one(guarded: Guarded) -> None:
    async with guarded.client() as anonymous:
        for answer in (
            await anonymous.post("/api/sessions", json={"app_name": "a", "user_id": "u"}),
            await anonymous.get("/api/sessions", params={"app_name": "a"}),
            await anonymous.get("/api/access/me"),
        ):
            assert answer.status_code == 401, answer.text
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "cognizes keys create" in answer.json()["detail"]


@pytest.mark.parametrize(
    "key", ["cgz_", "cgz_abcdefghijkl_" + "x" * 43, "cgz_abcdefghijkl_short", "nonsense", "a.b.c", "cgz_\x00"]
)
async def test_a_wrong_key_is_401(guarded: Guarded, key: str) -> None:
    await guarded.key("a")
    async with guarded.client() as client:
        answer = await client.get("/api/access/me", headers={"X-API-Key": key})
    assert answer.status_code == 401


async def test_the_right_id_with_another_secret_is_401(guarded: Guarded) -> None:
    key = await guarded.key("a")
    async with guarded.client(key) as client:
        assert (await client.get("/api/access/me")).status_code == 200
    forged = key[:-43] + "A" * 43
    async with guarded.client(forged) as client:
        assert (await client.get("/api/access/me")).status_code == 401
    async with guarded.client(key) as client:
        assert (await client.get("/api/access/me")).status_code == 200


async def test_health_and_documents_need_no_key(guarded: Guarded) -> None:
    async with guarded.client() as anonymous:
        for path in ("/health", "/version", "/openapi.json", "/docs"):
            assert (await anonymous.get(path)).status_code == 200, path


async def test_health_gives_reasons_only_to_callers_with_a_key(guarded: Guarded) -> None:
    async def fail() -> None:
        raise DatabaseError("the secret reason")

    supervisor = supervisor_of(guarded.engine)
    loop = supervisor.start("failing-task", fail, longest_pause=0.1)
    try:
        async with guarded.client() as anonymous, guarded.client(await guarded.key("a")) as known:
            await until(lambda: supervisor.failures)
            (hidden,) = (await anonymous.get("/health")).json()["background"]["failing"]
            (shown,) = (await known.get("/health")).json()["background"]["failing"]
    finally:
        await loop.stop()
    assert (hidden["name"], hidden["error"]) == ("failing-task", "failing")
    assert shown["name"] == "failing-task"
    assert "the secret reason" in shown["error"]


async def test_health_hides_the_reason_of_an_unavailable_database(guarded: Guarded) -> None:
    async with guarded.client() as anonymous, guarded.client(await guarded.key("a")) as known:
        assert (await known.get("/api/access/me")).status_code == 200
        await database_of(guarded.engine).close()
        hidden, shown = await anonymous.get("/health"), await known.get("/health")
    assert (hidden.status_code, hidden.json()["database"]) == (503, "unavailable")
    assert shown.status_code == 503
    assert shown.json()["database"] not in ("ok", "unavailable")


async def test_a_key_in_a_url_opens_nothing(guarded: Guarded) -> None:
    key = await guarded.key("a")
    async with guarded.client() as anonymous:
        for name in ("key", "api_key", "token", "access_token", "authorization", "ticket"):
            assert (await anonymous.get("/api/access/me", params={name: key})).status_code == 401


async def test_the_database_has_a_hash_and_no_secret(guarded: Guarded) -> None:
    key = await guarded.key("a")
    row = await database_of(guarded.engine).pool.fetchrow("SELECT * FROM api_keys")
    assert row["secret_hash"] == hash_secret(key.split("_", 2)[2])
    assert key.split("_", 2)[2] not in str(dict(row))


async def test_secrets_are_never_logged(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    key = await guarded.key("a")
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    with caplog.at_level(logging.DEBUG):
        for text in (key, wrong):
            async with guarded.client(text) as client:
                ticket = (await client.post("/api/access/tickets")).json().get("ticket", "-")
                await client.get("/api/access/me", params={"ticket": ticket})
                await client.get("/api/sessions", params={"app_name": "other"})
        async with guarded.client() as anonymous:
            await anonymous.get("/api/access/me", params={"ticket": ticket})
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("cognizes")]
    assert any("/api/access/me" in line for line in ours)
    for secret in (key.split("_", 2)[2], wrong.split("_", 2)[2], ticket):
        assert secret == "-" or not any(secret in line for line in ours)


async def test_permissions(guarded: Guarded) -> None:
    reading = await guarded.key("a", permissions=(Permission.READ,))
    writing = await guarded.key("a", permissions=(Permission.WRITE,))
    async with guarded.client(writing) as writer, guarded.client(reading) as reader:
        thread = await new_thread(writer, "a")
        assert (await reader.get(f"/api/sessions/{thread}")).status_code == 200
        assert (await writer.get(f"/api/sessions/{thread}")).status_code == 403
        refused = await reader.patch(f"/api/sessions/{thread}", json={"title": "mine"})
        assert refused.status_code == 403
        assert "write" in refused.json()["detail"]


async def test_a_foreign_thread_is_not_there_and_a_foreign_app_is_refused(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("a")) as ada, guarded.client(await guarded.key("b")) as bob:
        thread = await new_thread(ada, "a")
        for path in (f"/api/sessions/{thread}", f"/api/sessions/{thread}/events", f"/api/debug/threads/{thread}/state"):
            assert (await ada.get(path)).status_code == 200
            foreign = await bob.get(path)
            unknown = await bob.get(path.replace(thread, "00000000-0000-4000-8000-000000000000"))
            assert foreign.status_code == unknown.status_code == 404
            assert foreign.json()["detail"].replace(thread, "") == unknown.json()["detail"].replace(
                "00000000-0000-4000-8000-000000000000", ""
            )
        assert (await bob.get("/api/sessions", params={"app_name": "a"})).status_code == 403
        assert (await bob.post("/api/sessions", json={"app_name": "a", "user_id": "u"})).status_code == 403


async def test_a_key_of_one_user_sees_nothing_of_another(guarded: Guarded) -> None:
    async with (
        guarded.client(await guarded.key("a", user_id="ada")) as ada,
        guarded.client(await guarded.key("a", user_id="bob")) as bob,
        guarded.client(await guarded.key("a")) as backend,
    ):
        thread = await new_thread(ada, "a", "ada")
        assert (await backend.get(f"/api/sessions/{thread}")).status_code == 200
        assert (await bob.get(f"/api/sessions/{thread}")).status_code == 404
        assert (await bob.get("/api/sessions", params={"app_name": "a", "user_id": "ada"})).status_code == 403
        assert (await bob.get("/api/sessions", params={"app_name": "a"})).status_code == 403
        assert (await bob.get("/api/sessions", params={"app_name": "a", "user_id": "bob"})).json()["sessions"] == []
        assert (await bob.post("/api/sessions", json={"app_name": "a", "user_id": "ada"})).status_code == 403


async def test_an_expired_key_is_401(guarded: Guarded) -> None:
    _, key = await guarded.engine.access.keys.create(
        permissions=READ_WRITE, app_names=["a"], expires_at=datetime.now(UTC) + timedelta(hours=1)
    )
    async with guarded.client(key) as client:
        assert (await client.get("/api/access/me")).status_code == 200
        await database_of(guarded.engine).pool.execute("UPDATE api_keys SET expires_at = now() - interval '1 second'")
        await until(lambda: _is_refused(client))


async def _is_refused(client: httpx.AsyncClient) -> bool:
    return (await client.get("/api/access/me")).status_code == 401


async def test_a_revoked_key_is_refused_by_the_next_request(guarded: Guarded) -> None:
    key = await guarded.key("a")
    async with guarded.client(key) as client:
        assert (await client.get("/api/access/me")).status_code == 200
        await guarded.engine.access.keys.revoke(key_id(key))
        assert (await client.get("/api/access/me")).status_code == 401


@pytest.fixture
async def other_engine(database_url: str) -> AsyncIterator[Engine]:
    """Another process, as far as the first one can tell."""
    async with Engine.open(database_url, auth="required") as engine:
        yield engine


async def test_a_key_revoked_elsewhere_is_dropped_from_the_cache(
    guarded: Guarded, other_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cache entry never expires: only the notification of the revocation can remove it.
    monkeypatch.setattr("cognizes.engine.access.authenticator.KEY_CACHE_SECONDS", float("inf"))
    key = await guarded.key("a")
    here = guarded.engine.access.keys
    assert await here.check(key) is not None
    await other_engine.access.keys.revoke(key_id(key))
    await until(lambda: _is_gone(here, key))


async def _is_gone(keys: ApiKeys, key: str) -> bool:
    return await keys.check(key) is None


async def test_a_look_up_that_a_revocation_overtakes_is_not_cached(guarded: Guarded) -> None:
    key = await guarded.key("a")
    database = database_of(guarded.engine)
    keys = ApiKeys(_Slow(database, lambda: keys.invalidate(key_id(key))), listener=SimpleNamespace(is_running=True))  # type: ignore[arg-type]
    # The row was read before the revocation, so this one request may pass; it must not be cached.
    assert await keys.check(key) is not None
    await database.pool.execute("UPDATE api_keys SET revoked_at = now()")
    assert await keys.check(key) is None


async def test_a_revocation_that_overtakes_a_look_up_wins_at_once(guarded: Guarded) -> None:
    key = await guarded.key("a")
    database = database_of(guarded.engine)

    async def revoke() -> None:
        if await database.pool.fetchval("SELECT revoked_at FROM api_keys") is None:
            await database.pool.execute("UPDATE api_keys SET revoked_at = now()")
            keys.invalidate(key_id(key))

    class Overtaken:
        async def fetch_row(self, *arguments: Any) -> Any:
            row = await database.fetch_row(*arguments)
            await revoke()
            return row

    keys = ApiKeys(Overtaken(), listener=SimpleNamespace(is_running=True))  # type: ignore[arg-type]
    assert await keys.check(key) is None


class _Slow:
    """A database whose answers arrive after the news."""

    def __init__(self, database: Any, news: Callable[[], None]) -> None:
        self._database = database
        self._news = news

    async def fetch_row(self, *arguments: Any) -> Any:
        row = await self._database.fetch_row(*arguments)
        self._news()
        return row


async def test_without_a_listener_no_key_is_cached(guarded: Guarded) -> None:
    key = await guarded.key("a")
    uncached = ApiKeys(database_of(guarded.engine), listener=SimpleNamespace(is_running=False))
    assert await uncached.check(key) is not None
    await database_of(guarded.engine).pool.execute("UPDATE api_keys SET revoked_at = now()")
    assert await uncached.check(key) is None


async def test_a_key_is_cached_for_a_short_time_only(guarded: Guarded) -> None:
    key = await guarded.key("a")
    now = 0.0
    keys = ApiKeys(database_of(guarded.engine), listener=SimpleNamespace(is_running=True), clock=lambda: now)
    assert await keys.check(key) is not None
    await database_of(guarded.engine).pool.execute("UPDATE api_keys SET revoked_at = now()")
    assert await keys.check(key) is not None
    now += KEY_CACHE_SECONDS + 1
    assert await keys.check(key) is None


async def test_rotation_gives_the_same_rights_and_ends_the_old_key(guarded: Guarded) -> None:
    old = await guarded.key("a", "b", permissions=(Permission.READ,), user_id="ada")
    key, new = await guarded.engine.access.keys.rotate(key_id(old))
    assert (key.app_names, key.permissions, key.user_id) == ({"a", "b"}, {Permission.READ}, "ada")
    async with guarded.client(old) as before, guarded.client(new) as after:
        assert (await before.get("/api/access/me")).status_code == 401
        assert (await after.get("/api/access/me")).json()["app_names"] == ["a", "b"]
    with pytest.raises(InvalidInputError):
        await guarded.engine.access.keys.rotate(key_id(old))
    graced, _ = await guarded.engine.access.keys.rotate(key.id, grace=timedelta(hours=1))
    async with guarded.client(new) as still:
        assert (await still.get("/api/access/me")).status_code == 200
    assert graced.id != key.id


async def test_the_last_use_is_written(guarded: Guarded) -> None:
    used, unused = await guarded.key("a"), await guarded.key("a")
    async with guarded.client(used) as client:
        await client.get("/api/access/me")
    found = {key.id: key.last_used_at for key in await guarded.engine.access.keys.list()}
    assert found[key_id(used)] is not None
    assert found[key_id(unused)] is None


async def test_keys_that_make_no_sense_are_refused(guarded: Guarded) -> None:
    keys = guarded.engine.access.keys
    with pytest.raises(InvalidInputError):
        await keys.create(permissions=[], app_names=["a"])
    with pytest.raises(InvalidInputError):
        await keys.create(permissions=READ_WRITE, app_names=[])
    with pytest.raises(NotFoundError):
        await keys.revoke("unknown")


async def test_without_authentication_no_credential_is_needed(engine: Engine) -> None:
    open_to_all = Guarded(engine)
    async with open_to_all.client() as anyone:
        assert (await anyone.get("/api/access/me")).json()["name"] == "anyone"
        await new_thread(anyone, "a")


async def test_a_path_makes_no_lines_in_the_log(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="cognizes.engine.access")
    async with guarded.client() as client:
        await client.get("/api/sessions/a%0AERROR%20forged%0D%1B%5B2J")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "cognizes.engine.access"]
    assert "/api/sessions/a%0AERROR forged%0D%1B[2J 401" in line
