"""Tokens and cost over REST, and who may read and write them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from cognizes.engine import Engine, TokenUsage
from cognizes.engine.access import Permission
from cognizes.engine.api.main import create_app
from tests.integration.access.conftest import Guarded, guarded, new_thread

__all__ = ["guarded"]


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(engine=engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as opened:
        yield opened


async def test_every_route_reads_the_same_numbers(engine: Engine, client: httpx.AsyncClient) -> None:
    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.create(session, run_id="a/b", running=True)
    body = {"id": "u1", "model": "m", "input_tokens": 5, "output_tokens": 3, "run_id": run.id}
    thread = f"/api/sessions/{session.thread_id}"
    assert (await client.post(f"{thread}/usage", json=body)).json() == {"is_new": True}
    assert (await client.post(f"{thread}/usage", json=body)).json() == {"is_new": False}
    await engine.usage.record(session.thread_id, TokenUsage("n", 10, 1), usage_id="u2")
    of_thread = (await client.get(f"{thread}/usage")).json()
    assert of_thread == {
        "models": [
            {
                "model": "m",
                "calls": 1,
                "input_tokens": 5,
                "output_tokens": 3,
                "total_tokens": 8,
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "reasoning_tokens": 0,
                "cost": None,
            },
            of_thread["models"][1],
        ],
        "calls": 2,
        "input_tokens": 15,
        "output_tokens": 4,
        "total_tokens": 19,
        "cost": None,
        "unpriced_models": ["m", "n"],
    }
    for path in (f"{thread}/runs/a/b/usage", "/api/runs/a/b/usage"):
        found = await client.get(path)
        assert found.json()["total_tokens"] == 8, found.text
    for query in ({"user_id": "ada"}, {}, {"since": "2020-01-01T00:00:00Z"}):
        found = await client.get("/api/usage", params={"app_name": "shop", **query})
        assert found.json()["total_tokens"] == 19, found.text
    assert (await client.get("/api/usage", params={"app_name": "shop", "user_id": "bob"})).json()["models"] == []


async def test_bad_input_is_named(engine: Engine, client: httpx.AsyncClient) -> None:
    session = await engine.sessions.create("shop", "ada")
    thread = f"/api/sessions/{session.thread_id}"
    assert (await client.get("/api/usage")).status_code == 422
    naive = await client.get("/api/usage", params={"app_name": "shop", "since": "2026-01-01T00:00:00"})
    assert (naive.status_code, "no time zone" in naive.text) == (422, True)
    swapped = {"app_name": "shop", "since": "2026-02-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
    assert (await client.get("/api/usage", params=swapped)).status_code == 422
    negative = {"id": "u", "model": "m", "input_tokens": -1}
    assert (await client.post(f"{thread}/usage", json=negative)).status_code == 422
    missing = "/api/sessions/00000000-0000-0000-0000-000000000001/usage"
    assert (await client.get(missing)).status_code == 404
    assert (await client.post(missing, json={"id": "u", "model": "m"})).status_code == 404
    assert (await client.get(f"{thread}/runs/none/usage")).status_code == 404


async def test_tenants_and_users_read_only_their_own_and_end_users_write_none(guarded: Guarded) -> None:
    admin = guarded.client(await guarded.key(permissions=(*Permission,)))
    shop, ada = await guarded.key("shop"), await guarded.key("shop", user_id="ada")
    thread = await new_thread(admin, "shop", "ada")
    body = {"id": "u", "model": "m", "input_tokens": 5}
    async with guarded.client(ada) as as_ada, guarded.client(shop) as as_shop:
        forged = await as_ada.post(f"/api/sessions/{thread}/usage", json=body)
        assert forged.status_code == 403
        assert (await as_shop.post(f"/api/sessions/{thread}/usage", json=body)).status_code == 201
        own = await as_ada.get("/api/usage", params={"app_name": "shop", "user_id": "ada"})
        assert own.json()["input_tokens"] == 5
        assert (await as_ada.get(f"/api/sessions/{thread}/usage")).json()["input_tokens"] == 5
        for query in ({"app_name": "shop"}, {"app_name": "shop", "user_id": "bob"}):
            assert (await as_ada.get("/api/usage", params=query)).status_code == 403
        assert (await as_shop.get("/api/usage", params={"app_name": "shop"})).json()["input_tokens"] == 5
    async with guarded.client(await guarded.key("bank")) as as_bank:
        assert (await as_bank.get("/api/usage", params={"app_name": "shop"})).status_code == 403
        assert (await as_bank.get(f"/api/sessions/{thread}/usage")).status_code == 404
        assert (await as_bank.post(f"/api/sessions/{thread}/usage", json=body)).status_code == 404
    await admin.aclose()
