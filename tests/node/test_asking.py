"""Questions and shared state with the real AG-UI clients, on agents of LangGraph, Pydantic AI and the OpenAI SDK."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine, RunStatus
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.hosting.asking_agents import NAMES
from tests.integration.hosting.served.conftest import serve_agents
from tests.node.test_clients import packages
from tests.served import Served

__all__ = ["packages"]
pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def asking(database_url: str) -> Iterator[Served]:
    paths = [f"tests.integration.hosting.asking_agents:{name}" for name in NAMES]
    server = serve_agents(database_url, COGNIZES_AGENTS=",".join(paths))
    yield server
    server.kill()


def has_succeeded(end: dict[str, Any]) -> bool:
    return "failure" not in end and (end["outcome"] or {}).get("type", "success") == "success"


@pytest.mark.parametrize("client", ["agui-1", "agui-0"])
@pytest.mark.parametrize("agent", NAMES)
async def test_a_question_is_answered_after_a_reload_and_the_state_is_shared(
    agent: str, client: str, packages: Path, asking: Served, engine: Engine
) -> None:
    user = f"asking-{client}"
    shutil.copy(HERE / "asking.mjs", packages)
    done = subprocess.run(
        ["node", "asking.mjs", client, asking.url, user, agent],
        cwd=packages, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    assert held["complaints"] == []

    # The question, for the tab that stays and for one that connects.
    assert held["asked"]["outcome"]["type"] == "interrupt"
    assert held["waiting"]["outcome"] == held["asked"]["outcome"]
    assert held["held"][0] == held["held"][1]
    assert held["held"][0]["state"]["mood"] == "calm"

    # The answers continue in further runs, each under the id of its input.
    assert has_succeeded(held["approved"])
    assert held["approved"]["runId"].startswith("answer-")
    assert held["afterwards"]["messages"][-1]["content"] == "I forgot the diary. You are calm."
    assert held["again"]["outcome"]["type"] == "interrupt"
    assert has_succeeded(held["dismissed"])
    assert has_succeeded(held["last"])
    said = [message.get("content") for message in held["end"][0]["messages"] if message["role"] == "assistant"]
    assert said[-1] == "I forgot the songs. You are sad."
    assert "I forgot the letters. You are sad." not in said
    if agent != "asking_openai":
        assert held["end"][0]["state"]["forgotten"] == ["the diary", "the songs"]

    # Both tabs have what is stored.
    assert held["end"][0] == held["end"][1]
    session = await engine.sessions.get(agent, user, held["threadId"])
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    assert held["end"][0] == {"messages": history.snapshot.messages, "state": session.state}
    first = await engine.runs.get(session.thread_id, held["asked"]["runId"])
    assert (first.status, first.result) == (RunStatus.COMPLETED, {"continued_by": held["approved"]["runId"]})
