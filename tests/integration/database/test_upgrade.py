"""A data directory that an older version wrote opens with this version and loses nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine, RunStatus, Worker
from tests.integration.database import stored_data
from tests.integration.database.stored_data import APP, DELTAS, SECOND_SESSION, USER, Orders, find_session

_ROOT = Path(__file__).parents[3]
_VERSIONS = {"before_run_leases": "25a1d91", "before_graph_checkpoints": "f0b82f0", "latest_release": "6464610"}


@pytest.fixture(scope="module", params=_VERSIONS.values(), ids=_VERSIONS)
def older_source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of an older commit."""
    archive = subprocess.run(["git", "archive", request.param, "src"], check=False, cwd=_ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the git history has no commit {request.param}: {archive.stderr.decode().strip()}")
    directory = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory / "src"


@pytest.fixture
def data_dir() -> Iterator[Path]:
    # The path of a server's socket is limited to about 100 characters: `tmp_path` is longer.
    with tempfile.TemporaryDirectory(prefix="upgrade-") as directory:
        yield Path(directory, "data")


def write_with(source: Path, data_dir: Path) -> dict[str, Any]:
    """Write with an older version in its own process; return what that version reads back."""
    writing = subprocess.run(
        [sys.executable, stored_data.__file__, str(data_dir)],
        env={**os.environ, "PYTHONPATH": str(source)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert writing.returncode == 0, writing.stderr
    answer: dict[str, Any] = json.loads(writing.stdout)
    assert Path(answer["module"]).is_relative_to(source)
    return answer["stored"]  # type: ignore[no-any-return]


async def test_data_of_an_older_version_is_read_and_continued(older_source: Path, data_dir: Path) -> None:
    stored = await asyncio.to_thread(write_with, older_source, data_dir)
    assert [chunk["delta"] for chunk in list(stored["sessions"][0]["chunks"].values())[-1]] == DELTAS

    async with Engine.open(data_dir=data_dir) as engine:
        assert await stored_data.read(engine) == stored
        await append_continues(engine, stored["sessions"][0])
        await waiting_run_resumes(engine, stored["sessions"][1])
        hits = await engine.memory.recall("which lamps does Ada prefer?", app=APP, user=USER, kinds=["note"])
        assert [hit.text for hit in hits] == ["Ada prefers brass lamps"]


async def append_continues(engine: Engine, stored: dict[str, Any]) -> None:
    session = await find_session(engine)
    event = await engine.sessions.append(session, author="user", kind="message", text="thanks", state={"paid": True})
    assert (event.sequence_num, event.version) == (stored["last_sequence"] + 1, stored["version"] + 1)
    async with engine.stream_message(session) as message:
        await message.write("you are welcome")
    assert [event.sequence_num for event in await engine.sessions.events(session)] == list(
        range(1, stored["last_sequence"] + 3)
    )
    assert (await find_session(engine)).state == {**stored["state"], "paid": True}


async def waiting_run_resumes(engine: Engine, stored: dict[str, Any]) -> None:
    session, orders = await find_session(engine, SECOND_SESSION), Orders()
    (waiting,) = stored["runs"]
    await engine.runs.signal(waiting["id"], correlation_key="approve", payload={"ok": True})
    async with Worker(engine, {"order": orders.handle}):
        async for event in engine.live(session, after=stored["last_sequence"]):
            if event.event_type == "run_finished":
                break
    run = await engine.runs.get(session.thread_id, waiting["id"])
    assert run.status == RunStatus.COMPLETED
    assert run.result == {"reservation": "reservation of lamp", "answer": {"ok": True}}
    assert orders.reservations == 0
