"""Artifacts in a bucket of an S3-compatible server (moto's), through the public interface."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from cognizes.engine import ArtifactScope, ArtifactStoreError, Engine, LimitExceededError, SetupError
from tests.engine_parts import database_of

pytest.importorskip("moto", reason="the S3 server is in the dependency group ci")
pytest.importorskip("obstore", reason="needs the extra s3")

SCOPE = ArtifactScope("shop", "ada", "chat")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> str:
    import httpx

    assert httpx.put(f"{endpoint}/files").status_code == 200
    return "files"


@pytest.fixture
def settings(endpoint: str, bucket: str, database_url: str) -> dict[str, object]:
    return {
        "database_url": database_url,
        "artifact_store": f"s3://{bucket}/{database_url.rpartition('/')[2][:20]}",
        "artifact_endpoint": endpoint,
        "artifact_region": "us-east-1",
        "artifact_access_key": "key",
        "artifact_secret_key": "secret",
        "artifact_database_bytes": 1000,
        "max_artifact_bytes": 20_000_000,
    }


@pytest.fixture
async def engine(settings: dict[str, object]) -> AsyncIterator[Engine]:
    async with Engine.open(**settings) as opened:
        yield opened


def objects(settings: dict[str, object]) -> list[str]:
    """Return the keys of the objects below the prefix of a store, read by another client."""
    import re

    import httpx

    _, _, place = str(settings["artifact_store"]).partition("://")
    name, _, prefix = place.partition("/")
    listed = httpx.get(f"{settings['artifact_endpoint']}/{name}", params={"list-type": 2, "prefix": prefix}).text
    return re.findall("<Key>([^<]+)</Key>", listed)


async def chunks(size: int) -> AsyncIterator[bytes]:
    """Yield random bytes, the same for each call of a process."""
    block = os.urandom(256 * 1024) if not _BLOCK else _BLOCK[0]
    _BLOCK[:] = [block]
    while size > 0:
        yield block[:size]
        size -= len(block)


_BLOCK: list[bytes] = []


@pytest.mark.parametrize("size", [10_000, 12_000_000])
async def test_objects_come_back_whole_and_in_ranges(engine: Engine, settings: dict[str, object], size: int) -> None:
    saved = await engine.artifacts.save(SCOPE, "a", chunks(size), mime_type="video/mp4")
    assert saved.size == size
    assert len(objects(settings)) == 1
    whole = await engine.artifacts.read(saved)
    assert whole == b"".join([chunk async for chunk in chunks(size)])
    part = b"".join([chunk async for chunk in engine.artifacts.stream(saved, start=5000, end=9000)])
    assert part == whole[5000:9000]
    assert [chunk async for chunk in engine.artifacts.stream(saved, start=size)] == []
    await engine.artifacts.delete(SCOPE, "a")
    await engine.artifacts.sweep()
    assert objects(settings) == []


async def test_small_bytes_stay_in_the_database(engine: Engine, settings: dict[str, object]) -> None:
    await engine.artifacts.save(SCOPE, "small", b"1" * 1000)
    assert objects(settings) == []


async def test_an_upload_that_fails_leaves_no_object(engine: Engine, settings: dict[str, object]) -> None:
    with pytest.raises(LimitExceededError):
        await engine.artifacts.save(SCOPE, "a", chunks(20_000_001))

    async def failing() -> AsyncIterator[bytes]:
        yield b"x" * 6_000_000
        raise ConnectionError("the client left")

    with pytest.raises(ConnectionError, match="the client left"):
        await engine.artifacts.save(SCOPE, "a", failing())
    await engine.artifacts.sweep()
    assert objects(settings) == []
    assert await engine.artifacts.list_keys(SCOPE) == []
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM artifact_blobs") == 0


async def test_an_object_that_is_gone_is_an_error(engine: Engine, settings: dict[str, object]) -> None:
    import httpx

    saved = await engine.artifacts.save(SCOPE, "a", b"x" * 5000)
    [key] = objects(settings)
    httpx.delete(f"{settings['artifact_endpoint']}/files/{key}")
    with pytest.raises(ArtifactStoreError, match="could not be read"):
        await engine.artifacts.read(saved)
    # The sweep deletes the row although the object is gone.
    await engine.artifacts.delete(SCOPE, "a")
    await engine.artifacts.sweep()
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM artifact_blobs") == 0


async def test_a_bucket_that_does_not_exist_is_named(settings: dict[str, object]) -> None:
    settings["artifact_store"] = "s3://missing/place"
    async with Engine.open(**settings) as engine:
        with pytest.raises(ArtifactStoreError, match="s3://missing/place"):
            await engine.artifacts.save(SCOPE, "a", b"x" * 5000)
        assert await engine.artifacts.list_keys(SCOPE) == []


@pytest.mark.parametrize("store", ["s3://", "gopher://x", "s3:///prefix"])
async def test_a_store_that_cannot_be_used_is_refused_at_the_start(database_url: str, store: str) -> None:
    with pytest.raises(SetupError, match="COGNIZES_ARTIFACT_STORE"):
        async with Engine.open(database_url, artifact_store=store):
            pass
