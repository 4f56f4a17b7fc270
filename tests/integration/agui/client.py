"""An AG-UI client for tests: runs, connects and remembers messages, as a browser would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
from ag_ui.core import Event
from pydantic import TypeAdapter

from cognizes.engine.agui.snapshot import Snapshot
from tests.unittests.agui.legality import TERMINAL, assert_legal

Frame = dict[str, Any]
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


class AgentClient:
    """One tab of a browser on one thread. Every stream it reads to the end is checked against all rules."""

    def __init__(self, http: httpx.AsyncClient, agent: str, thread_id: str | None = None) -> None:
        self.http = http
        self.agent = agent
        self.thread_id = thread_id or str(uuid4())
        self.user = http.headers["X-User-ID"]
        self.seen: list[Frame] = []
        self.view = Snapshot()

    def input(self, text: str | None = None, *, run_id: str | None = None, **more: Any) -> Frame:
        """A RunAgentInput with everything this client knows."""
        messages = list(self.view.messages)
        if text is not None:
            messages.append({"id": str(uuid4()), "role": "user", "content": text})
        return {
            "threadId": self.thread_id, "runId": run_id or str(uuid4()), "protocolVersion": "1.0",
            "state": self.view.state, "messages": messages, "tools": [], "context": [], "forwardedProps": {}, **more,
        }  # fmt: skip

    async def run(self, text: str | None = None, *, path: str = "", **more: Any) -> list[Frame]:
        """A turn, to its end."""
        return await self.follow(path or f"/agui/{self.agent}", self.input(text, **more))

    async def connect(self, *, path: str = "", **more: Any) -> list[Frame]:
        """Attaches to the thread, until its run ends."""
        return await self.follow(path or f"/agui/{self.agent}/connect", self.input(**more))

    async def leave_after(self, kind: str, text: str, *, count: int = 1, **more: Any) -> list[Frame]:
        """Starts a turn and goes away after so many frames of a kind."""
        body = self.input(text, **more)
        frames: list[Frame] = []
        async with self.http.stream("POST", f"/agui/{self.agent}", json=body) as response:
            async for frame in read_frames(response):
                frames.append(frame)
                if sum(seen["type"] == kind for seen in frames) == count:
                    break
        self.fold(frames)
        return frames

    async def until(self, kind: str, *, count: int = 1) -> None:
        """Waits until the stream that is being read has shown so many frames of a kind."""
        async with asyncio.timeout(60):
            while sum(frame["type"] == kind for frame in self.seen) < count:
                await asyncio.sleep(0.01)

    async def cancel(self, **more: Any) -> bool:
        answer = await self.http.post(f"/agui/{self.agent}/cancel", json={"threadId": self.thread_id, **more})
        cancelled: bool = answer.json()["cancelled"]
        return cancelled

    async def follow(self, path: str, body: Frame) -> list[Frame]:
        frames = self.seen = []
        async with asyncio.timeout(60), self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, response.text
            async for frame in read_frames(response):
                frames.append(frame)
        assert_legal(frames, protocol_1=body.get("protocolVersion") == "1.0")
        assert frames[-1]["type"] in TERMINAL
        self.fold(frames)
        return frames

    def fold(self, frames: list[Frame]) -> None:
        known = {message["id"] for message in self.view.messages}
        self.view.fold(_EVENT.validate_python(frame) for frame in frames)
        assert known <= {message["id"] for message in self.view.messages}, (known, self.view.messages)


async def read_frames(response: httpx.Response) -> AsyncIterator[Frame]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def kinds(frames: list[Frame]) -> list[str]:
    """The types of frames, each run of equal ones once."""
    types = [frame["type"] for frame in frames]
    return [kind for number, kind in enumerate(types) if number == 0 or types[number - 1] != kind]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame["delta"] for frame in frames if frame["type"] == "TEXT_MESSAGE_CONTENT")
