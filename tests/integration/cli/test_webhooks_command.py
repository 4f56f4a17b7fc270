"""`cognizes webhooks`: create, list, rotate, dead letters, redeliver, delete, and wrong values."""

from __future__ import annotations

import json

from tests.integration.cli.running_command import Cognizes

LOCAL = {"COGNIZES_WEBHOOK_NETWORKS": "127.0.0.0/8"}


def test_a_webhook_from_its_creation_to_its_deletion(quick: Cognizes) -> None:
    url = "http://127.0.0.1:9/hook"
    made = json.loads(quick("webhooks", "create", url, "--app", "shop", "--event", "failed", "--json", **LOCAL).stdout)
    assert (made["url"], made["events"]) == (url, ["failed"])
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert json.loads(quick("webhooks", "list", "--json").stdout) == [made]
    assert url in quick("webhooks", "list", "--app", "shop").stdout
    assert json.loads(quick("webhooks", "list", "--app", "bank", "--json").stdout) == []
    rotated = quick("webhooks", "rotate", made["id"])
    assert rotated.stdout.startswith("whsec_")
    assert rotated.stdout.strip() != secret
    assert quick("webhooks", "dead-letters", "--app", "shop").stdout == ""
    assert quick("webhooks", "delete", made["id"]).stdout == f"deleted {made['id']}\n"
    assert json.loads(quick("webhooks", "list", "--json").stdout) == []


def test_wrong_values_exit_with_2_and_create_nothing(quick: Cognizes) -> None:
    create = ("webhooks", "create")
    assert "internal address 127.0.0.1" in quick.fail(*create, "https://127.0.0.1/", "--app", "shop", code=2)
    assert "write https://host/path" in quick.fail(*create, "mailto:x", "--app", "shop", code=2)
    wrong = quick.fail(*create, "http://127.0.0.1/", "--app", "shop", "--event", "x", code=2, **LOCAL)
    assert wrong == "the events are x; use waiting, failed, completed"
    for command in ("rotate", "delete", "redeliver"):
        assert "there is no" in quick.fail("webhooks", command, "x", code=2)
    settings = quick.fail("webhooks", "list", COGNIZES_WEBHOOK_NETWORKS="here")
    assert settings.startswith("COGNIZES_WEBHOOK_NETWORKS is 'here'")
    assert json.loads(quick("webhooks", "list", "--json").stdout) == []
