"""Seed 000 §5: its commands as they are written there, in a shell, against a server that one of them starts.

Three things differ: the seed's port 8000 is a free one, `psql` is `cognizes psql` (the embedded server), and of the two
WebSocket clients that the seed offers, websocat and Python, the test uses Python.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
_SECONDS = 120

PSQL = (
    """psql -d 'cognizes-engine' -c "SELECT version();\"""",
    """psql -d 'cognizes-engine' -c "SELECT * FROM pg_available_extensions WHERE name IN ('vector', 'pg_cron');\"""",
    r"""psql -d cognizes-engine -c "\dt" """,
)
IMPORT = """uv run python -c "from cognizes.engine.pulse.state_manager import StateManager; print('✓ Import OK')\""""
SERVE = "uv run uvicorn cognizes.engine.api.main:app --reload --host 0.0.0.0 --port 8000"
HEALTH = "curl http://localhost:8000/health"
WEBSOCKET = """uv run python -c "
import asyncio
import websockets
async def test():
    async with websockets.connect('ws://localhost:8000/ws/events/test-thread') as ws:
        print('✓ WebSocket connected')
        msg = await asyncio.wait_for(ws.recv(), timeout=30)
        print(f'Received: {msg}')
asyncio.run(test())
\""""
TEST_NOTIFY = "curl http://localhost:8000/api/test-notify"
FOLLOW = "curl -N http://localhost:8000/api/runs/test-run/events"
TEST_SSE_NOTIFY = "curl http://localhost:8000/api/test-sse-notify/test-run"
HEADERS = "curl -s -D - http://localhost:8000/api/runs/test-run/events 2>&1 | head -10"
PYTEST = """
uv run pytest tests/unittests/pulse/ -v
uv run pytest tests/unittests/pulse/test_state_manager.py -v --tb=short
uv run pytest tests/integration/pulse/test_state_manager_db.py -v
uv run pytest tests/integration/pulse/test_notify_latency.py -v -s
uv run pytest tests/integration/pulse/test_event_bridge_e2e.py -v
uv run pytest tests/integration/pulse/test_state_debug_db.py -v
uv run pytest tests/integration/ -v
uv run pytest tests/integration/pulse/test_notify_latency.py::TestNotifyLatency::test_end_to_end_latency -v -s
uv run pytest tests/integration/pulse/test_notify_latency.py::TestNotifyLatency::test_100_msg_per_second_throughput -v -s
uv run pytest tests/unittests/pulse/test_state_manager.py::TestHighQPSPerformance -v -s
uv run pytest tests/unittests/pulse/test_state_manager.py::TestMultiAgentConcurrency -v -s
""".strip().splitlines()  # noqa: E501


