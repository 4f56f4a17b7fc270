"""Export and erasure of a user over REST: for administrators of the app, audited without the name of the user."""

from __future__ import annotations

import json

from cognizes.engine.access import Permission
from tests.engine_parts import database_of
from tests.integration.access.conftest import Guarded, new_thread

ADMIN = (Permission.READ, Permission.WRITE, Permission.ADMIN)
ADA = {"app_name": "shop", "user_id": "ada"}


async def test_an_administrator_of_the_app_exports_and_erases(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("shop", permissions=ADMIN)) as client:
        thread = await new_thread(client, "shop")
        await new_thread(client, "shop", "bob")
        exported = await client.get("/api/user-data", params=ADA)
        assert exported.headers["content-type"] == "application/x-ndjson"
        header, *rows = map(json.loads, exported.text.splitlines())
        assert header["user_id"] == "ada"
        assert [line["row"]["id"] for line in rows if line["table"] == "threads"] == [thread]
        erased = await client.delete("/api/user-data", params=ADA)
        assert (erased.status_code, erased.json()["rows"]["threads"]) == (200, 1)
        assert (await client.get("/api/user-data", params=ADA)).status_code == 404
        assert (await client.delete("/api/user-data", params=ADA)).status_code == 404
        assert (await client.get("/api/user-data", params={**ADA, "user_id": "bob"})).status_code == 200
    targets = await database_of(guarded.engine).pool.fetch("SELECT DISTINCT target FROM audit_log")
    assert [row["target"] for row in targets] == ["/api/user-data"]


async def test_other_callers_are_refused_and_nothing_is_lost(guarded: Guarded) -> None:
    async with guarded.client(await guarded.key("shop")) as client:
        thread = await new_thread(client, "shop")
        callers = [
            await guarded.key("shop"),
            await guarded.key("bank", permissions=ADMIN),
            await guarded.key("shop", permissions=ADMIN, user_id="eve"),
        ]
        for key in callers:
            async with guarded.client(key) as other:
                assert (await other.get("/api/user-data", params=ADA)).status_code == 403
                assert (await other.delete("/api/user-data", params=ADA)).status_code == 403
        assert (await client.get(f"/api/sessions/{thread}")).status_code == 200
