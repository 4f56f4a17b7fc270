"""Artifacts in PostgreSQL and in stores: versions, scopes, limits, deletion, crashes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from cognizes.engine import (
    ArtifactScope,
    ArtifactStoreError,
    Engine,
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
)
from tests.engine_parts import database_of
from tests.served import REPOSITORY

SCOPE = ArtifactScope("shop", "ada", "chat")
LARGE = bytes(range(256)) * 40  # over the limit of the database in these tests
SMALL = b"small"


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != ".store"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
async def engine(database_url: str, directory: Path) -> AsyncIterator[Engine]:
    async with Engine.open(
        database_url, artifact_store=str(directory), artifact_database_bytes=4096, max_artifact_bytes=100_000
    ) as opened:
        yield opened


@pytest.mark.parametrize("data", [b"", SMALL, LARGE])
async def test_bytes_come_back(engine: Engine, data: bytes) -> None:
    saved = await engine.artifacts.save(SCOPE, "a.bin", data, mime_type="image/png", metadata={"by": "ada"})
    assert (saved.version, saved.size, saved.sha256) == (0, len(data), hashlib.sha256(data).hexdigest())
    found = await engine.artifacts.get(SCOPE, "a.bin")
    assert found == saved
    assert await engine.artifacts.read(found) == data
    assert await engine.artifacts.load(SCOPE, "a.bin") == (saved, data)
    middle = b"".join([part async for part in engine.artifacts.stream(found, start=2, end=7)])
    assert middle == data[2:7]


async def test_large_bytes_are_files_and_small_ones_are_not(engine: Engine, directory: Path) -> None:
    await engine.artifacts.save(SCOPE, "small", SMALL)
    assert not directory.exists()
    await engine.artifacts.save(SCOPE, "large", chunks(LARGE[:5000], LARGE[5000:]))
    [file] = files_in(directory)
    assert file.read_bytes() == LARGE
    assert file.stat().st_mode & 0o077 == 0 or file.parent.stat().st_mode & 0o077 == 0


async def test_versions_count_from_zero_also_for_concurrent_writers(engine: Engine) -> None:
    saved = await asyncio.gather(*(engine.artifacts.save(SCOPE, "a", b"%d" % number) for number in range(20)))
    assert sorted(artifact.version for artifact in saved) == list(range(20))
    versions = await engine.artifacts.versions(SCOPE, "a")
    assert [artifact.version for artifact in versions] == list(range(20))
    for artifact in saved:
        loaded = await engine.artifacts.load(SCOPE, "a", version=artifact.version)
        assert loaded is not None
        assert loaded[0].sha256 == artifact.sha256
    for missing in (20, -1, 2**31, 10**12):
        assert await engine.artifacts.find(SCOPE, "a", version=missing) is None


async def test_a_name_with_the_prefix_belongs_to_the_user(engine: Engine) -> None:
    other_session = ArtifactScope("shop", "ada", "another")
    await engine.artifacts.save(SCOPE, "user:photo", b"1")
    await engine.artifacts.save(SCOPE, "photo", b"2")
    assert (await engine.artifacts.get(other_session, "user:photo")).key == "user:photo"
    assert (await engine.artifacts.get(ArtifactScope("shop", "ada"), "photo")).size == 1
    assert await engine.artifacts.find(other_session, "photo") is None
    assert await engine.artifacts.find(ArtifactScope("shop", "eve", "chat"), "user:photo") is None
    assert await engine.artifacts.list_keys(SCOPE) == ["photo", "user:photo"]
    assert await engine.artifacts.list_keys(ArtifactScope("shop", "ada")) == ["user:photo"]


async def test_pages_list_the_newest_versions(engine: Engine) -> None:
    for name in ("b", "a", "user:c", "ä"):
        await engine.artifacts.save(SCOPE, name, b"1")
    await engine.artifacts.save(SCOPE, "b", b"2")
    listed, cursor = [], None
    while True:
        page = await engine.artifacts.read_page(SCOPE, limit=1, cursor=cursor)
        listed += [(artifact.key, artifact.version) for artifact in page.items]
        if (cursor := page.next_cursor) is None:
            break
    assert listed == [("a", 0), ("b", 1), ("ä", 0), ("user:c", 0)]
    with pytest.raises(InvalidInputError, match="invalid cursor"):
        await engine.artifacts.read_page(SCOPE, cursor="nonsense")


@pytest.mark.parametrize("name", ["", "  ", "user:", "user: ", "a\0b", "\ud800", "x" * 1025])
async def test_bad_names_are_refused(engine: Engine, name: str) -> None:
    with pytest.raises(InvalidInputError, match="filename"):
        await engine.artifacts.save(SCOPE, name, b"1")


async def test_names_of_any_form_are_stored(engine: Engine, directory: Path) -> None:
    names = ["../../etc/passwd", "/abs", "C:\\x", "a/b/c.txt", "émoji 🎈.png", "CON", "x" * 1024]
    for name in names:
        await engine.artifacts.save(SCOPE, name, LARGE + name.encode())
    for name in names:
        loaded = await engine.artifacts.load(SCOPE, name)
        assert loaded is not None
        assert loaded[1] == LARGE + name.encode()
    assert len(files_in(directory)) == len(names)


async def test_too_large_data_is_refused_and_leaves_nothing(engine: Engine, directory: Path) -> None:
    with pytest.raises(LimitExceededError, match="COGNIZES_MAX_ARTIFACT_BYTES"):
        await engine.artifacts.save(SCOPE, "a", chunks(*[LARGE] * 11))
    with pytest.raises(LimitExceededError, match="metadata"):
        await engine.artifacts.save(SCOPE, "a", b"1", metadata={"x": "y" * 20_000})
    assert await engine.artifacts.list_keys(SCOPE) == []
    await engine.artifacts.sweep()
    assert files_in(directory) == []


async def test_a_source_that_fails_leaves_nothing(engine: Engine, directory: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionError("the client left")

    with pytest.raises(ConnectionError):
        await engine.artifacts.save(SCOPE, "a", failing())
    await engine.artifacts.sweep()
    assert files_in(directory) == []


async def test_deleting_an_artifact_deletes_its_files(engine: Engine, directory: Path) -> None:
    for _ in range(3):
        await engine.artifacts.save(SCOPE, "a", LARGE)
    await engine.artifacts.save(SCOPE, "b", LARGE)
    assert await engine.artifacts.delete(SCOPE, "a") == 3
    assert await engine.artifacts.delete(SCOPE, "a") == 0
    await engine.artifacts.sweep()
    assert len(files_in(directory)) == 1
    assert (await engine.artifacts.save(SCOPE, "a", b"1")).version == 0


async def test_deleting_a_session_deletes_its_artifacts_and_files(engine: Engine, directory: Path) -> None:
    session = await engine.sessions.create("shop", "ada", session_id="chat")
    await engine.artifacts.save(ArtifactScope.of(session), "a", LARGE)
    await engine.artifacts.save(ArtifactScope.of(session), "b", SMALL)
    await engine.artifacts.save(ArtifactScope.of(session), "user:c", LARGE)
    await engine.sessions.delete(session)
    assert await engine.artifacts.list_keys(SCOPE) == ["user:c"]
    await engine.artifacts.sweep()
    assert len(files_in(directory)) == 1
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM artifact_blobs") == 1
    with pytest.raises(NotFoundError, match="was deleted"):
        await engine.artifacts.save(SCOPE, "late", LARGE)
    await engine.artifacts.sweep()
    assert len(files_in(directory)) == 1


async def test_a_fork_keeps_the_artifacts_of_its_past(engine: Engine, directory: Path) -> None:
    session = await engine.sessions.create("shop", "ada", session_id="chat")
    await engine.artifacts.save(ArtifactScope.of(session), "early", LARGE)
    async with engine.stream_message(session, role="user") as message:
        await message.write("Hello")
    await engine.artifacts.save(ArtifactScope.of(session), "late", SMALL)
    whole = ArtifactScope.of(await engine.sessions.fork(session))
    past = ArtifactScope.of(await engine.sessions.fork(session, at_sequence=1))
    assert await engine.artifacts.list_keys(whole) == ["early", "late"]
    assert await engine.artifacts.list_keys(past) == ["early"]
    await engine.sessions.delete(session)
    await engine.artifacts.delete(past, "early")
    await engine.artifacts.sweep()
    assert await engine.artifacts.load(whole, "early") is not None
    await engine.artifacts.delete(whole, "early")
    await engine.artifacts.sweep()
    assert files_in(directory) == []


async def test_bytes_of_another_store_are_named_in_the_error(engine: Engine, database_url: str, tmp_path: Path) -> None:
    await engine.artifacts.save(SCOPE, "a", LARGE)
    async with Engine.open(database_url, artifact_store=str(tmp_path / "elsewhere")) as other:
        with pytest.raises(ArtifactStoreError, match="COGNIZES_ARTIFACT_STORE"):
            await other.artifacts.load(SCOPE, "a")
        await engine.artifacts.delete(SCOPE, "a")
        assert await other.artifacts.sweep() == 0


async def test_missing_and_damaged_files_are_errors(engine: Engine, directory: Path) -> None:
    await engine.artifacts.save(SCOPE, "a", LARGE)
    [file] = files_in(directory)
    file.write_bytes(LARGE[:-1] + b"?")
    with pytest.raises(ArtifactStoreError, match="damaged"):
        await engine.artifacts.load(SCOPE, "a")
    file.write_bytes(LARGE[:100])
    with pytest.raises(ArtifactStoreError, match="ends after 100 bytes"):
        await engine.artifacts.load(SCOPE, "a")
    file.unlink()
    with pytest.raises(ArtifactStoreError, match="cannot use"):
        await engine.artifacts.load(SCOPE, "a")


async def test_an_upload_that_expired_is_refused(engine: Engine, directory: Path) -> None:
    """The sweep may have deleted its bytes: the artifact must not refer to them."""

    async def slow() -> AsyncIterator[bytes]:
        yield LARGE
        await database_of(engine).pool.execute("UPDATE artifact_blobs SET delete_after = now()")
        assert await engine.artifacts.sweep() == 1
        yield b"the end"

    with pytest.raises(Exception, match="took longer"):
        await engine.artifacts.save(SCOPE, "a", slow())
    assert await engine.artifacts.list_keys(SCOPE) == []


_KILLED = """
    import asyncio, os, sys
    from cognizes.engine import ArtifactScope, Engine
    from tests.engine_parts import database_of

    async def chunks():
        yield b"x" * 10_000
        if sys.argv[3] == "within":
            os.kill(os.getpid(), 9)

    async def main():
        settings = dict(artifact_store=sys.argv[2], artifact_database_bytes=4096)
        async with Engine.open(sys.argv[1], **settings) as engine:
            fetch_row = database_of(engine).fetch_row

            async def die(query, *arguments):
                if query == "save_artifact":
                    if sys.argv[3] == "after":
                        await fetch_row(query, *arguments)
                    os.kill(os.getpid(), 9)
                return await fetch_row(query, *arguments)

            database_of(engine).fetch_row = die
            await engine.artifacts.save(ArtifactScope("shop", "ada", "chat"), "a", chunks())

    asyncio.run(main())