@dataclass
class Shell:
    """Runs commands in the repository, as a user with an embedded server of its own."""

    data_dir: Path
    port: int

    def begin(self, command: str, *, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start a command in a process group of its own. curl's progress, which it writes to stderr, is left out."""
        environment = {
            **os.environ,
            "COGNIZES_DATA_DIR": str(self.data_dir),
            "COGNIZES_HEARTBEAT_SECONDS": "1",
            "PYTHONUNBUFFERED": "1",
            "UV_NO_SYNC": "1",  # the environment of this test run stays as it is
        }
        return subprocess.Popen(
            ["bash", "-c", command.replace("8000", str(self.port))],
            cwd=REPOSITORY, env=environment, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Run a command to its end; return what it printed."""
        process = self.begin(command)
        try:
            printed, _ = process.communicate(timeout=_SECONDS)
        finally:
            stop(process)
        assert process.returncode == 0, (command, printed)
        return printed


def stop(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    """End the process group of a command that was begun here."""
    if process.poll() is None:
        os.killpg(process.pid, number)
        process.wait(_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


def read_until(process: subprocess.Popen[str], is_last: Callable[[str], bool]) -> list[str]:
    """Read lines until one fits; the test's own limit of time is the limit."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if is_last(line):
            return lines
    raise AssertionError(lines)


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """A shell, and the seed's server running in another one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="cognizes-seed-") as directory:
        shell = Shell(Path(directory) / "data", port)
        server = shell.begin(SERVE, stderr=subprocess.STDOUT)
        try:
            lines = read_until(server, lambda line: "✓ PgNotifyListener started" in line)
            if not any("Uvicorn running on" in line for line in lines):
                lines += read_until(server, lambda line: "Uvicorn running on" in line)
            assert any(f"Uvicorn running on http://0.0.0.0:{port}" in line for line in lines)
            _wait_until_up(shell)
            yield shell
        finally:
            stop(server, signal.SIGINT)


def _wait_until_up(shell: Shell) -> None:
    """The line of the listener is printed while the application starts; the port answers a moment later."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", shell.port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not answer")


@pytest.mark.parametrize(("command", "expected"), list(zip(PSQL, ("PostgreSQL 1", "vector", "snapshots"), strict=True)))
def test_5_1_psql(shell: Shell, command: str, expected: str) -> None:
    printed = shell.run(f"uv run cognizes {command}")
    assert expected in printed


def test_5_1_import(shell: Shell) -> None:
    assert shell.run(IMPORT) == "✓ Import OK\n"


def test_5_1_2_health(shell: Shell) -> None:
    health = json.loads(shell.run(HEALTH))
    assert (health["status"], health["listener_running"]) == ("ok", True)


def test_5_1_3_and_4_websocket_and_test_notify(shell: Shell) -> None:
    client = shell.begin(WEBSOCKET)
    try:
        read_until(client, lambda line: line == "✓ WebSocket connected\n")
        sent = json.loads(shell.run(TEST_NOTIFY))
        assert sent["status"] == "sent"
        (received,) = read_until(client, lambda line: line.startswith("Received: "))
        payload = json.loads(received.removeprefix("Received: "))["payload"]
        assert payload == json.loads(sent["payload"])
        assert payload["thread_id"] == "test-thread"
        assert client.wait(_SECONDS) == 0
    finally:
        stop(client)


def test_5_1_5_6_and_8_sse_test_notify_and_heartbeat(shell: Shell) -> None:
    follower = shell.begin(FOLLOW)
    try:
        first = _frame(read_until(follower, _is_frame)[-1])
        assert (first["type"], first["runId"], first["name"]) == ("CUSTOM", "test-run", "connected")
        assert first["message"] == "SSE stream for run_id=test-run"
        sent = json.loads(shell.run(TEST_SSE_NOTIFY))
        assert (sent["status"], sent["run_id"]) == ("sent", "test-run")
        raw = _frame(read_until(follower, lambda line: '"type":"RAW"' in line)[-1])
        assert (raw["runId"], raw["payload"]) == ("test-run", json.loads(sent["payload"]))
        beat = _frame(read_until(follower, lambda line: '"name":"heartbeat"' in line)[-1])
        assert (beat["type"], beat["runId"]) == ("CUSTOM", "test-run")
    finally:
        stop(follower)


def test_5_1_7_headers(shell: Shell) -> None:
    reading = shell.begin(HEADERS)
    try:
        # curl writes to the pipe when its buffer is full, and `head` ends it at the next write.
        while reading.poll() is None:
            shell.run(TEST_SSE_NOTIFY)
        assert reading.stdout is not None
        lines = [line.rstrip("\r") for line in reading.stdout.read().split("\n")]
    finally:
        stop(reading)
    assert lines[0] == "HTTP/1.1 200 OK"
    assert "content-type: text/event-stream; charset=utf-8" in lines


def test_5_2_to_5_4_the_files_and_tests_exist() -> None:
    """The suite runs these tests; here: every path and name of the seed's commands is collected."""
    words = [word for command in PYTEST for word in shlex.split(command.removeprefix("uv run pytest "))]
    targets = sorted({word for word in words if word.startswith("tests/") and word != "tests/integration/"})
    options = sorted({word for word in words if word.startswith("-")})
    command = shlex.join(["uv", "run", "pytest", *targets, *options, "--collect-only", "-q"])
    printed = subprocess.run(
        command, shell=True, cwd=REPOSITORY, env={**os.environ, "UV_NO_SYNC": "1"}, check=False, capture_output=True,
        text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stdout[-2000:]
    assert (REPOSITORY / "tests/integration").is_dir()


@pytest.mark.long
@pytest.mark.parametrize("command", [command for command in PYTEST if "tests/integration/ " not in command])
def test_5_2_to_5_4_as_they_are_written(command: str) -> None:
    environment = {**os.environ, "UV_NO_SYNC": "1"}
    subprocess.run(command, shell=True, cwd=REPOSITORY, env=environment, check=True, timeout=400)


def _is_frame(line: str) -> bool:
    return line.startswith("data: ")


def _frame(line: str) -> dict[str, object]:
    frame: dict[str, object] = json.loads(line.removeprefix("data: "))
    return frame
