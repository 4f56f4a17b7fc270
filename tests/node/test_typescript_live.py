"""The TypeScript client re-attaches: what it holds after lost connections and killed servers equals the database."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.agui.agents import SLOW_TEXT
from tests.integration.agui.gates import gates_directory
from tests.node.typescript_package import install_client
from tests.served import Served

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

USER = "typescript"
THREADS = (
    "run_cut", "thread_cut", "interrupt", "client_tool", "cancelled", "failed", "busy", "watched", "lost_requests",
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tests of the client, where the packed client is installed."""
    return install_client(tmp_path_factory.mktemp("typescript"))


@pytest.fixture(scope="module")
def held(client: Path, served: Served) -> dict[str, Any]:
    """What the client holds after each scenario. The process ends by itself only if no timer and no socket is left."""
    done = subprocess.run(
        ["node", "live.mjs", served.url, USER, str(gates_directory())],
        cwd=client, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("name", THREADS)
async def test_a_thread_ends_with_what_is_stored(held: dict[str, Any], name: str, engine: Engine) -> None:
    shown = held[name]
    assert shown["errors"] == []
    assert (shown["connection"], shown["open"], shown["liveText"]) == ("open", [], "")
    session = await engine.sessions.get(shown["agent"], USER, shown["threadId"])
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    assert shown["messages"] == history.snapshot.messages
    assert shown["state"] == session.state


def test_a_run_is_followed_to_the_character_over_cut_connections(held: dict[str, Any]) -> None:
    shown = held["run_cut"]
    assert shown["cuts"] >= 3
    frames = shown["frames"]
    answer = [one for one in frames if one.get("messageId") == shown["messages"][-1]["id"]]
    deltas = [one["delta"] for one in answer if one["type"] == "TEXT_MESSAGE_CONTENT"]
    assert "".join(deltas) == SLOW_TEXT == shown["messages"][-1]["content"]
    kinds = [one["type"] for one in answer if one["type"] != "TEXT_MESSAGE_CONTENT"]
    assert kinds == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_END"]
    assert [one["type"] for one in frames].count("RUN_STARTED") == 1
    assert (frames[-1]["type"], frames[-1]["status"]) == ("RUN_FINISHED", "completed")
    cursors = [one["cursor"] for one in frames]
    assert cursors == sorted(cursors)


def test_a_thread_reconnects_in_mid_answer_and_after_a_reload(held: dict[str, Any]) -> None:
    shown = held["thread_cut"]
    assert shown["result"] == "completed"
    assert "reconnecting" in shown["states"]
    assert shown["partialStatus"] == "running"
    assert SLOW_TEXT.startswith(shown["partial"])
    assert len(shown["partial"]) < len(SLOW_TEXT)
    assert shown["late"]["messages"] == shown["messages"]
    assert shown["messages"][-1]["content"] == SLOW_TEXT


def test_a_question_is_answered_after_a_reload(held: dict[str, Any]) -> None:
    shown = held["interrupt"]
    assert (shown["asked"], shown["waiting"], shown["refused"], shown["result"]) == (
        "waiting",
        "waiting",
        1,
        "completed",
    )
    assert shown["state"]["deleted"] == ["diary"]
    assert shown["interrupts"] == []


def test_ends_of_runs(held: dict[str, Any]) -> None:
    assert held["client_tool"]["messages"][-1]["content"] == "You picked blue."
    cancelled = held["cancelled"]
    assert (cancelled["cancelled"], cancelled["result"], cancelled["again"]) == (True, "cancelled", False)
    failed = held["failed"]
    assert (failed["result"], failed["runStatus"], failed["shown"]) == ("failed", "failed", failed["error"])
    assert "the model is out of order" in failed["error"]


def test_a_second_client_is_refused_follows_and_cancels(held: dict[str, Any]) -> None:
    shown = held["busy"]
    assert (shown["refused"], shown["shown"]) == (True, ["user", "assistant"])
    assert (shown["result"], shown["first_result"]) == ("completed", "cancelled")


def test_a_thread_shows_runs_of_another_client(held: dict[str, Any]) -> None:
    assert held["watched"]["messages"] == held["watched"]["other"]


async def test_an_input_whose_request_or_answer_is_lost_is_executed_once(held: dict[str, Any], engine: Engine) -> None:
    shown = held["lost_requests"]
    assert (shown["results"], shown["dropped"]) == (["completed", "completed"], 0)
    assert [one["content"] for one in shown["messages"] if one["role"] == "user"] == ["before", "after"]
    session = await engine.sessions.get("team", USER, shown["threadId"])
    assert session is not None
    assert len(await engine.runs.list(session.thread_id)) == 2


async def test_two_copies_by_signal_pull_equal_the_database(held: dict[str, Any], engine: Engine) -> None:
    shown = held["signal_pull"]
    assert shown["reconnects"] == 3
    stored = [
        {"id": row.id, "role": row.role, "text": row.content}
        for row in await engine.sessions.messages(await engine.sessions.store.get_thread(shown["threadId"]))
    ]
    assert shown["shown"] == [stored, stored]
    assert shown["contents"] == [stored[-1]["text"]] * 2
