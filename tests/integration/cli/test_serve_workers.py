"""`cognizes serve --workers`: several processes behind one port, supervised."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from tests.integration.cli.running_command import Cognizes, processes_of


def workers_of(pid: int) -> set[int]:
    found = set()
    for child in psutil.Process(pid).children():
        # A child that has just ended is a zombie without a command line.
        with suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.add(child.pid)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.05)


def test_a_killed_worker_is_replaced_and_a_hangup_replaces_all(cognizes: Cognizes, data_dir: Path) -> None:
    with cognizes.serve("--workers", "2") as serving:
        assert serving.banner().count("is running") == 1
        supervisor = serving.process.pid
        first = workers_of(supervisor)
        assert len(first) == 2
        psutil.Process(min(first)).kill()
        # The port stays open: the other worker serves it.
        assert httpx.get(f"{serving.url}/health").status_code == 200
        wait_for(lambda: len(workers_of(supervisor)) == 2 and workers_of(supervisor) != first)
        second = workers_of(supervisor)
        assert max(first) in second
        serving.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(workers_of(supervisor)) == 2 and not workers_of(supervisor) & second)
        assert httpx.get(f"{serving.url}/health").json()["status"] == "ok"
        third = workers_of(supervisor)
        assert serving.stop(signal.SIGTERM) == 0
    assert not any(psutil.pid_exists(pid) for pid in third)
    assert processes_of(data_dir) == []


def test_workers_end_with_a_killed_supervisor(cognizes: Cognizes, data_dir: Path) -> None:
    with cognizes.serve("--workers", "2") as serving:
        serving.banner()
        workers = workers_of(serving.process.pid)
        serving.process.kill()
        serving.process.wait(30)
        wait_for(lambda: not any(psutil.pid_exists(pid) for pid in workers))
        wait_for(lambda: processes_of(data_dir) == [])


def test_an_agent_that_cannot_be_loaded_ends_the_start_with_one_error(cognizes: Cognizes) -> None:
    finished = cognizes("serve", "--port", "0", "--workers", "2", "--agent", "missing.module:agent")
    assert finished.returncode == 1
    assert "missing" in finished.stderr.splitlines()[-1]
    assert "Traceback" not in finished.stderr


def test_a_caller_whose_connection_reaches_one_worker_has_the_whole_limit(cognizes: Cognizes) -> None:
    limits = {"COGNIZES_REQUESTS_AT_ONCE": "12", "COGNIZES_REQUESTS_PER_SECOND": "0.001"}
    with cognizes.serve("--workers", "2", COGNIZES_AUTH="required", **limits) as serving:
        key = cognizes("keys", "create", "--app", "shop").stdout.strip()
        with httpx.Client(base_url=serving.url, headers={"Authorization": f"Bearer {key}"}) as one_connection:
            answers = [one_connection.get("/api/access/me").status_code for _ in range(13)]
    assert answers == [200] * 12 + [429]
