"""Schedules belong to an app: other tenants and end users neither see nor change them."""

from __future__ import annotations

from cognizes.engine.access import Permission
from tests.integration.access.conftest import Guarded, new_thread

NEW = {"app_name": "shop", "user_id": "ada", "handler": "report", "cron": "0 8 * * *"}


async def test_a_key_of_another_app_finds_no_schedule(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("shop")) as client:
        created = await client.post("/api/schedules", json=NEW)
        assert created.status_code == 201, created.text
        place = f"/api/schedules/{created.json()['id']}"
        thread = await new_thread(client, "shop")
        assert (await client.get(place)).status_code == 403, "a key of some apps names the app"
        assert (await client.get(place, params={"app_name": "shop"})).status_code == 200
    async with guarded.client(await guarded.key("bank")) as other:
        assert (await other.get("/api/schedules", params={"app_name": "bank"})).json()["schedules"] == []
        assert (await other.post("/api/schedules", json=NEW)).status_code == 403
        stolen = await other.post("/api/schedules", json={**NEW, "app_name": "bank", "thread_id": thread})
        assert stolen.status_code == 404
        for app, status in (("bank", 404), ("shop", 403)):
            parameters = {"app_name": app}
            assert (await other.get(place, params=parameters)).status_code == status
            assert (await other.get(place + "/firings", params=parameters)).status_code == status
            assert (await other.post(place + "/pause", params=parameters)).status_code == status
            assert (await other.post(place + "/resume", params=parameters)).status_code == status
            assert (await other.delete(place, params=parameters)).status_code == status
    async with guarded.client(await guarded.key("shop", user_id="ada")) as user:
        parameters = {"app_name": "shop", "user_id": "ada"}
        assert (await user.get("/api/schedules", params=parameters)).status_code == 403
        assert (await user.post("/api/schedules", json=NEW)).status_code == 403
    async with guarded.client(await guarded.key("shop", permissions=(Permission.READ,))) as reader:
        assert (await reader.get(place, params={"app_name": "shop"})).status_code == 200
        assert (await reader.delete(place, params={"app_name": "shop"})).status_code == 403
