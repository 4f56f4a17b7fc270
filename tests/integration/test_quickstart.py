"""The steps of docs/quickstart.md: a run of examples/quickstart survives kill -9 of its server."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App

from tests.served import REPOSITORY, serve

AGENT = {"COGNIZES_AGENTS": "examples.quickstart.agent:app", "COGNIZES_RUN_LEASE_SECONDS": "2"}
DEADLINE_SECONDS = 120


def _until(read: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := read()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def test_a_run_continues_after_its_server_was_killed(database_url: str) -> None:
    first = serve(database_url, PACKING_SECONDS="3600", **AGENT)
    with httpx.Client(base_url=first.url, timeout=60) as http:
        # As the Monitor sends it: forwardedProps and context reach the agent also when the run continues.
        body = {
            "threadId": "order-1", "runId": "run-1", "state": {}, "tools": [],
            "context": [{"description": "page", "value": "cart"}], "forwardedProps": {"cognizes": {"onBusy": "cancel"}},
            "messages": [{"id": "m1", "role": "user", "content": "two lamps"}],
        }  # fmt: skip
        with http.stream("POST", "/agui/shop", json=body) as answer:
            assert any("TOOL_CALL_END" in line for line in answer.iter_lines())
        _until(lambda: http.get("/api/runs").json()["runs"][0]["tool_calls"])
    first.kill()

    second = serve(database_url, PACKING_SECONDS="0", **AGENT)
    try:
        with httpx.Client(base_url=second.url, timeout=60) as http:
            ended = _until(lambda: [run for run in http.get("/api/runs").json()["runs"] if run["completed_at"]])
            assert [(run["id"], run["status"]) for run in ended] == [("run-1", "completed")]
            assert ended[0]["attempt"] >= 2  # a slow machine may lose the short lease again
            messages = http.get(f"/api/sessions/{ended[0]['thread_id']}/messages").json()["messages"]
            said = [message["content"] for message in messages if message["role"] == "assistant" and message["content"]]
            assert said == ["Done. I packed: two lamps. Anything else?"]
    finally:
        second.stop(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore:.EXPERIMENTAL.:UserWarning")
def test_the_agent_of_the_page_is_a_resumable_app() -> None:
    page = (REPOSITORY / "docs" / "quickstart.md").read_text()
    [program] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def price_of" in block]
    names: dict[str, Any] = {}
    exec(program, names)
    app = names["app"]
    assert isinstance(app, App)
    assert isinstance(app.root_agent, LlmAgent)
    assert app.resumability_config is not None
    assert app.resumability_config.is_resumable
