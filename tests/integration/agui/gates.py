"""Gates: an agent under test stops halfway until the test says go on, so that no test depends on how fast it is."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from uuid import uuid4

DIRECTORY = "COGNIZES_TEST_GATES"
"""The environment variable that names the directory of gates to the server."""

_HELD = re.compile(r"\bhold ([\w-]+)")


class Gate:
    """Say `gate.text` to an agent that knows gates; it continues when the gate is open."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self.text = f"hold {self.name}"

    def open(self) -> None:
        """Release present and later waiters."""
        (gates_directory() / self.name).touch()


@cache
def gates_directory() -> Path:
    """Where gates are: the same for a test and for the servers it starts."""
    if given := os.environ.get(DIRECTORY):
        return Path(given)
    directory = Path(tempfile.mkdtemp(prefix="cognizes-gates-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


async def pass_gate(said: str) -> None:
    """Waits for the gate that a message names, if it names one."""
    if found := _HELD.search(said):
        gate = gates_directory() / found[1]
        while not gate.exists():
            await asyncio.sleep(0.02)
