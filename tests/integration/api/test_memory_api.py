"""Memory over REST."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.pgbouncer

ADA = {"app_name": "shop", "user_id": "ada"}
BOB = {"app_name": "shop", "user_id": "bob"}


async def recalled(client: httpx.AsyncClient, query: str, **options: Any) -> list[str]:
    answer = await client.post("/api/memory/recall", json={**ADA, "query": query, **options})
    assert answer.status_code == 200, answer.text
    return [hit["text"] for hit in answer.json()["hits"]]


async def test_facts(client: httpx.AsyncClient) -> None:
    fact = {**ADA, "namespace": "preferences", "key": "a/b?c", "value": {"drink": ["tea"]}}
    stored = await client.put("/api/memory/long-term", json=fact)
    assert stored.status_code == 200
    key = {**ADA, "namespace": "preferences", "key": "a/b?c"}
    assert (await client.get("/api/memory/long-term/entry", params=key)).json() == stored.json()
    assert stored.json()["value"] == {"drink": ["tea"]}
    assert (await client.get("/api/memory/long-term", params=ADA)).json()["entries"] == [stored.json()]
    assert (await client.get("/api/memory/long-term", params={**ADA, "namespace": "x"})).json()["entries"] == []
    assert (await client.get("/api/memory/long-term", params=BOB)).json()["entries"] == []
    assert (await client.get("/api/memory/long-term/entry", params={**key, **BOB})).status_code == 404
    assert (await client.delete("/api/memory/long-term/entry", params={**key, **BOB})).status_code == 404
    assert (await client.delete("/api/memory/long-term/entry", params=key)).status_code == 204
    assert (await client.delete("/api/memory/long-term/entry", params=key)).status_code == 404


async def test_episodes(client: httpx.AsyncClient) -> None:
    first = (
        await client.post("/api/memory/episodic", json={**ADA, "summary": "one", "session_id": "s", "id": "e/1"})
    ).json()
    second = (await client.post("/api/memory/episodic", json={**ADA, "summary": "two", "payload": {"a": 1}})).json()
    again = await client.post("/api/memory/episodic", json={**ADA, "summary": "other", "id": "e/1"})
    assert again.json() == first
    assert (await client.get("/api/memory/episodic", params=ADA)).json()["entries"] == [second, first]
    assert (await client.get("/api/memory/episodic", params={**ADA, "session_id": "s"})).json()["entries"] == [first]
    assert (await client.delete("/api/memory/episodic/entry", params={**ADA, "id": "e/1"})).status_code == 204
    assert (await client.delete("/api/memory/episodic/entry", params={**ADA, "id": "e/1"})).status_code == 404


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_an_end_of_the_calendar_is_no_time_of_a_memory(client: httpx.AsyncClient, moment: str) -> None:
    """Programs send these times for "none". A memory with such a time has no age: recall could not rank it."""
    note = {"source_id": "n", "text": "green tea", "created_at": moment}
    for place, body in (
        ("/memory", {"memories": [note]}),
        ("/memory/episodic", {"summary": "s", "created_at": moment}),
    ):
        answer = await client.post(place, json={**ADA, **body})
        assert (answer.status_code, answer.json()["status"]) == (422, 422), answer.text
        assert "created_at" in answer.json()["detail"]
    stored = {"memories": [{**note, "created_at": "0001-01-02T00:00:00Z", "expires_at": "9999-12-31T23:59:59.999999Z"}]}
    assert (await client.post("/memory", json={**ADA, **stored})).status_code == 201
    assert await recalled(client, "green tea", half_life_days=30) == ["green tea"]


async def test_working_memory(client: httpx.AsyncClient) -> None:
    saved = await client.put("/api/memory/working", json={**ADA, "session_id": "s", "variables": {"a": 1}})
    assert saved.status_code == 200
    assert (await client.get("/api/memory/working", params={**ADA, "session_id": "s"})).json() == saved.json()
    assert (await client.get("/api/memory/working", params={**BOB, "session_id": "s"})).status_code == 404


async def test_remember_recall_list_and_forget(client: httpx.AsyncClient) -> None:
    notes = [{"source_id": "1", "text": "green tea \u0000"}, {"source_id": "2", "text": "退款政策"}]
    stored = await client.post("/api/memory", json={**ADA, "memories": notes})
    assert (stored.status_code, stored.json()) == (201, {"stored": 2})
    assert (await client.post("/api/memory", json={**ADA, "memories": notes})).json() == {"stored": 0}
    turn = {"source_id": "t", "text": "tea was said", "session_id": "s", "position": 3, "author": "Ada"}
    await client.post("/api/memory", json={**ADA, "kind": "turn", "memories": [turn]})
    assert (await recalled(client, "退款"))[0] == "退款政策"
    assert await recalled(client, "tea", kinds=["turn"]) == ["tea was said"]
    assert await recalled(client, "tea", user_id="bob") == []
    page = (await client.get("/api/memory", params={**ADA, "limit": 2})).json()
    rest = (await client.get("/api/memory", params={**ADA, "limit": 2, "before": page["next_before"]})).json()
    assert [memory["text"] for memory in page["memories"] + rest["memories"]] == [
        "tea was said",
        "退款政策",
        "green tea \u0000",
    ]
    assert rest["next_before"] is None
    memory_id = rest["memories"][0]["id"]
    assert (await client.delete(f"/api/memory/{memory_id}", params=BOB)).status_code == 404
    assert (await client.delete(f"/api/memory/{memory_id}", params=ADA)).status_code == 204
    assert await recalled(client, "green tea", kinds=["note"]) == []


async def test_a_hit_says_why(client: httpx.AsyncClient) -> None:
    await client.put("/api/memory/long-term", json={**ADA, "key": "drink", "value": "tea"})
    answer = await client.post("/api/memory/recall", json={**ADA, "query": "tea"})
    (hit,) = answer.json()["hits"]
    assert (hit["kind"], hit["text"]) == ("long_term", "drink: tea")
    assert hit["scores"]["bm25"] > 0
    assert 0 < hit["score"] < 1
    assert hit["why"].startswith("contains tea (")
    above = await client.post("/api/memory/recall", json={**ADA, "query": "tea", "min_score": 0.99})
    assert above.json()["hits"] == []


async def test_what_is_wrong_is_said(client: httpx.AsyncClient) -> None:
    invalid: list[dict[str, Any]] = [{"k": 0}, {"kinds": ["y"]}, {"min_score": 2}]
    for body in ({**ADA}, {"query": "x"}, *({**ADA, "query": "x", **options} for options in invalid)):
        assert (await client.post("/api/memory/recall", json=body)).status_code == 422
    naive = {**ADA, "query": "x", "since": "2026-01-01T00:00:00"}
    assert "time zone" in (await client.post("/api/memory/recall", json=naive)).json()["detail"]
    assert (await client.delete("/api/memory/x", params=ADA)).status_code == 422
    assert (await client.get("/api/memory/long-term", params={"app_name": "shop"})).status_code == 422
    assert (await client.get("/api/memory/long-term", params={**ADA, "user_id": " "})).status_code == 422


async def test_the_routes_stand_without_their_prefix_too(client: httpx.AsyncClient) -> None:
    stored = await client.put("/memory/long-term", json={**ADA, "key": "drink", "value": "tea"})
    assert (await client.get("/api/memory/long-term", params=ADA)).json()["entries"] == [stored.json()]
