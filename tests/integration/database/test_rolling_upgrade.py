"""An older and this version of the engine serve one database together, before and after its migration."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Engine, MigrationError
from tests.integration.database import rolling_node
from tests.integration.database.rolling_node import Node
from tests.integration.runs.conditions import until

_ROOT = Path(__file__).parents[3]
_VERSIONS = {"before_feed": "93ff147", "latest_release": "6464610"}
"""Landed commits with older schemas: migrations and functions have changed since."""
_ENOUGH = 20


@pytest.fixture(scope="module", params=_VERSIONS.values(), ids=_VERSIONS)
def older_source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = subprocess.run(["git", "archive", request.param, "src"], check=False, cwd=_ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the older version is not in this clone's history: {archive.stderr.decode().strip()}")
    directory = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory / "src"


def start(source: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, rolling_node.__file__, url, "older"],
        env={**os.environ, "PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_both_versions_serve_one_database(older_source: Path, empty_database_url: str) -> None:
    older = start(older_source, empty_database_url)
    try:
        assert older.stdout is not None
        hello = json.loads(await asyncio.to_thread(older.stdout.readline) or older.communicate()[1])
        assert Path(hello["module"]).is_relative_to(older_source)
        # The older version has written for a while; this one migrates under it, as the first step of an upgrade.
        await asyncio.sleep(1)
        async with Engine.open(empty_database_url) as engine:
            node = Node(engine, "newer")
            async with node.working() as session:
                assert session.thread_id == hello["thread_id"]
                await until(_has_done_enough(node, "older"))
                printed: dict[str, Any] = await _stop(older)
            events = await engine.sessions.events(session)
            stored = [event.id for event in events]
            assert [event.sequence_num for event in events] == list(range(1, len(events) + 1))
            # Both wrote after the migration, no acknowledged event is missing, and none is stored twice.
            for acknowledged in (node.acknowledged, node.streamed, printed["acknowledged"], printed["streamed"]):
                assert len(acknowledged) >= _ENOUGH // 4
                assert set(acknowledged) <= set(stored)
            assert len(set(stored)) == len(stored)
            # Each follower received what both wrote, in order, up to its end.
            for followed in (node.followed, printed["followed"]):
                assert followed == stored[: len(followed)]
                assert set(followed) & set(node.acknowledged)
                assert set(followed) & set(printed["acknowledged"])
            # Each version recalled, after the migration, what the other one said.
            assert "older" in node.recalled
            assert "newer" in printed["recalled"]
            # Each version executed runs that the other one enqueued.
            assert {"newer on older", "older on newer"} <= {*node.runs.values(), *printed["runs"].values()}
            failed = await engine.runs.search(status=["failed"])
            assert failed.items == []
    finally:
        older.kill()
        older.wait()
        for pipe in (older.stdin, older.stdout, older.stderr):
            if pipe is not None:
                pipe.close()


def _has_done_enough(node: Node, other: str) -> Callable[[], Any]:
    async def look() -> bool:
        finished = [result for result in node.runs.values() if result is not None]
        return len(node.acknowledged) >= _ENOUGH and len(node.streamed) >= _ENOUGH // 4 and len(finished) >= 3

    return look


async def _stop(process: subprocess.Popen[str]) -> Any:
    printed, errors = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, errors
    return json.loads(printed)


async def test_an_older_version_does_not_start_on_a_newer_schema(older_source: Path, database_url: str) -> None:
    """The order of an upgrade: once the database is migrated, restarted nodes must be of the new version."""
    older = start(older_source, database_url)
    _, errors = await asyncio.to_thread(older.communicate, "")
    assert older.returncode != 0
    assert MigrationError.__name__ in errors
