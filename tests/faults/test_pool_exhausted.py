"""Two hundred clients on ten connections: they wait or are asked to come back, and nothing stays stuck."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app
from tests.engine_parts import database_of

CLIENTS = 200


def _client(engine: Engine) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=create_app(engine=engine, agents=[]), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=None)


async def test_when_no_connection_becomes_free_every_request_is_answered_503(database_url: str) -> None:
    async with Engine.open(database_url, pool_size=10, pool_timeout=1) as engine, _client(engine) as client:
        session = await engine.sessions.create("a", "u")
        path = f"/api/sessions/{session.thread_id}"
        held = [
            await database_of(engine).pool.acquire(timeout=60) for _ in range(database_of(engine).pool.get_max_size())
        ]
        try:
            answers = await asyncio.gather(*(client.get(path) for _ in range(CLIENTS)))
        finally:
            for connection in held:
                await database_of(engine).pool.release(connection)
        assert {answer.status_code for answer in answers} == {503}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers)
        assert "COGNIZES_POOL_SIZE" in answers[0].json()["detail"]
        assert (await client.get(path)).status_code == 200


async def test_with_a_longer_timeout_every_request_is_served(database_url: str) -> None:
    async with Engine.open(database_url, pool_size=10, pool_timeout=120) as engine, _client(engine) as client:
        session = await engine.sessions.create("a", "u")
        path = f"/api/sessions/{session.thread_id}"

        async def work(number: int) -> list[int]:
            event = {"author": "user", "event_type": "note", "content": {"text": str(number)}}
            answers = [await client.post(f"{path}/events", json=event), await client.get(path)]
            answers.append(await client.get(f"{path}/events", params={"limit": 5}))
            return [answer.status_code for answer in answers]

        done = await asyncio.gather(*(work(number) for number in range(CLIENTS)))
        assert done == [[201, 200, 200]] * CLIENTS
        assert (await client.get(path)).json()["last_sequence"] == CLIENTS


async def test_a_run_of_an_agent_that_cannot_begin_is_answered_503(database_url: str) -> None:
    settings = {"pool_size": 2, "pool_timeout": 0.5, "demo_token_seconds": 0}
    async with Engine.open(database_url, **settings) as engine:
        app = create_app(engine=engine, agents=["demo"])
        await app.state.agents.start()
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        run: dict[str, Any] = {
            "threadId": "t", "runId": "r", "protocolVersion": "1.0", "state": {}, "tools": [], "context": [],
            "forwardedProps": {}, "messages": [{"id": "m", "role": "user", "content": "hello"}],
        }  # fmt: skip
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=None) as client:
            database = database_of(engine)
            async with database.connection(), database.connection():
                refused = await client.post("/agui/demo", json=run)
            assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (503, True)
            assert (await client.get("/api/runs/r")).status_code == 404
            assert "RUN_FINISHED" in (await client.post("/agui/demo", json=run)).text
        await app.state.agents.close()
