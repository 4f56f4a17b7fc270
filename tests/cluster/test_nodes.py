"""Three API nodes behind HAProxy on a cluster: kill -9 of the node that executes a run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest

from cognizes.engine.sync.client import SignalPullClient
from tests.cluster.node import STEPS
from tests.cluster.traffic import Record

if TYPE_CHECKING:
    from debian_cluster import DebianCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
_NODES = 3
_WRITERS = 3
_SETTINGS = """
global
    maxconn 2000
defaults
    mode http
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
    option redispatch
    retries 2
listen nodes
    bind 127.0.0.1:{port}
    balance roundrobin
    option httpchk GET /health
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""


@contextmanager
def _nodes(cluster: DebianCluster, count: int) -> Iterator[tuple[str, dict[int, subprocess.Popen[bytes]]]]:
    """Start nodes and HAProxy before them; yield its URL and the processes by their ids."""
    ports = [cluster.reserve_port() for _ in range(count)]
    front = cluster.reserve_port()
    servers = "\n".join(f"    server node{number} 127.0.0.1:{port} check" for number, port in enumerate(ports))
    root = Path(__file__).parents[2]
    with ExitStack() as stack:
        processes: dict[int, subprocess.Popen[bytes]] = {}
        for port in ports:
            command = [sys.executable, "-m", "tests.cluster.node", cluster.haproxy_url(), str(port)]
            process = stack.enter_context(subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": "."}))
            stack.callback(process.kill)
            processes[process.pid] = process
        cluster.start_haproxy("nodes.cfg", _SETTINGS.format(port=front, servers=servers))
        yield f"http://127.0.0.1:{front}", processes


async def _until_ready(http: httpx.AsyncClient, count: int) -> None:
    """Return when HAProxy has reached nodes many times in a row: all of them are up."""
    async with asyncio.timeout(90):
        answered = 0
        while answered < 4 * count:
            try:
                answered = answered + 1 if (await http.get("/health")).status_code == 200 else 0
            except httpx.HTTPError:
                answered = 0
            await asyncio.sleep(0.1)


async def _insist(http: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """Send a request until a node answers it: a node may die while it does."""
    async with asyncio.timeout(120):
        while True:
            try:
                answer = await http.request(method, path, json=body)
                if answer.status_code < 500:
                    assert answer.status_code < 300, answer.text
                    return answer.json()
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)


class _Writer:
    """Appends events of known ids to a thread of its own, and notes what was acknowledged."""

    def __init__(self, http: httpx.AsyncClient, thread_id: str) -> None:
        self._http = http
        self.thread_id = thread_id
        self.acknowledged: list[str] = []
        self.times: list[float] = []
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            name = str(uuid4())
            event = {"id": name, "author": "user", "event_type": "user_message", "content": {"text": name}}
            await _insist(self._http, "POST", f"/api/sessions/{self.thread_id}/events", event)
            self.acknowledged.append(name)
            self.times.append(asyncio.get_running_loop().time())


@asynccontextmanager
async def _clients(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield http


async def test_kill_of_the_node_that_executes_a_run(cluster: DebianCluster, record_property: Record) -> None:
    with _nodes(cluster, _NODES) as (url, processes):
        async with _clients(url) as http:
            await _until_ready(http, _NODES)
            sessions = [
                await _insist(http, "POST", "/api/sessions", {"app_name": "shop", "user_id": f"user-{number}"})
                for number in range(_WRITERS + 1)
            ]
            writers = [_Writer(http, session["thread_id"]) for session in sessions[1:]]
            writing = [asyncio.create_task(writer.run()) for writer in writers]
            async with SignalPullClient(url, writers[0].thread_id) as client:
                path = f"/api/sessions/{sessions[0]['thread_id']}/runs"
                run = await _insist(http, "POST", path, {"handler": "count"})
                killed = await _kill_executor(http, f"{path}/{run['id']}", processes)
                done = await _until_ended(http, f"{path}/{run['id']}")
                for writer in writers:
                    writer.is_stopping = True
                await asyncio.gather(*writing)
                assert (done["status"], done["attempt"], done["error"]) == ("completed", 2, None)
                assert int(done["worker_id"].split("/")[1]) != killed
                steps = done["steps"]
                assert [(step["name"], step["status"], step["result"]) for step in steps] == [
                    (f"step {number}", "finished", number) for number in range(STEPS)
                ]
                assert {step["attempt"] for step in steps} == {1, 2}, "no step was finished before the kill"
                for writer in writers:
                    events = await _all_events(http, writer.thread_id)
                    assert [event["id"] for event in events] == writer.acknowledged
                    assert [event["sequence_num"] for event in events] == list(range(1, len(events) + 1))
                ids = writers[0].acknowledged
                async with asyncio.timeout(60):
                    await client.wait_for(lambda copy: [message.text for message in copy.messages] == ids)
    pause = max(
        later - earlier for writer in writers for earlier, later in zip(writer.times, writer.times[1:], strict=False)
    )
    record_property("pause_seconds", round(pause, 1))
    record_property("acknowledged", sum(len(writer.acknowledged) for writer in writers))
    record_property("lost", 0)


async def _kill_executor(http: httpx.AsyncClient, path: str, processes: dict[int, Any]) -> int:
    """Kill the node that executes the run, after some of its steps; return the process id."""
    async with asyncio.timeout(60):
        while True:
            run = await _insist(http, "GET", path)
            if run["status"] == "running" and sum(step["status"] == "finished" for step in run["steps"]) >= 3:
                process_id = int(run["worker_id"].split("/")[1])
                processes[process_id].send_signal(signal.SIGKILL)
                return process_id
            await asyncio.sleep(0.05)


async def _until_ended(http: httpx.AsyncClient, path: str) -> Any:
    async with asyncio.timeout(90):
        while (run := await _insist(http, "GET", path))["status"] not in ("completed", "failed", "cancelled"):
            await asyncio.sleep(0.1)
    return run


async def _all_events(http: httpx.AsyncClient, thread_id: str) -> list[Any]:
    found: list[Any] = []
    has_more = True
    while has_more:
        page = await _insist(http, "GET", f"/api/sessions/{thread_id}/events?after={len(found)}&limit=1000")
        found += page["events"]
        has_more = page["has_more"]
    return found
