"""The 19 features of AG-UI, each used with `@ag-ui/client` 1.0.0 and 0.0.59 on agents of Google ADK."""

from __future__ import annotations

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
from tests.integration.hosting.served.agents import DOCUMENT, SLOW_TEXT
from tests.node.test_clients import packages
from tests.served import Served

__all__ = ["packages"]
pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
USER = "features"
Seen = dict[str, Any]


@pytest.fixture(scope="module", params=["agui-1", "agui-0"])
def client(request: pytest.FixtureRequest) -> str:
    """The package of a client; `agui-0` is the one that CopilotKit 1.75 contains."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def features(client: str, packages: Path, served: Served) -> dict[str, Seen]:
    """What the client saw of each feature."""
    shutil.copy(HERE / "features.mjs", packages)
    done = subprocess.run(
        ["node", "features.mjs", client, served.url, USER, str(gates_directory())],
        cwd=packages, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert [line for line in printed["complaints"] if "RUN_ERROR" not in line and "abort" not in line.lower()] == []
    results: dict[str, Seen] = printed["results"]
    return results


@pytest.fixture
def seen(features: dict[str, Seen], request: pytest.FixtureRequest) -> Seen:
    """What the client saw of the feature that the test is called after."""
    found = features[request.function.__name__.removeprefix("test_")]
    assert "exception" not in found, found["exception"]
    return found


async def stored(engine: Engine, agent: str, thread_id: str) -> list[dict[str, Any]]:
    session = await engine.sessions.get(agent, USER, thread_id)
    assert session is not None
    return (await read_history(engine.sessions.log, thread_uuid(session.thread_id))).snapshot.messages


def test_agentic_chat(seen: Seen) -> None:
    assert len(seen["deltas"]) > 10
    assert "".join(seen["deltas"]) == seen["reply"]
    assert "You said “hello”" in seen["reply"]


def test_reasoning(seen: Seen) -> None:
    assert [thought["content"] for thought in seen["thoughts"]] == [
        "I look at the clock and note the topic, then I answer."
    ]


def test_multimodal_input(seen: Seen) -> None:
    assert seen["contents"] == [
        ["user", "look", "image/png:13", "application/pdf:https://example.org/a.pdf", "audio/wav:13"]
    ]
    assert seen["held"] == seen["reloaded"]


def test_backend_tool_rendering(seen: Seen) -> None:
    assert [call["function"]["name"] for call in seen["calls"]] == ["read_clock", "note_topic"]
    assert json.loads(seen["calls"][1]["function"]["arguments"]) == {"topic": "the weather"}
    assert [result["toolCallId"] for result in seen["results"]] == [call["id"] for call in seen["calls"]]
    assert json.loads(seen["results"][1]["content"])["noted"] == "the weather"


def test_tool_based_generative_ui(seen: Seen, client: str) -> None:
    assert seen["call"]["function"] == {"name": "pick_colour", "arguments": '{"of":"the sky"}'}
    pending = {"type": "success", "pendingToolCallIds": [seen["call"]["id"]]}
    assert seen.get("outcome") == (pending if client == "agui-1" else None)


def test_human_in_the_loop(seen: Seen) -> None:
    assert seen["reply"] == "You picked green."


def test_interrupt_and_resume(seen: Seen) -> None:
    assert [asked["reason"] for asked in seen["asked"]] == ["confirmation"]
    assert seen["outcome"] is None
    assert seen["state"]["deleted"] == ["diary"]
    assert seen["reply"] == "Done: diary is deleted."


def test_shared_state(seen: Seen) -> None:
    assert seen["read"]["mood"] == "cheerful"
    assert (seen["state"]["mood"], seen["state"]["turns"]) == ("calm", 1)


def test_agentic_generative_ui(seen: Seen) -> None:
    changed = seen["types"].index("STATE_DELTA")
    assert changed < seen["types"].index("TEXT_MESSAGE_START")
    assert seen["state"]["turns"] == 1


def test_context(seen: Seen) -> None:
    assert seen["read"]["context"] == [{"description": "place", "value": "the harbour"}]


def test_errors(seen: Seen) -> None:
    assert "the model is out of order" in seen["failure"]["message"]
    assert seen["types"][-1] == "RUN_ERROR"
    assert seen["reply"] == "I was about to "


def test_server_side_history(seen: Seen) -> None:
    contents = seen["contents"]
    assert [role for role, _ in contents] == ["user", "model", "user"]
    assert (contents[0][1], contents[2][1]) == ("my name is Ada", "what is my name?")


def test_sub_agents(seen: Seen, client: str) -> None:
    # The older client knows no sub-agents: it gets the steps of an agent.
    kind, name = ("SUBAGENT", "name") if client == "agui-1" else ("STEP", "stepName")
    assert [frame["type"] for frame in seen["items"]] == [f"{kind}_STARTED", f"{kind}_FINISHED"]
    assert seen["items"][0][name] == "poet"
    assert seen["reply"] == "A rose is a rose."


async def test_re_attach_in_mid_run(seen: Seen, engine: Engine) -> None:
    assert seen["messages"][-1]["content"] == SLOW_TEXT
    assert seen["messages"] == await stored(engine, "slow", seen["threadId"])


def test_predictive_state_updates(seen: Seen) -> None:
    mapping = {"state_key": "document", "tool": "write_document", "tool_argument": "document"}
    assert [(event["name"], event["value"]) for event in seen["predictions"]] == [("PredictState", [mapping])]
    order = seen["order"]
    beginnings = [item for item in order[: order.index("ActionExecutionResult")] if item and DOCUMENT.startswith(item)]
    assert len(set(beginnings)) > 5
    assert beginnings[-1] == DOCUMENT


async def test_streamed_tool_arguments(seen: Seen, engine: Engine) -> None:
    assert len(seen["deltas"]) > 10
    assert "".join(seen["deltas"]) == seen["arguments"]
    assert json.loads(seen["arguments"]) == {"document": DOCUMENT, "meta": {"pages": 3, "tags": ['a "tag"']}}
    held = await stored(engine, "editor", seen["threadId"])
    assert seen["held"] == [held, held, held]
    assert [event["name"] for event in seen["custom"]] == ["PredictState"]


async def test_own_history_in_a_new_thread(seen: Seen, engine: Engine) -> None:
    assert seen["contents"] == [
        ["user", "my name is Ada"],
        ["model", "Hello Ada.", "call:greet"],
        ["user", "result:greet"],
        ["model", "What else?"],
        ["user", "what is my name?"],
    ]
    assert seen["held"] == seen["reloaded"] == await stored(engine, "mirror", seen["threadId"])


async def test_next_message_after_abort(seen: Seen, engine: Engine) -> None:
    assert seen["failure"] is None
    assert seen["finished"]["type"] == "RUN_FINISHED"
    assert seen["reply"] == seen["queued"] == SLOW_TEXT
    for thread_id, ends in (
        (seen["threadId"], [RunStatus.CANCELLED, RunStatus.COMPLETED]),
        (seen["queuedThreadId"], [RunStatus.COMPLETED, RunStatus.COMPLETED]),
    ):
        session = await engine.sessions.get("slow", USER, thread_id)
        assert session is not None
        runs = await engine.runs.list(session.thread_id)
        assert [run.status for run in sorted(runs, key=lambda run: run.created_at)] == ends


def test_capabilities(seen: Seen) -> None:
    capabilities = seen["capabilities"]
    assert capabilities["identity"]["name"] == "demo"
    assert capabilities["transport"]["resumable"] is True
    assert capabilities["humanInTheLoop"]["interrupts"] is True
    assert capabilities["multimodal"]["input"]["image"] is True
    assert capabilities["custom"]["cognizes"]["streamsToolArguments"] is True


def test_every_feature_has_a_test(features: dict[str, Seen]) -> None:
    assert len(features) == 19
    assert {f"test_{name}" for name in features} <= globals().keys()
