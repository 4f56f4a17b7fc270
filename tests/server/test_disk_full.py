"""The disk is full: requests end in a clear 503 or 507, nothing is half stored, and with space again all continues."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app
from tests.faults.histories import Acknowledged, find_losses, stored_events

pytestmark = pytest.mark.server

SIZE_MIB = 320
LEFT_MIB = 40
TIMEOUT = 300


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of its own, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="cognizes-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def fill(disk: Path) -> Path:
    """Leaves little of the disk."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - LEFT_MIB * 1024 * 1024)
    return filler


async def test_a_full_disk(small_disk: Path) -> None:
    async with Engine.open(data_dir=small_disk / "data", retry_seconds=1) as engine:
        transport = httpx.ASGITransport(app=create_app(engine=engine, agents=[]), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=None) as client:
            thread = (await client.post("/api/sessions", json={"app_name": "a", "user_id": "u"})).json()["thread_id"]
            filler = fill(small_disk)
            answers: list[Acknowledged] = []
            refusal = None
            for number in range(500):
                answer = await _append(client, thread, f"e{number}")
                if answer.is_success:
                    body = answer.json()
                    answers.append(Acknowledged(f"e{number}", body["sequence_num"], body["version"], 0, 0))
                    continue
                refusal = answer
                break
            assert refusal is not None, "the disk never became full"
            assert refusal.status_code in (503, 507), refusal.text
            assert refusal.headers["content-type"] == "application/problem+json"
            if refusal.status_code == 503:
                assert int(refusal.headers["retry-after"]) >= 1
            filler.unlink()
            # The same event again, until there is an answer: PostgreSQL may have to come back first.
            name = f"e{len(answers)}"
            async with asyncio.timeout(TIMEOUT):
                while not (answer := await _append(client, thread, name)).is_success:
                    assert answer.status_code in (503, 507), answer.text
                    await asyncio.sleep(0.2)
            body = answer.json()
            answers.append(Acknowledged(name, body["sequence_num"], body["version"], 0, 0))
            events = await _read_events(client, thread)
            stored = stored_events(events)
            assert find_losses(answers, stored) == []
            assert len(stored) == len(answers)


async def _read_events(client: httpx.AsyncClient, thread: str) -> list[dict[str, Any]]:
    """All events: a page ends at `COGNIZES_PAGE_BYTES`."""
    found: list[dict[str, Any]] = []
    has_more = True
    while has_more:
        after = found[-1]["sequence_num"] if found else 0
        page = (await client.get(f"/api/sessions/{thread}/events", params={"after": after, "limit": 1000})).json()
        found += page["events"]
        has_more = page["has_more"]
    return found


async def _append(client: httpx.AsyncClient, thread: str, name: str) -> httpx.Response:
    # As good as random, or PostgreSQL would make it small; and the same each time, or a resend would be a conflict.
    text = random.Random(name).randbytes(400_000).hex()
    event = {"id": name, "author": "w", "event_type": "note", "content": {"text": text}}
    return await client.post(f"/api/sessions/{thread}/events", json=event)
