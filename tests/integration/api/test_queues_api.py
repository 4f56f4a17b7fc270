"""Queues over REST: limits, and runs with a queue and a priority."""

from __future__ import annotations

import httpx
import pytest


async def test_limits_are_set_shown_and_deleted(client: httpx.AsyncClient) -> None:
    answer = await client.put("/api/queues/team/gpu", json={"concurrency": 2, "rate": 5, "per_seconds": 60})
    expected = {"name": "team/gpu", "concurrency": 2, "rate": 5, "per_seconds": 60, "running": 0, "pending": 0}
    assert answer.json() == expected
    assert (await client.get("/api/queues")).json() == {"queues": [expected]}
    assert (await client.delete("/api/queues/team/gpu")).status_code == 204
    assert (await client.delete("/api/queues/team/gpu")).status_code == 404


@pytest.mark.parametrize(
    "wrong", [{}, {"concurrency": -1}, {"rate": 0}, {"rate": 1, "per_seconds": 0}, {"rate": "many"}, {"limit": 1}]
)
async def test_wrong_limits_are_refused(client: httpx.AsyncClient, wrong: dict[str, object]) -> None:
    assert (await client.put("/api/queues/gpu", json=wrong)).status_code == 422
    assert (await client.get("/api/queues")).json() == {"queues": []}


async def test_a_run_with_a_queue_and_a_priority(client: httpx.AsyncClient) -> None:
    thread = (await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})).json()["thread_id"]
    place = f"/api/sessions/{thread}/runs"
    run = (await client.post(place, json={"handler": "train", "queue": "gpu", "priority": 5})).json()
    assert (run["queue"], run["priority"]) == ("gpu", 5)
    assert (await client.post(place, json={"handler": "train", "priority": 5000})).status_code == 422
    assert (await client.post(place, json={"handler": "train", "queue": ""})).status_code == 422
