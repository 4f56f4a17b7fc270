"""Webhooks over REST: for administrators of the app alone, and with secrets that are shown once."""

from __future__ import annotations

import pytest

from cognizes.engine.access import Permission
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded, new_thread

ADMIN = (Permission.READ, Permission.WRITE, Permission.ADMIN)
SHOP = {"app_name": "shop"}
PUBLIC = "https://8.8.8.8/hook"


async def test_only_administrators_of_the_app_see_and_change_its_webhooks(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("shop", permissions=ADMIN)) as admin:
        created = await admin.post("/api/webhooks", json={**SHOP, "url": PUBLIC})
        assert created.status_code == 201, created.text
        webhook = created.json()
        secret = webhook.pop("secret")
        place = f"/api/webhooks/{webhook['id']}"
        assert (await admin.get("/api/webhooks", params=SHOP)).json() == {"webhooks": [webhook]}
        thread = await new_thread(admin, "shop")
        run = (await admin.post(f"/api/sessions/{thread}/runs", json={})).json()["id"]
        assert (await admin.post(f"/api/sessions/{thread}/runs/{run}/finish")).status_code == 200
        await database_of(guarded.engine).pool.execute("UPDATE webhook_deliveries SET dead_at = now()")
        (dead,) = (await admin.get("/api/webhooks/dead-letters", params=SHOP)).json()["dead_letters"]
        assert (dead["run_id"], dead["payload"]["data"]["status"]) == (run, "completed")
        again = f"/api/webhooks/dead-letters/{dead['id']}/redeliver"
        for key, app, status in (
            (await guarded.key("shop"), "shop", 403),
            (await guarded.key("bank", permissions=ADMIN), "shop", 403),
            (await guarded.key("bank", permissions=ADMIN), "bank", 404),
        ):
            async with guarded.client(key) as other:
                parameters = {"app_name": app}
                assert (await other.delete(place, params=parameters)).status_code == status
                assert (await other.post(place + "/rotate", params=parameters)).status_code == status
                assert (await other.post(again, params=parameters)).status_code == status
                assert (await other.post("/api/webhooks", json={**SHOP, "url": PUBLIC})).status_code == 403
                listed = await other.get("/api/webhooks", params=parameters)
                assert listed.status_code == 403 or listed.json() == {"webhooks": []}
                letters = await other.get("/api/webhooks/dead-letters", params=parameters)
                assert letters.status_code == 403 or letters.json()["dead_letters"] == []
        rotated = await admin.post(place + "/rotate", params=SHOP)
        assert rotated.json()["secret"] != secret
        assert (await admin.post(again, params=SHOP)).status_code == 204
        assert (await admin.post(again, params=SHOP)).status_code == 404
        assert (await admin.delete(place, params=SHOP)).status_code == 204
        assert (await admin.delete(place, params=SHOP)).status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "https://127.0.0.1/"},
        {"url": "https://[::1]/"},
        {"url": "http://8.8.8.8/"},
        {"url": "nothing"},
        {"url": PUBLIC, "events": ["cancelled"]},
        {"url": PUBLIC, "events": []},
        {},
    ],
)
async def test_wrong_values_are_422_and_create_nothing(guarded: Guarded, wrong: dict[str, object]) -> None:
    async with guarded.client(await guarded.key("shop", permissions=ADMIN)) as admin:
        assert (await admin.post("/api/webhooks", json={**SHOP, **wrong})).status_code == 422
        assert (await admin.get("/api/webhooks", params=SHOP)).json() == {"webhooks": []}
