"""The processes that `live.py` starts: API servers, and a writer in a separate process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_HERE = Path(__file__).parent
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_STILL_SECONDS = 4.0
_STILL_BYTES = 256 * 1024


@dataclass(frozen=True)
class ApiServer:
    """A running API process."""

    process: psutil.Process
    url: str

    def resident(self) -> int:
        """Bytes of memory."""
        return int(self.process.memory_info().rss)

    def processor_seconds(self) -> float:
        """User and system time so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@asynccontextmanager
async def serve(database_url: str, directory: Path, name: str) -> AsyncIterator[ApiServer]:
    """Start `cognizes serve`."""
    log = directory / f"{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["cognizes", "serve", "--port", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
            # All connections of the benchmark have one address.
            env={**os.environ, "DATABASE_URL": database_url, "COGNIZES_MAX_CONNECTIONS_PER_ADDRESS": "20000"},
        )
    try:
        server = ApiServer(psutil.Process(process.pid), await _find_url(process, log))
        await _settle(server)
        yield server
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _find_url(process: subprocess.Popen[bytes], log: Path) -> str:
    async with asyncio.timeout(_START_SECONDS):
        while process.poll() is None:
            if found := re.search(r"Page +(http://[^/\s]+)", log.read_text()):
                return found[1]
            await asyncio.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


async def _settle(server: ApiServer) -> None:
    """Wait until the memory of a server stops growing: it imports its agents in the background for some seconds."""
    last = 0
    while abs((now := server.resident()) - last) > _STILL_BYTES:
        last = now
        await asyncio.sleep(_STILL_SECONDS)


class Writer:
    """A process with its own `Engine` (`live_writer.py`) that appends on request."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def append(self, **order: Any) -> dict[str, float]:
        """Append as requested, see `live_writer.py`; return when the last event is stored."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the writer died")
        figures: dict[str, float] = json.loads(answer)
        return figures


@asynccontextmanager
async def start_writer(database_url: str) -> AsyncIterator[Writer]:
    """Start a writer, which ends when its input closes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_HERE / "live_writer.py"),
        database_url,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        yield Writer(process)
    finally:
        process.stdin.close()
        await process.wait()
