"""The real AG-UI client attaches to hosted agents in mid-run; what it holds equals the database."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.agui.gates import gates_directory
from tests.integration.hosting.agents import WORDS
from tests.integration.hosting.served.conftest import serve_agents
from tests.node.test_clients import packages
from tests.served import Served

__all__ = ["packages"]
pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
AGENTS = ["generic", "langgraph", "pydantic", "openai"]
"""Agents that look something up, answer `hold <gate>` in words, and stop halfway at the gate."""


@pytest.fixture(scope="module")
def frameworks(database_url: str) -> Iterator[Served]:
    """A server with an agent of each framework; ADK has its own tests."""
    paths = ["tests.integration.hosting.agents:generic"]
    paths += [f"tests.integration.hosting.framework_agents:{name}" for name in AGENTS[1:]]
    server = serve_agents(database_url, COGNIZES_AGENTS=",".join(paths))
    yield server
    server.kill()


@pytest.mark.parametrize("client", ["agui-1", "agui-0"])
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_client_attaches_in_mid_run(
    agent: str, client: str, packages: Path, frameworks: Served, engine: Engine
) -> None:
    user = f"attaching-{agent}-{client}"
    shutil.copy(HERE / "attaching.mjs", packages)
    done = subprocess.run(
        ["node", "attaching.mjs", client, frameworks.url, user, str(gates_directory()), agent],
        cwd=packages, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    assert held["complaints"] == []
    session = await engine.sessions.get(agent, user, held["threadId"])
    assert session is not None
    stored = (await read_history(engine.sessions.log, thread_uuid(session.thread_id))).snapshot.messages
    count = len(held["staying"]["messages"])
    assert [message["role"] for message in stored[:count] if message["role"] != "reasoning"] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert stored[count - 1]["content"] == "".join(WORDS)
    assert held["staying"]["messages"] == stored[:count]
    assert held["leaving"] == held["cold"] == held["staying"]
    assert held["second"]["messages"] == stored
    assert held["second"]["state"] == session.state
