"""`cognizes keys`, and access to `cognizes serve`."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tests.integration.cli.running_command import Cognizes, QuickCognizes


def test_create_list_rotate_revoke(kept_data_dir: Path) -> None:
    quick = QuickCognizes(kept_data_dir)
    created = json.loads(
        quick("keys", "create", "--app", "shop", "--permission", "read", "--name", "page", "--json").stdout
    )
    assert created["key"].startswith(f"cgz_{created['id']}_")
    assert (created["app_names"], created["permissions"], created["name"]) == (["shop"], ["read"], "page")
    rotated = json.loads(quick("keys", "rotate", created["id"], "--json").stdout)
    assert quick("keys", "revoke", rotated["id"]).stdout == f"revoked {rotated['id']}\n"
    listed = {key["id"]: key for key in json.loads(quick("keys", "list", "--json").stdout)}
    assert listed[created["id"]]["revoked_at"]
    assert listed[rotated["id"]]["revoked_at"]
    secret = created["key"].split("_", 2)[2]
    assert secret not in quick("keys", "list", "--json").stdout + quick("keys", "list").stdout


def test_mistakes_are_explained(kept_data_dir: Path) -> None:
    quick = QuickCognizes(kept_data_dir)
    assert "there is no key unknown" in quick.fail("keys", "revoke", "unknown", code=2)
    assert quick("keys", "create").returncode == 2
    assert quick("keys", "create", "--app", "a", "--all-apps").returncode == 2


def test_listening_beyond_this_machine_needs_keys(quick: Cognizes) -> None:
    sentence = quick.fail("serve", "--host", "0.0.0.0")
    assert "COGNIZES_AUTH=required" in sentence
    assert "cognizes keys create" in sentence


def test_a_server_that_requires_keys(cognizes: Cognizes) -> None:
    with cognizes.serve("--host", "0.0.0.0", COGNIZES_AUTH="required") as serving:
        assert "with a key or a token" in serving.banner()
        key = cognizes("keys", "create", "--app", "shop").stdout.strip()
        anonymous = httpx.get(f"{serving.url}/api/access/me")
        assert anonymous.status_code == 401
        authenticated = httpx.get(f"{serving.url}/api/access/me", headers={"X-API-Key": key})
        assert authenticated.json()["app_names"] == ["shop"]
        assert serving.stop() == 0
