"""The TypeScript client re-attaches: what it holds after lost connections and killed servers equals the database."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine
from cognizes.engine.agui.snapshot import read_history
from cognizes.engine.pulse.session_store import thread_uuid
from tests.integration.agui.gates import Gate, gates_directory
from tests.integration.hosting.served.agents import SLOW_TEXT
from tests.integration.hosting.served.conftest import serve_agents
from tests.node.typescript_package import SOURCE, install_client, run_tests
from tests.served import REPOSITORY, Served

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
    assert shown["reconnects"] >= 1
    stored = [
        {"id": row.id, "role": row.role, "text": row.content}
        for row in await engine.sessions.messages(await engine.sessions.store.get_thread(shown["threadId"]))
    ]
    assert shown["shown"] == [stored, stored]
    assert shown["contents"] == [stored[-1]["text"]] * 2


@pytest.fixture(scope="module")
def killed(client: Path, database_url: str) -> Iterator[dict[str, Any]]:
    """What the client holds of two runs whose server was killed in mid-answer. Another server takes its place."""
    leases = {"COGNIZES_RUN_LEASE_SECONDS": "2", "COGNIZES_STREAM_LEASE_SECONDS": "2"}
    gate = Gate()
    first = serve_agents(database_url, **leases)
    node = subprocess.Popen(
        ["node", "killed.mjs", first.url, USER, gate.name],
        cwd=client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert node.stdin is not None
    assert node.stdout is not None
    try:
        assert node.stdout.readline() == "halfway\n"
    finally:
        first.kill()
    gate.open()
    second = serve_agents(database_url, **leases)
    try:
        printed, _ = node.communicate(f"{second.url}\n", timeout=200)
        assert node.returncode == 0
        yield json.loads(printed)
    finally:
        node.kill()
        second.kill()


@pytest.mark.parametrize("agent", ["steady", "generic"])
async def test_a_client_survives_the_kill_of_the_server(killed: dict[str, Any], agent: str, engine: Engine) -> None:
    shown = killed[agent]
    assert (shown["errors"], shown["open"]) == ([], [])
    session = await engine.sessions.get(agent, USER, shown["threadId"])
    assert session is not None
    history = await read_history(engine.sessions.log, thread_uuid(session.thread_id))
    assert shown["messages"] == history.snapshot.messages
    assert shown["state"] == session.state
    stored = {
        one["id"]: one["content"]
        for one in history.snapshot.messages
        if one["role"] in ("user", "assistant") and one.get("content")
    }
    assert {name: text for name, text in shown["texts"].items() if text} == stored
    assert shown["last"]["type"] == "RUN_FINISHED"
    # A resumable agent continues its run; the others fail, and what they said is kept.
    expected = "completed" if agent == "steady" else "failed"
    assert (shown["result"], shown["last"]["status"]) == (expected, expected)
    if agent == "steady":
        assert shown["messages"][-1]["content"] == "I noted it, and am done."


async def test_results_of_two_client_tools_are_sent_together(client: Path, database_url: str, engine: Engine) -> None:
    server = serve_agents(database_url, COGNIZES_AGENTS="tests.integration.hosting.client_tool_agents:painting_graph")
    try:
        done = subprocess.run(
            ["node", "two_tools.mjs", server.url, USER],
            cwd=client, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        server.kill()
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["waiting"], shown["left"]) == ("waiting", True)
    assert (shown["done"], shown["error"], shown["pending"]) == ("completed", None, [])
    assert shown["results"] == ["blue", "red"]
    assert shown["last"] == "You picked red."
    assert (shown["skipped"], shown["rest"]) == ("completed", [])
    session = await engine.sessions.get("painting_graph", USER, shown["threadId"])
    assert session is not None
    assert len(await engine.runs.list(session.thread_id)) == 2


def test_the_hook_in_a_document(client: Path, served: Served) -> None:
    run_tests(client, "react.test.mjs", passed=5, COGNIZES_URL=served.url, COGNIZES_GATES=str(gates_directory()))


def test_the_code_blocks_compile_and_run(client: Path, served: Served) -> None:
    """The blocks of docs/clients.md are one program; those of the README of the package are another, only compiled."""
    guide = _blocks((REPOSITORY / "docs" / "clients.md").read_text())
    readme = _blocks((SOURCE / "README.md").read_text())
    examples = client / "examples"
    examples.mkdir()
    program = "\n".join(guide["ts"]).replace("http://127.0.0.1:8000", served.url).replace(', apiKey: "cgz_…"', "")
    (examples / "guide.ts").write_text(program)
    (examples / "chat.tsx").write_text("\n".join(guide["tsx"]))
    (examples / "readme.tsx").write_text("\n".join([*readme["ts"], *readme["tsx"]]))
    settings = json.loads((client / "tsconfig.json").read_text())["compilerOptions"]
    settings |= {"jsx": "react-jsx", "noEmit": False}
    (examples / "tsconfig.json").write_text(json.dumps({"compilerOptions": settings}))
    command = ["node", str(client / "node_modules/typescript/bin/tsc"), "-p", "."]
    done = subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout
    done = subprocess.run(["node", "guide.js"], cwd=examples, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\ncompleted 6\n"), done.stdout


def _blocks(page: str) -> dict[str, list[str]]:
    blocks: dict[str, list[str]] = {}
    for language, text in re.findall(r"^```(tsx?)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        blocks.setdefault(language, []).append(text)
    return blocks
