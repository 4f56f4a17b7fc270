"""`cognizes schedules`: create, list, show, pause, resume, delete, and wrong values."""

from __future__ import annotations

import json

from tests.integration.cli.running_command import Cognizes

OWNER = ("--app", "shop", "--user", "ada")


def test_a_schedule_from_its_creation_to_its_deletion(quick: Cognizes) -> None:
    made = quick(
        "schedules", "create", "report", *OWNER, "--cron", "0 8 * * MON-FRI", "--timezone", "Europe/Berlin",
        "--name", "daily", "--input", '{"n": 1}', "--json",
    )  # fmt: skip
    schedule = json.loads(made.stdout)
    assert (schedule["cron"], schedule["timezone"], schedule["input"]) == ("0 8 * * MON-FRI", "Europe/Berlin", {"n": 1})
    assert len(schedule["next_times"]) == 5
    (listed,) = json.loads(quick("schedules", "list", "--json").stdout)
    assert listed == schedule
    assert "daily" in quick("schedules", "list", "--app", "shop").stdout
    assert json.loads(quick("schedules", "list", "--app", "other", "--json").stdout) == []
    assert quick("schedules", "pause", schedule["id"]).returncode == 0
    assert json.loads(quick("schedules", "show", schedule["id"]).stdout)["next_times"] == []
    assert "paused" in quick("schedules", "list").stdout
    assert quick("schedules", "resume", schedule["id"]).stdout.startswith("resumed")
    assert len(json.loads(quick("schedules", "show", schedule["id"], "--count", "7").stdout)["next_times"]) == 7
    assert quick("schedules", "delete", schedule["id"]).returncode == 0
    assert quick.fail("schedules", "show", schedule["id"], code=2) == f"there is no schedule '{schedule['id']}'"


def test_wrong_values_exit_with_2_and_create_nothing(quick: Cognizes) -> None:
    create = ("schedules", "create", "report", *OWNER)
    assert quick.fail(*create, "--cron", "soon", code=2).startswith("invalid cron expression 'soon'")
    assert quick.fail(*create, "--cron", "0 8 * * *", "--timezone", "Mars", code=2).startswith("unknown time zone")
    assert quick.fail(*create, "--every", "soon", code=2) == (
        "--every is 'soon'; write a number and a unit: 30s, 5m, 12h or 1d"
    )
    assert "ten years" in quick.fail(*create, "--every", "99999999999999d", code=2)
    assert "between a second" in quick.fail(*create, "--every", "0s", code=2)
    assert quick.fail(*create, "--every", "5m", "--input", "{", code=2).startswith("--input is not JSON")
    assert "no session 'x'" in quick.fail(*create, "--every", "5m", "--session", "x", code=2)
    assert quick(*create).returncode == 2
    assert quick(*create, "--every", "5m", "--cron", "0 8 * * *").returncode == 2
    for command in ("show", "pause", "resume", "delete"):
        assert "there is no schedule 'x'" in quick.fail("schedules", command, "x", code=2)
    assert json.loads(quick("schedules", "list", "--json").stdout) == []
