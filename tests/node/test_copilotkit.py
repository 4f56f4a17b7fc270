"""CopilotKit's core 1.75 on the server as its runtime: turns, tools of the page, re-attachment and stop."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.models import RunStatus
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.agui.gates import gates_directory
from tests.integration.hosting.served.agents import SLOW_TEXT
from tests.node.test_clients import packages
from tests.served import Served

__all__ = ["packages"]
pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
USER = "copilotkit"
Seen = dict[str, Any]


@pytest.fixture(scope="module")
def pages(packages: Path, served: Served) -> dict[str, Seen]:
    """What the pages saw."""
    shutil.copy(HERE / "copilotkit.mjs", packages)
    done = subprocess.run(
        ["node", "copilotkit.mjs", served.url, USER, str(gates_directory())],
        cwd=packages, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["errors"] == []
    results: dict[str, Seen] = printed["results"]
    return results


async def stored(engine: Engine, agent: str, held: Seen) -> tuple[list[Seen], list[RunStatus]]:
    session = await engine.sessions.get(agent, USER, held["threadId"])
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    return history.snapshot.messages, [run.status for run in await engine.runs.list(session.thread_id)]


async def test_a_turn_and_a_page_that_is_opened_later(pages: dict[str, Seen], engine: Engine) -> None:
    held = pages["turn"]
    assert held["transport"] == "rest"
    assert {"demo", "painter", "slow"} <= set(held["agents"])
    assert "You said “hello”" in held["messages"][-1]["content"]
    assert held["messages"] == held["later"]["messages"] == (await stored(engine, "demo", held))[0]
    assert held["state"] == held["later"]["state"]


async def test_a_tool_of_the_page_is_executed_and_answered(pages: dict[str, Seen], engine: Engine) -> None:
    held = pages["tool"]
    assert held["calls"] == [{"of": "the sky"}]
    assert held["messages"][-1]["content"] == "You picked teal."
    messages, statuses = await stored(engine, "painter", held)
    assert [message["id"] for message in held["messages"]] == [message["id"] for message in messages]
    assert statuses == [RunStatus.COMPLETED] * 2


async def test_a_page_that_is_opened_in_mid_run(pages: dict[str, Seen], engine: Engine) -> None:
    held = pages["attached"]
    assert held["messages"][-1]["content"] == SLOW_TEXT
    assert held["messages"] == held["attached"]["messages"] == (await stored(engine, "slow", held))[0]


async def test_the_stop_button_cancels_the_run(pages: dict[str, Seen], engine: Engine) -> None:
    held = pages["stopped"]
    async with asyncio.timeout(30):
        while (await stored(engine, "slow", held))[1] != [RunStatus.CANCELLED]:
            await asyncio.sleep(0.05)
    last = (await stored(engine, "slow", held))[0][-1]["content"]
    assert SLOW_TEXT.startswith(last)
    assert last.startswith(held["messages"][-1]["content"])
