"""The contract of ADK's artifact services, on ADK's own in-memory service too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.artifacts.artifact_util import get_artifact_uri
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

from cognizes.engine.adapters.adk import OpenArtifactService, OpenSessionService

CHAT = {"app_name": "shop", "user_id": "ada", "session_id": "chat"}
OTHER = {"app_name": "shop", "user_id": "ada", "session_id": "other"}
LARGE = bytes(range(256)) * 100


def picture(data: bytes = b"png", **fields: Any) -> types.Part:
    return types.Part(inline_data=types.Blob(data=data, mime_type="image/png", **fields))


def reference(filename: str, *, version: int = 0, session_id: str | None = "chat", user_id: str = "ada") -> types.Part:
    uri = get_artifact_uri("shop", user_id, filename, version, session_id)
    return types.Part(file_data=types.FileData(file_uri=uri))


@pytest.fixture(params=["engine", "in memory"])
async def service(
    request: pytest.FixtureRequest, database_url: str, tmp_path: Path
) -> AsyncIterator[BaseArtifactService]:
    if request.param == "in memory":
        yield InMemoryArtifactService()
        return
    async with OpenArtifactService(
        database_url, artifact_store=str(tmp_path), artifact_database_bytes=10_000
    ) as opened:
        yield opened


@pytest.mark.parametrize(
    "part",
    [
        picture(),
        picture(LARGE, display_name="Photo"),
        types.Part(text="Grüße 🎈"),
        types.Part(text=""),
        types.Part(inline_data=types.Blob(data=b"text", mime_type="text/plain")),
        types.Part(file_data=types.FileData(file_uri="gs://bucket/file", mime_type="video/mp4")),
    ],
)
async def test_a_part_comes_back_as_it_was_saved(service: BaseArtifactService, part: types.Part) -> None:
    assert await service.save_artifact(**CHAT, filename="a", artifact=part) == 0
    assert await service.load_artifact(**CHAT, filename="a") == part


async def test_a_part_may_be_a_dictionary(service: BaseArtifactService) -> None:
    given = {"inlineData": {"data": "cG5n", "mimeType": "image/png"}}
    await service.save_artifact(**CHAT, filename="a", artifact=given)
    assert await service.load_artifact(**CHAT, filename="a") == picture()


async def test_versions(service: BaseArtifactService) -> None:
    for number in range(3):
        saved = await service.save_artifact(**CHAT, filename="a", artifact=types.Part(text=str(number)))
        assert saved == number
    assert await service.list_versions(**CHAT, filename="a") == [0, 1, 2]
    assert await service.load_artifact(**CHAT, filename="a", version=1) == types.Part(text="1")
    assert await service.load_artifact(**CHAT, filename="a") == types.Part(text="2")
    for missing in (3, -1):
        assert await service.load_artifact(**CHAT, filename="a", version=missing) is None
        assert await service.get_artifact_version(**CHAT, filename="a", version=missing) is None


async def test_metadata_of_versions(service: BaseArtifactService) -> None:
    await service.save_artifact(**CHAT, filename="a", artifact=picture(), custom_metadata={"by": {"name": "ada"}})
    await service.save_artifact(**CHAT, filename="a", artifact=types.Part(text="x"))
    first, second = await service.list_artifact_versions(**CHAT, filename="a")
    assert (first.version, first.mime_type, first.custom_metadata) == (0, "image/png", {"by": {"name": "ada"}})
    assert (second.version, second.mime_type, second.custom_metadata) == (1, "text/plain", {})
    assert 0 < first.create_time <= second.create_time
    assert first.canonical_uri != second.canonical_uri
    newest = await service.get_artifact_version(**CHAT, filename="a")
    oldest = await service.get_artifact_version(**CHAT, filename="a", version=0)
    assert (newest, oldest) == (second, first)


async def test_scopes(service: BaseArtifactService) -> None:
    await service.save_artifact(**CHAT, filename="a", artifact=picture(b"1"))
    await service.save_artifact(**CHAT, filename="user:b", artifact=picture(b"2"))
    await service.save_artifact(**OTHER, filename="folder/c", artifact=picture(b"3"))
    assert await service.list_artifact_keys(**CHAT) == ["a", "user:b"]
    assert await service.list_artifact_keys(**OTHER) == ["folder/c", "user:b"]
    assert await service.list_artifact_keys(app_name="shop", user_id="ada") == ["user:b"]
    assert await service.list_artifact_keys(app_name="shop", user_id="eve", session_id="chat") == []
    assert await service.load_artifact(**OTHER, filename="user:b") == picture(b"2")
    assert await service.load_artifact(app_name="shop", user_id="ada", filename="user:b") == picture(b"2")
    assert await service.load_artifact(**OTHER, filename="a") is None
    assert await service.load_artifact(app_name="bank", user_id="ada", session_id="chat", filename="a") is None


async def test_delete(service: BaseArtifactService) -> None:
    for _ in range(2):
        await service.save_artifact(**CHAT, filename="a", artifact=picture())
    await service.save_artifact(**CHAT, filename="a/b", artifact=picture())
    await service.delete_artifact(**CHAT, filename="a")
    await service.delete_artifact(**CHAT, filename="missing")
    assert await service.load_artifact(**CHAT, filename="a") is None
    assert await service.list_versions(**CHAT, filename="a") == []
    assert await service.list_artifact_versions(**CHAT, filename="a") == []
    assert await service.list_artifact_keys(**CHAT) == ["a/b"]
    assert await service.save_artifact(**CHAT, filename="a", artifact=picture()) == 0


async def test_references_are_followed(service: BaseArtifactService) -> None:
    await service.save_artifact(**CHAT, filename="a", artifact=picture())
    await service.save_artifact(**CHAT, filename="user:u", artifact=picture(b"u"))
    await service.save_artifact(**CHAT, filename="to a", artifact=reference("a"))
    await service.save_artifact(**CHAT, filename="to u", artifact=reference("user:u", session_id=None))
    assert await service.load_artifact(**CHAT, filename="to a") == picture()
    assert await service.load_artifact(**CHAT, filename="to u") == picture(b"u")
    await service.delete_artifact(**CHAT, filename="a")
    assert await service.load_artifact(**CHAT, filename="to a") is None


@pytest.mark.parametrize(
    "part",
    [
        types.Part(),
        reference("a", user_id="eve"),
        reference("a", session_id="other"),
        types.Part(file_data=types.FileData(file_uri="artifact://nonsense")),
    ],
)
async def test_what_cannot_be_saved_is_refused(service: BaseArtifactService, part: types.Part) -> None:
    with pytest.raises(InputValidationError):
        await service.save_artifact(**CHAT, filename="a", artifact=part)
    assert await service.list_artifact_keys(**CHAT) == []


async def test_references_in_a_circle_are_an_error(service: BaseArtifactService) -> None:
    await service.save_artifact(**CHAT, filename="a", artifact=reference("b"))
    await service.save_artifact(**CHAT, filename="b", artifact=reference("a"))
    with pytest.raises(InputValidationError):
        await service.load_artifact(**CHAT, filename="a")


async def test_what_a_rewind_removed_is_absent(service: BaseArtifactService) -> None:
    await service.save_artifact(**CHAT, filename="a", artifact=picture())
    removed = types.Part(inline_data=types.Blob(mime_type="application/octet-stream", data=b""))
    await service.save_artifact(**CHAT, filename="a", artifact=removed)
    assert await service.load_artifact(**CHAT, filename="a") is None
    assert await service.load_artifact(**CHAT, filename="a", version=0) == picture()


async def test_concurrent_saves_get_versions_without_gaps(service: BaseArtifactService) -> None:
    saves = [service.save_artifact(**CHAT, filename="a", artifact=picture(b"%d" % number)) for number in range(10)]
    assert sorted(await asyncio.gather(*saves)) == list(range(10))


async def test_artifacts_go_with_their_session_and_outlive_the_service(database_url: str, tmp_path: Path) -> None:
    settings = {"artifact_store": str(tmp_path), "artifact_database_bytes": 10}
    sessions = OpenSessionService(database_url, **settings)
    await sessions.create_session(**CHAT)
    async with OpenArtifactService(database_url, **settings) as first:
        await first.save_artifact(**CHAT, filename="a", artifact=picture(LARGE))
    async with OpenArtifactService(database_url, **settings) as second:
        assert await second.load_artifact(**CHAT, filename="a") == picture(LARGE)
        await sessions.delete_session(**CHAT)
        assert await second.list_artifact_keys(**CHAT) == []
    await sessions.close()


async def test_a_too_large_artifact_is_refused(database_url: str) -> None:
    async with OpenArtifactService(database_url, max_artifact_bytes=100) as service:
        with pytest.raises(InputValidationError, match="COGNIZES_MAX_ARTIFACT_BYTES"):
            await service.save_artifact(**CHAT, filename="a", artifact=picture(LARGE))
