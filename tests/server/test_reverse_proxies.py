"""The shipped settings of HAProxy and nginx before two nodes: REST, SSE, WebSockets, a node that stops."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import websockets

from cognizes.engine import Engine, Session
from cognizes.engine.sync.client import SignalPullClient
from tests.integration.sync.conftest import serving

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
if TYPE_CHECKING:
    from debian_server import DebianProxy

pytestmark = pytest.mark.server
_DEPLOY = Path(__file__).parents[2] / "deploy"
_NGINX = """
daemon off;
user root;
pid /run/nginx.pid;
error_log stderr;
events {}
http {
access_log off;
SETTINGS
}
"""


class Nodes:
    """Two servers of one engine, on ports of their own, that a test can stop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running: dict[str, AsyncExitStack] = {}
        self.addresses: dict[str, str] = {}

    async def start(self, name: str) -> None:
        self._running[name] = AsyncExitStack()
        url = await self._running[name].enter_async_context(serving(self._engine))
        self.addresses[name] = url.removeprefix("http://")

    async def stop(self, name: str) -> None:
        await self._running.pop(name).aclose()

    async def close(self) -> None:
        for name in list(self._running):
            await self.stop(name)


@pytest.fixture
async def nodes(engine: Engine) -> AsyncIterator[Nodes]:
    running = Nodes(engine)
    for name in ("node1", "node2"):
        await running.start(name)
    yield running
    await running.close()


@pytest.fixture(params=["haproxy", "nginx"])
def proxy(request: pytest.FixtureRequest, nodes: Nodes) -> Iterator[DebianProxy]:
    """The proxy with the file of `deploy/`; only addresses are replaced."""
    from debian_server import DebianProxy

    if (reason := DebianProxy.available()) is not None:
        pytest.skip(reason)
    if request.param == "haproxy":
        settings = (_DEPLOY / "haproxy.cfg").read_text().replace("bind :8000", "bind 127.0.0.1:{port}")
    else:
        settings = (_DEPLOY / "nginx.conf").read_text().replace("listen 8000;", "listen 127.0.0.1:{port};")
        settings = _NGINX.replace("SETTINGS", settings)
    for name, address in nodes.addresses.items():
        settings, count = re.subn(rf"{name}:8000", address, settings)
        assert count == 1
    with DebianProxy(request.param, settings) as running:
        yield running


@pytest.fixture
async def session(engine: Engine) -> Session:
    return await engine.sessions.create("shop", "ada")


async def test_frames_arrive_at_once_and_websockets_pass(proxy: DebianProxy, engine: Engine, session: Session) -> None:
    url = f"http://127.0.0.1:{proxy.port}"
    async with asyncio.timeout(60), httpx.AsyncClient(base_url=url, timeout=30) as http:
        while (await http.get("/health")).status_code != 200:
            await asyncio.sleep(0.1)
        event = {"author": "user", "event_type": "user_message", "content": {"text": "over REST"}, "run_id": "r"}
        assert (await http.post(f"/api/sessions/{session.thread_id}/events", json=event)).status_code == 201
        address = f"ws://127.0.0.1:{proxy.port}/ws/events/{session.thread_id}?after=0"
        async with (
            http.stream("GET", "/api/runs/r/events") as frames,
            websockets.connect(address) as socket,
        ):
            lines = frames.aiter_lines()
            await _read_until(lines, "over REST")
            assert json.loads(await socket.recv())["payload"]["sequence_num"] == 1
            # Each frame comes through while the stream stays open: the proxy does not buffer.
            for number in range(2, 5):
                await engine.sessions.append(
                    session, author="user", kind="user_message", text=f"frame {number}", run_id="r"
                )
                await _read_until(lines, f"frame {number}")
                assert json.loads(await socket.recv())["payload"]["sequence_num"] == number


async def _read_until(lines: AsyncIterator[str], text: str) -> None:
    while text not in await anext(lines):
        pass


async def test_clients_continue_on_the_other_node(
    proxy: DebianProxy, nodes: Nodes, engine: Engine, session: Session
) -> None:
    """A node stops: the stream of the client ends or is cut, and it reconnects through the proxy."""
    url = f"http://127.0.0.1:{proxy.port}"
    async with asyncio.timeout(90), httpx.AsyncClient(base_url=url, timeout=30) as http:
        while (await http.get("/health")).status_code != 200:
            await asyncio.sleep(0.1)
        async with SignalPullClient(url, str(session.thread_id)) as client:
            await engine.sessions.append(session, author="user", kind="user_message", text="before")
            await client.wait_for(lambda copy: [message.text for message in copy.messages] == ["before"])
            await nodes.stop("node1")
            await engine.sessions.append(session, author="user", kind="user_message", text="without a node")
            await client.wait_for(lambda copy: copy.messages[-1].text == "without a node")
        answers = [(await http.get(f"/api/sessions/{session.thread_id}")).status_code for _ in range(20)]
        assert set(answers) == {200}
