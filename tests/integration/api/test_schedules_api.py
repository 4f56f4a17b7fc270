"""Schedules over REST."""

from __future__ import annotations

import httpx
import pytest

pytestmark = pytest.mark.pgbouncer
NEW = {"app_name": "shop", "user_id": "ada", "handler": "report"}


async def test_a_schedule_from_its_creation_to_its_deletion(client: httpx.AsyncClient) -> None:
    created = await client.post("/api/schedules", json={**NEW, "cron": "0 8 * * *", "timezone": "Asia/Tokyo"})
    assert created.status_code == 201, created.text
    schedule = created.json()
    place = f"/api/schedules/{schedule['id']}"
    assert [moment[10:16] for moment in schedule["next_times"]] == ["T23:00"] * 5
    assert len((await client.get(place, params={"count": 3, "app_name": "shop"})).json()["next_times"]) == 3
    assert (await client.get("/api/schedules")).json() == {"schedules": [schedule], "next_cursor": None}
    assert (await client.get(place, params={"app_name": "other"})).status_code == 404
    assert (await client.post(place + "/pause")).json()["next_times"] == []
    assert (await client.post(place + "/resume")).json() == schedule
    assert (await client.get(place + "/firings")).json() == {"firings": []}
    assert (await client.delete(place, params={"app_name": "other"})).status_code == 404
    assert (await client.delete(place)).status_code == 204
    assert (await client.get(place)).status_code == 404


async def test_an_interval_in_a_thread(client: httpx.AsyncClient) -> None:
    thread = (await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})).json()["thread_id"]
    created = await client.post("/api/schedules", json={**NEW, "every_seconds": 90, "thread_id": thread})
    assert (created.json()["every_seconds"], created.json()["thread_id"]) == (90, thread)
    wrong = await client.post(
        "/api/schedules", json={**NEW, "user_id": "eve", "every_seconds": 90, "thread_id": thread}
    )
    assert (wrong.status_code, wrong.json()["detail"]) == (
        404,
        f"the user 'eve' of the app 'shop' has no thread {thread}",
    )


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cron": "soon"}, "invalid cron expression 'soon'"),
        ({"cron": "0 8 * * *", "timezone": "Mars"}, "unknown time zone 'Mars'"),
        ({"cron": "0 8 * * *", "every_seconds": 5}, "either cron or every_seconds"),
        ({}, "either cron or every_seconds"),
        ({"every_seconds": 0.1}, "greater than or equal to 1"),
        ({"cron": "0 8 * * *", "catch_up": "some"}, "skip"),
        ({"cron": "0 8 * * *", "handler": " "}, "handler is blank"),
    ],
)
async def test_wrong_values_are_refused(client: httpx.AsyncClient, wrong: dict[str, object], text: str) -> None:
    answer = await client.post("/api/schedules", json={**NEW, **wrong})
    assert answer.status_code == 422
    assert text in answer.json()["detail"]
    assert (await client.get("/api/schedules")).json()["schedules"] == []


async def test_a_second_schedule_of_a_name_is_a_conflict(client: httpx.AsyncClient) -> None:
    for code in (201, 409):
        answer = await client.post("/api/schedules", json={**NEW, "cron": "0 8 * * *", "name": "daily"})
        assert answer.status_code == code
