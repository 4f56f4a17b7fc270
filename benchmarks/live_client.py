"""A minimal reader of server-sent events, so that one process can run thousands."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

_FRAME = re.compile(rb"id: (\d+)\ndata: ([^\n]*)\n\n")
_SENT = re.compile(rb'"sent":\s*(\d+)')
_STALLED_WINDOW = 4096
_NETWORK_SEGMENT = 1400

OnEvent = Callable[[int, bytes], None]


class Stream(asyncio.Protocol):
    """One connection to `/api/runs/{run_id}/events`.

    Calls back with `id:` and `data:` of every numbered frame. The server sends each frame as one chunk, so the chunked
    encoding never splits one.
    """

    def __init__(self, path: str, on_event: OnEvent) -> None:
        self._path = path
        self._rest = b""
        self.on_event = on_event
        self.transport: asyncio.Transport | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self.is_open = True
        self.transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        text = self._rest + data if self._rest else data
        end = 0
        for frame in _FRAME.finditer(text):
            self.on_event(int(frame[1]), frame[2])
            end = frame.end()
        # Only an incomplete numbered frame is kept, so that idle connections need no memory here.
        begun = text.find(b"id: ", end)
        self._rest = text[begun:] if begun >= 0 else text[-4:] if len(text) - end > 4 else text[end:]

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.abort()


class CountingStream(Stream):
    """A connection that counts its numbered frames and reads only the newest number, for less work per frame."""

    def __init__(self, path: str) -> None:
        super().__init__(path, lambda _number, _data: None)
        self.received = 0
        self.newest = 0
        self.last_at = 0.0

    def data_received(self, data: bytes) -> None:
        text = self._rest + data
        begun = text.rfind(b"\nid: ")
        ended = text.find(b"\n", begun + 1)
        if begun >= 0 and ended < 0:
            # The newest number is incomplete: it counts with the next data.
            self._rest, text = text[begun:], text[:begun]
        else:
            # The line break before the next number, if it is the last byte of the data, belongs to the next data.
            cut = next((size for size in (4, 3, 2, 1) if text.endswith(b"\nid: "[:size])), 0)
            self._rest, text = (text[-cut:], text[:-cut]) if cut else (b"", text)
        found = text.count(b"\nid: ")
        if found:
            self.received += found
            begun = text.rfind(b"\nid: ")
            self.newest = int(text[begun + 5 : text.find(b"\n", begun + 1)])
            self.last_at = time.perf_counter()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


async def open_stream(url: str, run_id: str, on_event: OnEvent) -> Stream:
    """Connect; return before the first frame arrives."""
    host, port = _address(url)
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(f"/api/runs/{run_id}/events", on_event), host, port)
    return stream


async def open_counting(url: str, run_id: str) -> CountingStream:
    """Connect; return before the first frame arrives."""
    host, port = _address(url)
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: CountingStream(f"/api/runs/{run_id}/events"), host, port)
    return stream


async def open_stalled(url: str, run_id: str) -> socket.socket:
    """Open a connection that requests the events of a run and never reads."""
    stalled = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A small window and segments as on a network: loopback's, of 64 KiB, let the kernel take in megabytes for a reader
    # that sleeps, so the server would not block.
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _STALLED_WINDOW)
    stalled.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _NETWORK_SEGMENT)
    stalled.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(stalled, _address(url))
    await loop.sock_sendall(stalled, f"GET /api/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return stalled


@dataclass
class Follower:
    """Records the frames of one connection: latencies, and missing, repeated or unordered ones."""

    expected: int
    """The number of the first event."""
    latencies: list[float] = field(default_factory=list)
    received: int = 0
    lost: int = 0
    repeated: int = 0
    last_at: float = 0.0

    def take(self, number: int, data: bytes) -> None:
        """Record a numbered frame. A number below the expected one is repeated or out of order."""
        self.last_at = time.perf_counter()
        if number < self.expected:
            self.repeated += 1
            return
        self.received += 1
        self.lost += number - self.expected
        self.expected = number + 1
        if sent := _SENT.search(data):
            self.latencies.append((time.time_ns() - int(sent[1])) / 1e6)


def percentile(values: list[float], share: float) -> float:
    """Return a quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
