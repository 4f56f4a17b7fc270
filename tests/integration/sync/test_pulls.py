"""Seed 003 §2.3: pulling the chunks of a message, while it grows and ever after."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, Session

pytestmark = pytest.mark.pgbouncer

IMMUTABLE = "private, max-age=31536000, immutable"


async def pull(client: httpx.AsyncClient, session: Session, message_id: str, **params: Any) -> dict[str, Any]:
    answer = await client.get(f"/contexts/{session.thread_id}/messages/{message_id}/streaming-chunks", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(page: dict[str, Any]) -> str:
    return "".join(chunk["delta"] for chunk in page["chunks"])


async def test_8_1_the_answer_has_the_form_of_the_seed(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    async with engine.stream_message(session, message_id="m") as message:
        for token in ("a", "b", "c", "d", "Hello", " world", "!"):
            await message.write(token)
        page = await pull(client, session, "m", from_sequence=4)
        assert page == {
            "context_id": session.thread_id, "message_id": "m",
            "chunks": [
                {"sequence": 5, "delta": "Hello"}, {"sequence": 6, "delta": " world"}, {"sequence": 7, "delta": "!"},
            ],
            "current_sequence": 7, "has_more": False, "status": "streaming",
        }  # fmt: skip
    page = await pull(client, session, "m")
    assert (text_of(page), page["current_sequence"], page["status"]) == ("abcdHello world!", 7, "completed")


async def test_ranges_limits_and_what_is_not_there_yet(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    async with engine.stream_message(session, message_id="m") as message:
        for number in range(1, 11):
            await message.write(str(number % 10))
        page = await pull(client, session, "m", from_sequence=2, to=5)
        assert ([chunk["sequence"] for chunk in page["chunks"]], page["has_more"]) == ([3, 4, 5], False)
        page = await pull(client, session, "m", limit=4)
        assert (text_of(page), page["has_more"], page["current_sequence"]) == ("1234", True, 10)
        page = await pull(client, session, "m", from_sequence=10)
        assert (page["chunks"], page["has_more"]) == ([], False)
        page = await pull(client, session, "m", from_sequence=10**12)
        assert (page["chunks"], page["has_more"], page["current_sequence"]) == ([], False, 10)


async def test_a_client_that_follows_has_more_gets_everything(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    async with engine.stream_message(session, message_id="m") as message:
        for number in range(25):
            await message.write(f"{number} ")
        text, last = "", 0
        while True:
            page = await pull(client, session, "m", from_sequence=last, limit=7)
            text += text_of(page)
            last = page["chunks"][-1]["sequence"]
            if not page["has_more"]:
                break
    assert text == "".join(f"{number} " for number in range(25))


async def test_immutable_responses_are_cached(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    path = f"/contexts/{session.thread_id}/messages/m/streaming-chunks"
    async with engine.stream_message(session, message_id="m") as message:
        for _ in range(6):
            await message.write("x")
        growing = await client.get(path)
        assert "etag" not in growing.headers
        assert growing.headers["cache-control"] == "private, no-cache"
        closed = await client.get(path, params={"from_sequence": 1, "to": 3})
        assert closed.headers["cache-control"] == IMMUTABLE
        open_end = await client.get(path, params={"from_sequence": 1, "to": 9})
        assert "etag" not in open_end.headers
        tags = {"If-None-Match": closed.headers["etag"]}
        await message.write("y")
        again = await client.get(path, params={"from_sequence": 1, "to": 3}, headers=tags)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", closed.headers["etag"])
        other = await client.get(path, params={"from_sequence": 1, "to": 4}, headers=tags)
        assert other.status_code == 200

    finished = await client.get(path)
    assert finished.headers["cache-control"] == IMMUTABLE
    tags = {"If-None-Match": f'"other", {finished.headers["etag"]}'}
    assert (await client.get(path, headers=tags)).status_code == 304
    # The range that was closed while the message grew is the same one now.
    again = await client.get(path, params={"from_sequence": 1, "to": 3})
    assert again.headers["etag"] == closed.headers["etag"]

    by_id = await client.get(f"/contexts/{session.thread_id}/messages", params={"ids": "m"})
    assert by_id.headers["cache-control"] == IMMUTABLE
    tags = {"If-None-Match": by_id.headers["etag"]}
    assert (await client.get(by_id.url.raw_path.decode(), headers=tags)).status_code == 304
    missing = await client.get(f"/contexts/{session.thread_id}/messages", params={"ids": "m,later"})
    assert "etag" not in missing.headers


async def test_pulls_are_compressed(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    async with engine.stream_message(session, message_id="m") as message:
        for number in range(400):
            await message.write(f"token {number % 10} ")
    path = f"/contexts/{session.thread_id}/messages/m/streaming-chunks"
    plain = await client.get(path, headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    for encoding in ("gzip", "br, gzip;q=0.5", "*"):
        async with client.stream("GET", path, headers={"Accept-Encoding": encoding}) as packed:
            raw = b"".join([part async for part in packed.aiter_raw()])
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert json.loads(gzip.decompress(raw)) == plain.json()
        assert len(raw) < len(plain.content) / 5
    refused = await client.get(path, headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


async def test_waiting_for_more(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    async with engine.stream_message(session, message_id="m") as message:
        await message.write("one")
        waiting = asyncio.create_task(pull(client, session, "m", from_sequence=1, wait=60))
        await message.write("two")
        assert text_of(await waiting) == "two"
        # The end is news as well.
        waiting = asyncio.create_task(pull(client, session, "m", from_sequence=2, wait=60))
    assert ((await waiting)["chunks"], (await waiting)["status"]) == ([], "completed")
    assert (await pull(client, session, "m", from_sequence=2, wait=60))["chunks"] == []


@pytest.mark.parametrize("text", ["nul \x00", "emoji \U0001f600", "line\nline", "\ud800 lone", "  "])
async def test_any_text_comes_back_as_it_was(
    engine: Engine, session: Session, client: httpx.AsyncClient, text: str
) -> None:
    async with engine.stream_message(session, message_id="m") as message:
        await message.write(text)
        assert await _raw(client, session) == text
    assert await _raw(client, session) == text


async def _raw(client: httpx.AsyncClient, session: Session) -> str:
    from cognizes.engine.database.documents import load_json

    answer = await client.get(f"/contexts/{session.thread_id}/messages/m/streaming-chunks")
    return "".join(chunk["delta"] for chunk in load_json(answer.text)["chunks"])


async def test_a_message_that_was_never_streamed_is_one_chunk(
    engine: Engine, session: Session, client: httpx.AsyncClient
) -> None:
    await engine.sessions.append(session, author="user", kind="user_message", text="hi", content={"message_id": "u"})
    page = await pull(client, session, "u")
    assert (page["chunks"], page["current_sequence"]) == ([{"sequence": 1, "delta": "hi"}], 1)


async def test_8_2_a_hundred_pulls_at_once(engine: Engine, session: Session, client: httpx.AsyncClient) -> None:
    messages = {}
    for number in range(10):
        async with engine.stream_message(session, message_id=f"m{number}") as message:
            for token in range(50):
                await message.write(f"{number}.{token} ")
        messages[f"m{number}"] = "".join(f"{number}.{token} " for token in range(50))
    pages = await asyncio.gather(*(pull(client, session, f"m{number % 10}") for number in range(100)))
    assert all(text_of(page) == messages[page["message_id"]] for page in pages)
