"""The steps of docs/tutorial-langgraph.md, with the blocks of the page: serve, follow, kill -9, answer."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cognizes.client import Client
from tests.integration.client.relay import Relay
from tests.served import REPOSITORY

PAGE = (REPOSITORY / "docs" / "tutorial-langgraph.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
AGENT = next(block for block in BLOCKS if 'compile(name="assistant")' in block)
FOLLOW = next(block for block in BLOCKS if "client.runs.follow" in block)
ANSWER = next(block for block in BLOCKS if "client.runs.answer" in block)
COMMAND = "cognizes serve --agent assistant:assistant"


class Terminal:
    """A terminal in a new home, in the directory of `assistant.py`, in which the server runs."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def serve(self, **settings: str) -> tuple[subprocess.Popen[bytes], str]:
        program, *arguments = COMMAND.split()
        log = self.home / f"log-{time.monotonic_ns()}"
        keep = {name: value for name, value in os.environ.items() if name != "DATABASE_URL" and "COGNIZES" not in name}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / program), *arguments, "--port", "0"],
                cwd=self.home,
                env={**keep, "HOME": str(self.home), "COGNIZES_RUN_LEASE_SECONDS": "2", **settings},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 120
        while not (found := re.search(r"Page +(http://\S+)/$", log.read_text(), re.MULTILINE)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return process, found[1]


async def execute(block: str, url: str, printed: list[str]) -> None:
    def note(*values: object, end: str = "\n") -> None:
        printed.append(" ".join(map(str, values)) + end)

    names: dict[str, Any] = {"print": note, "Client": Client}
    code = compile(
        block.replace("http://127.0.0.1:8000", url),
        "page",
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    outcome = eval(code, names)
    if inspect.isawaitable(outcome):
        await outcome


async def is_packing(url: str) -> bool:
    """Return whether the graph executes the node `pack`, after the checkpoint of `announce`."""
    async with Client(url) as client:
        async for run in client.runs.each(app_name="assistant"):
            async for event in client.sessions.each_event(run.thread_id):
                if event.event_type == "step_start" and event.content["step_name"] == "pack":
                    return True
    return False


async def test_the_graph_of_the_tutorial_survives_its_server_and_is_answered(tmp_path: Path) -> None:
    assert COMMAND in PAGE
    (tmp_path / "assistant.py").write_text(AGENT)
    terminal = Terminal(tmp_path)
    server, url = await asyncio.to_thread(terminal.serve, PACKING_SECONDS="3600")
    relay = Relay(url)
    printed: list[str] = []
    try:
        async with relay.open() as address, asyncio.timeout(240):
            following = asyncio.create_task(execute(FOLLOW, address, printed))
            while not await is_packing(url):
                assert not following.done()
                await asyncio.sleep(0.05)
            server.kill()
            server.wait()
            server, relay.target = await asyncio.to_thread(terminal.serve, PACKING_SECONDS="0")
            await following
            assert "".join(printed).count("I pack your order.") == 1
            assert printed[-1] == "the run waits for a person\n"
            answered: list[str] = []
            await execute(ANSWER, address, answered)
        assert answered[0] == "completed 3\n"
        assert answered[-1] == "assistant Sent.\n"
    finally:
        server.terminate()
        server.wait(60)
