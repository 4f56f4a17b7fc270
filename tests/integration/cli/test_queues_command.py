"""`cognizes queues`: set, list, delete, and wrong values."""

from __future__ import annotations

import json

from tests.integration.cli.running_command import Cognizes


def test_limits_are_set_shown_and_deleted(quick: Cognizes) -> None:
    made = json.loads(quick("queues", "set", "gpu", "--concurrency", "2", "--rate", "10", "--per", "60").stdout)
    expected = {"name": "gpu", "concurrency": 2, "rate": 10, "per_seconds": 60, "running": 0, "pending": 0}
    assert made == expected
    assert json.loads(quick("queues", "list", "--json").stdout) == [expected]
    assert "10 in 60 s" in quick("queues", "list").stdout
    assert quick("queues", "delete", "gpu").stdout == "deleted gpu\n"
    assert quick.fail("queues", "delete", "gpu", code=2) == "no limits are set for a queue 'gpu'"


def test_wrong_values_exit_with_2_and_set_nothing(quick: Cognizes) -> None:
    assert "needs a concurrency or a rate" in quick.fail("queues", "set", "gpu", code=2)
    assert "the concurrency is -1" in quick.fail("queues", "set", "gpu", "--concurrency", "-1", code=2)
    assert "the rate is 0" in quick.fail("queues", "set", "gpu", "--rate", "0", code=2)
    assert "queue is blank" in quick.fail("queues", "set", " ", "--rate", "1", code=2)
    assert quick("queues", "set", "gpu", "--rate", "1", "--per", "0").returncode == 2
    assert json.loads(quick("queues", "list", "--json").stdout) == []
