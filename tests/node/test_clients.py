"""The AG-UI clients in Node end with the messages and the state that the database has."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.agui.gates import gates_directory
from tests.integration.hosting.served.agents import SLOW_TEXT
from tests.npm_packages import install
from tests.served import Served

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def packages() -> Path:
    """The clients, installed in the user's cache directory and kept for the next run."""
    return install((HERE / "package.json").read_bytes())


@pytest.fixture(scope="module", params=["agui-1", "agui-0"])
def conversations(request: pytest.FixtureRequest, packages: Path, served: Served) -> dict[str, Any]:
    """The output of a client after all its conversations, with the name of their user."""
    user = f"node-{request.param}"
    shutil.copy(HERE / "turns.mjs", packages)
    done = subprocess.run(
        ["node", "turns.mjs", request.param, served.url, user, str(gates_directory())],
        cwd=packages, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    return {"user": user, "speaks_1": request.param == "agui-1", **printed}


@pytest.mark.parametrize(
    "name",
    [
        "one_turn", "tool_turn", "three_turns", "error", "interrupt_and_resume", "client_tool", "cancelled",
        "connect_in_the_middle",
    ],
)  # fmt: skip
async def test_a_client_ends_with_what_is_stored(conversations: dict[str, Any], name: str, engine: Engine) -> None:
    held = conversations["results"][name]
    session = await engine.sessions.get(held["agent"], conversations["user"], held["threadId"])
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    assert held["messages"] == history.snapshot.messages
    assert held["state"] == _own(session.state) | _shared(held["state"])
    assert _shared(held["state"]).keys() == _shared(session.state).keys()
    said = {row.id: row.content for row in await engine.sessions.messages(session) if row.role != "tool"}
    assert said == {
        message["id"]: message["content"]
        for message in held["messages"]
        if message["role"] in ("user", "assistant") and message.get("content")
    }


def _own(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(("app:", "user:"))}


def _shared(state: dict[str, Any]) -> dict[str, Any]:
    """The keys that later conversations may have changed."""
    return {key: value for key, value in state.items() if key.startswith(("app:", "user:"))}


def test_a_client_logs_no_complaint(conversations: dict[str, Any]) -> None:
    assert [
        line for line in conversations["complaints"] if "RUN_ERROR" not in line and "abort" not in line.lower()
    ] == []


def test_an_error_reaches_the_client(conversations: dict[str, Any]) -> None:
    error = conversations["results"]["error"]
    assert "the model is out of order" in error["failure"]["message"]
    assert error["messages"][-1]["content"] == "I was about to "


def test_an_interrupt_is_answered(conversations: dict[str, Any]) -> None:
    held = conversations["results"]["interrupt_and_resume"]
    assert [interrupt["reason"] for interrupt in held["interrupts"]] == ["confirmation"]
    assert held["outcome"] is None
    assert held["state"]["deleted"] == ["diary"]
    calls = [call["id"] for message in held["messages"] for call in message.get("toolCalls") or []]
    assert calls == [message["toolCallId"] for message in held["messages"] if message["role"] == "tool"]


def test_a_tool_of_the_client_waits_over_a_reload(conversations: dict[str, Any]) -> None:
    held = conversations["results"]["client_tool"]
    assert held["waiting"] == ([held["call"]] if conversations["speaks_1"] else None)
    assert held["messages"][-1]["content"] == "You picked blue."


def test_a_cancelled_run(conversations: dict[str, Any]) -> None:
    held = conversations["results"]["cancelled"]
    assert held["stopped"] == {"cancelled": True}
    assert held["outcome"] == ({"type": "cancelled"} if conversations["speaks_1"] else None)
    assert SLOW_TEXT.startswith(held["messages"][-1]["content"])


def test_connecting_in_the_middle_and_again(conversations: dict[str, Any]) -> None:
    held = conversations["results"]["connect_in_the_middle"]
    assert 0 < len(held["partial"]) < len(SLOW_TEXT)
    assert held["messages"] == held["first"] == held["cold"]
    assert held["messages"][-1]["content"] == SLOW_TEXT
    assert held["state"] == held["coldState"]
