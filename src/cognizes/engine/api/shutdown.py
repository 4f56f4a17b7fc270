"""Hearing that the server is about to stop, while its streams can still be ended politely.

An ASGI server tells an application to shut down after the last connection is closed; a stream of events would keep it
waiting. So the signal is heard beside the server's own handler, which runs as before.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_shutdown_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Calls back in the event loop on SIGINT or SIGTERM, then lets the handler that was there do its work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(callback)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    watched = [number for number, handler in before.items() if callable(handler)]
    for number in watched:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in watched:
            if signal.getsignal(number) is handle:
                signal.signal(number, before[number])