"""


@pytest.mark.parametrize(("moment", "kept"), [("within", 0), ("before", 0), ("after", 1)])
async def test_kill_9_leaves_no_row_without_bytes_and_no_orphan(
    engine: Engine, database_url: str, directory: Path, moment: str, kept: int
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), database_url, str(directory), moment]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    killed = await asyncio.to_thread(subprocess.run, command, check=False, capture_output=True, env=environment)
    assert killed.returncode == -9, killed.stderr.decode()
    assert len(files_in(directory)) == 1
    assert len(await engine.artifacts.list_keys(SCOPE)) == kept
    assert await engine.artifacts.sweep() == 0, "the upload could still be in progress"
    await database_of(engine).pool.execute(
        "UPDATE artifact_blobs SET delete_after = now() WHERE delete_after IS NOT NULL"
    )
    await engine.artifacts.sweep()
    assert len(files_in(directory)) == kept
    if kept:
        assert await engine.artifacts.load(SCOPE, "a") is not None


async def test_row_level_security_hides_the_artifacts_of_other_apps(
    engine: Engine, database_url: str, directory: Path
) -> None:
    from cognizes.engine.database.tenancy import acting_for

    await engine.artifacts.save(SCOPE, "large", LARGE)
    small = await engine.artifacts.save(SCOPE, "small", SMALL)
    async with Engine.open(
        database_url, auth="required", artifact_store=str(directory), artifact_database_bytes=4096
    ) as guarded:
        with acting_for(["bank"]):
            assert await guarded.artifacts.load(SCOPE, "large") is None
            assert await guarded.artifacts.list_keys(SCOPE) == []
            assert await guarded.artifacts.delete(SCOPE, "small") == 0
            with pytest.raises(NotFoundError):
                await guarded.artifacts.read(small)
            with pytest.raises(Exception, match="row-level security"):
                await guarded.artifacts.save(SCOPE, "small", SMALL)
        with acting_for(["shop"]):
            for data in (SMALL, LARGE):
                saved = await guarded.artifacts.save(SCOPE, "own", data)
                assert await guarded.artifacts.read(saved) == data
            await guarded.artifacts.delete(SCOPE, "own")
    await engine.artifacts.sweep()
    assert len(files_in(directory)) == 1


async def test_plain_sql_deletes_bytes_too(engine: Engine, pool: asyncpg.Pool) -> None:
    await engine.artifacts.save(SCOPE, "a", SMALL)
    await engine.artifacts.save(SCOPE, "b", LARGE)
    await pool.execute("DELETE FROM artifacts")
    assert await engine.artifacts.sweep() == 1
    assert await pool.fetchval("SELECT count(*) FROM artifact_blobs") == 0
