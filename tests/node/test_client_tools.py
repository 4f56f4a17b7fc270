"""Tools of the client with the real AG-UI clients, on agents of LangGraph, Pydantic AI and the OpenAI Agents SDK."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.hosting.client_tool_agents import ARGUMENTS, NAMES, PICK
from tests.integration.hosting.served.conftest import serve_agents
from tests.node.test_clients import packages
from tests.served import Served

__all__ = ["packages"]
pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
Seen = dict[str, Any]


@pytest.fixture(scope="module")
def painters(database_url: str) -> Iterator[Served]:
    paths = [f"tests.integration.hosting.client_tool_agents:{name}" for name in NAMES]
    server = serve_agents(database_url, COGNIZES_AGENTS=",".join(paths))
    yield server
    server.kill()


@pytest.fixture(
    scope="module", params=[(agent, client) for agent in NAMES for client in ("agui-1", "agui-0")], ids="-".join
)
def seen(request: pytest.FixtureRequest, packages: Path, painters: Served) -> Seen:
    """What a client saw of an agent."""
    agent, client = request.param
    shutil.copy(HERE / "client_tools.mjs", packages)
    done = subprocess.run(
        ["node", "client_tools.mjs", client, painters.url, f"tools-{client}", agent],
        cwd=packages, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: Seen = json.loads(done.stdout)
    assert printed["complaints"] == []
    return {"agent": agent, "user": f"tools-{client}", "speaks_1": client == "agui-1", **printed["results"]}


def calls(messages: list[Seen]) -> list[Seen]:
    return [call for message in messages for call in message.get("toolCalls") or ()]


def has_succeeded(end: Seen) -> bool:
    """Return whether a run ended without a failure, a question or a call that waits."""
    return end in ({"outcome": None}, {"outcome": {"type": "success"}})


async def test_a_call_waits_for_the_client_over_a_reload_and_its_result_continues(seen: Seen, engine: Engine) -> None:
    held = seen["answered"]
    [call] = calls(held["first"])
    assert call["function"] == {"name": PICK, "arguments": ARGUMENTS}
    pending = {"type": "success", "pendingToolCallIds": [call["id"]]} if seen["speaks_1"] else None
    assert held["asked"] == {"outcome": pending}
    assert held["waiting"] == pending
    assert held["held"] == held["first"]
    assert has_succeeded(held["answered"])
    assert [message["role"] for message in held["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert held["messages"][-1]["content"] == "You picked blue."
    assert held["state"] == {}
    session = await engine.sessions.get(seen["agent"], seen["user"], held["threadId"])
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    assert history.snapshot.messages == held["messages"]


def test_a_call_of_the_agents_own_tool_beside_it_is_executed(seen: Seen) -> None:
    held = seen["both"]
    assert [call["function"]["name"] for call in calls(held["before"])] == ["look_up", PICK]
    results = [message for message in held["before"] if message["role"] == "tool"]
    assert [(result["toolCallId"], result["content"]) for result in results] == [
        (calls(held["before"])[0]["id"], "the sky is wide")
    ]
    assert has_succeeded(held["finished"])
    assert held["messages"][-1]["content"] == "You picked green."


def test_the_user_may_go_on_without_a_result(seen: Seen) -> None:
    held = seen["ignored"]
    assert has_succeeded(held["next"])
    assert held["messages"][-1]["content"] == "You said: never mind"


def test_a_model_is_offered_only_the_tools_of_the_input(seen: Seen) -> None:
    held = seen["plain"]
    assert has_succeeded(held["said"])
    assert held["messages"][-1]["content"] == "You said: paint"
