"""Seed 003 §8.2: the shipped client against a server, with what gets lost on the way."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, Session
from cognizes.engine.sync.client import Connection, ContextCopy, SignalPullClient
from tests.engine_parts import database_of
from tests.integration.sync.conftest import TIMEOUT, kept_port, serving, until


async def reached(client: SignalPullClient, condition: Callable[[ContextCopy], Any]) -> ContextCopy:
    async with asyncio.timeout(TIMEOUT):
        return await client.wait_for(condition)


def texts(copy: ContextCopy) -> list[str]:
    return [message.text for message in copy.messages]


def is_whole(count: int) -> Callable[[ContextCopy], bool]:
    return lambda copy: len(copy.messages) == count and all(message.is_complete for message in copy.messages)


async def say(engine: Engine, session: Session, text: str) -> None:
    fresh = await engine.sessions.store.get_thread(session.thread_id)
    await engine.sessions.append(fresh, author="user", kind="user_message", text=text)


async def test_8_2_end_to_end_streaming(engine: Engine, session: Session, url: str) -> None:
    await say(engine, session, "before")
    seen: list[str] = []

    def note(copy: ContextCopy) -> None:
        seen.extend(message.text for message in copy.messages if message.id == "m")

    async with SignalPullClient(url, session.id, on_change=note) as client:
        await reached(client, lambda copy: texts(copy) == ["before"])
        await say(engine, session, "hi")
        async with engine.stream_message(session, message_id="m") as message:
            await message.write("Hel")
            await reached(client, lambda copy: texts(copy)[-1] == "Hel" and copy.state == "StreamingLLMResponse")
            for token in ("lo", " ", "world"):
                await message.write(token)
        await reached(client, lambda copy: is_whole(3)(copy) and copy.state == "Idle")
        assert texts(client.copy) == ["before", "hi", "Hello world"]
    assert all("Hello world".startswith(text) for text in seen), seen
    assert [len(text) for text in seen] == sorted(len(text) for text in seen)


class LossyClient(SignalPullClient):
    """Hears seven of ten signals; the random numbers are the same each time."""

    def __init__(self, *arguments: Any, seed: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._random = random.Random(seed)
        self.dropped = 0

    def handle(self, signal: dict[str, Any]) -> None:
        if self._random.random() < 0.3:
            self.dropped += 1
        else:
            super().handle(signal)


class FlakyTransport(httpx.AsyncHTTPTransport):
    """One pull in five fails, before or after the server has answered it; the first or the second is such a one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._pulls = -seed
        self.killed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return await super().handle_async_request(request)
        self._pulls += 1
        if self._pulls % 5:
            return await super().handle_async_request(request)
        self.killed += 1
        if self.killed % 2:
            response = await super().handle_async_request(request)
            await response.aclose()
        raise httpx.ReadError("the connection was killed", request=request)


@pytest.mark.parametrize("seed", [1, 2])
async def test_8_2_lost_signals_and_killed_pulls_are_repaired(engine: Engine, session: Session, seed: int) -> None:
    transport = FlakyTransport(seed)
    wrong: list[str] = []
    whole = "".join(f"token {number} " for number in range(300))

    def check(copy: ContextCopy) -> None:
        wrong.extend(
            message.text for message in copy.messages if message.id == "m" and not whole.startswith(message.text)
        )

    async with (
        serving(engine, seconds=1, beat=0.1) as url,
        LossyClient(url, session.thread_id, seed=seed, transport=transport, debounce=0.001, on_change=check) as client,
    ):
        await say(engine, session, "hi")
        async with engine.stream_message(session, message_id="m") as message:
            for number in range(300):
                await message.write(f"token {number} ")
                if number % 10 == 0:
                    await asyncio.sleep(0.002)  # so that there is more than one signal to lose
        await say(engine, session, "bye")
        stored = [message.content for message in await engine.sessions.messages(session)]
        assert stored == ["hi", whole, "bye"]
        await reached(client, lambda copy: is_whole(3)(copy) and texts(copy) == stored)
        # Enough was lost for the healing to have been needed.
        await until(lambda: client.dropped and transport.killed)
    assert wrong == []


async def test_8_2_reconnection_brings_everything_that_was_missed(engine: Engine, session: Session) -> None:
    with kept_port() as port:
        async with serving(engine, port=port) as url:
            client = SignalPullClient(url, session.thread_id)
            await client.__aenter__()
            await say(engine, session, "one")
            await reached(client, is_whole(1))
        # There is no subscriber: this signal reaches no reader.
        async with engine.stream_message(session, message_id="m") as message:
            for token in ("while ", "you ", "were "):
                await message.write(token)
            async with serving(engine, port=port):
                await reached(client, lambda copy: texts(copy) == ["one", "while you were "])
                await message.write("away")
                await message.complete()
                # A pull may see that the message is complete before the signal of the state is heard.
                await reached(client, lambda copy: is_whole(2)(copy) and copy.state == "Idle")
                assert texts(client.copy) == ["one", "while you were away"]
                await until(lambda: client.connections >= 2)
                await client.__aexit__(None, None, None)


async def test_8_2_batches_of_messages(engine: Engine, session: Session, url: str) -> None:
    """More messages at once than a pull takes."""
    async with SignalPullClient(url, session.thread_id) as client:
        await reached(client, lambda copy: copy.state == "Idle")
        await asyncio.gather(*(
            engine.sessions.append(session, author="user", kind="user_message", text=str(number))
            for number in range(120)
        ))  # fmt: skip
        await reached(client, is_whole(120))
        assert sorted(map(int, texts(client.copy))) == list(range(120))
    async with SignalPullClient(url, session.thread_id) as late:
        await reached(late, is_whole(120))
        assert texts(late.copy) == [message.content for message in await engine.sessions.messages(session)]


async def test_messages_of_the_previous_branch_disappear(engine: Engine, session: Session, url: str) -> None:
    await say(engine, session, "one")
    await engine.branches.create(session.thread_id, "other")
    shown: list[tuple[str, tuple[str, ...]]] = []
    async with SignalPullClient(
        url, session.thread_id, on_change=lambda copy: shown.append((copy.branch, tuple(texts(copy))))
    ) as client:
        await reached(client, is_whole(1))
        async with engine.stream_message(session) as message:
            await message.write("on main")
        await reached(client, is_whole(2))
        await engine.branches.switch(session.thread_id, "other")
        await say(engine, session, "on other")
        await reached(client, lambda copy: texts(copy) == ["one", "on other"])
        assert client.copy.branch == "other"
        await engine.branches.switch(session.thread_id, "main")
        await reached(client, lambda copy: copy.branch == "main" and texts(copy) == ["one", "on main"])
    assert not [texts_seen for branch, texts_seen in shown if branch == "other" and "on main" in texts_seen]
    assert not [texts_seen for branch, texts_seen in shown if branch == "main" and "on other" in texts_seen]


async def test_an_interrupted_message_is_complete_and_marked(engine: Engine, session: Session, url: str) -> None:
    async with SignalPullClient(url, session.thread_id) as client:
        with pytest.raises(RuntimeError):
            async with engine.stream_message(session, message_id="m") as message:
                await message.write("Hel")
                await reached(client, lambda copy: texts(copy) == ["Hel"])
                raise RuntimeError("the model is gone")
        await reached(client, is_whole(1))
        assert client.copy.messages[0].is_interrupted


async def test_approvals_and_titles_reach_the_copy(engine: Engine, session: Session, url: str) -> None:
    async with SignalPullClient(url, session.thread_id) as client:
        await reached(client, lambda copy: copy.state == "Idle")
        asked = await engine.approvals.ask(session.thread_id, tool_name="delete")
        await reached(client, lambda copy: copy.approvals == {asked.id: "requested"})
        await engine.sessions.change(session, title="A title")
        await reached(client, lambda copy: copy.title == "A title")


async def test_a_missing_context_is_an_error(url: str) -> None:
    async with SignalPullClient(url, "missing") as client:
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            await reached(client, lambda _: False)


async def test_a_stream_without_text_is_a_message_only_if_it_was_completed(
    engine: Engine, session: Session, url: str
) -> None:
    async with SignalPullClient(url, session.thread_id) as client:
        async with engine.stream_message(session, message_id="completed"):
            await reached(client, lambda copy: len(copy.messages) == 1)
        with pytest.raises(RuntimeError):
            async with engine.stream_message(session, message_id="aborted"):
                await reached(client, lambda copy: len(copy.messages) == 2)
                raise RuntimeError
        await reached(client, lambda copy: copy.state == "Idle" and len(copy.messages) == 1 and is_whole(1)(copy))
        assert client.copy.messages[0].id == "completed"


class NewerServer(httpx.AsyncHTTPTransport):
    """Inserts signals of an unknown type, an invalid one, and one with a Unicode line separator in an id."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.url.path.endswith("/events"):
            response.stream = _Prefixed(response.stream)  # type: ignore[arg-type]
        return response


class _Prefixed(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'event: signal\ndata: {"type": "presence_changed", "context_id": "c"}\n\n'
        yield b"event: signal\ndata: {broken\n\n"
        yield 'event: signal\ndata: {"type": "tool_approval", "context_id": "c", "approval_id": "a\u2028b", '.encode()
        yield b'"status": "asked"}\n\n'
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_unknown_signals_are_ignored_and_counted(engine: Engine, session: Session, url: str) -> None:
    async with SignalPullClient(url, session.thread_id, transport=NewerServer()) as client:
        await say(engine, session, "hi")
        await reached(client, lambda copy: texts(copy) == ["hi"])
        assert client.ignored_signals == 2
        assert client.copy.approvals == {"a\u2028b": "asked"}
        assert client.connections == 1


async def test_an_unexpected_error_ends_the_client_instead_of_hanging(
    engine: Engine, session: Session, url: str
) -> None:
    class Broken(SignalPullClient):
        def handle(self, signal: dict[str, Any]) -> None:
            raise KeyError("new_state")

    async with Broken(url, session.thread_id) as client:
        await say(engine, session, "hi")
        with pytest.raises(KeyError, match="new_state"):
            await reached(client, lambda _: False)


async def test_the_client_reports_that_it_reconnects(engine: Engine, session: Session) -> None:
    reported: list[Connection] = []
    with kept_port() as port:
        async with serving(engine, port=port) as url:
            client = SignalPullClient(url, session.thread_id, on_connection=reported.append)
            assert client.connection is Connection.CONNECTING
            await client.__aenter__()
            await reached(client, lambda copy: copy.state == "Idle")
        await until(lambda: client.connection is Connection.RECONNECTING)
        async with serving(engine, port=port):
            await until(lambda: client.connection is Connection.OPEN)
            await client.__aexit__(None, None, None)
    # A server that is stopping may accept one more connection before it closes.
    assert reported[:2] == [Connection.OPEN, Connection.RECONNECTING]
    assert set(reported[::2]) == {Connection.OPEN}
    assert set(reported[1::2]) == {Connection.RECONNECTING}


class CountingTransport(httpx.AsyncHTTPTransport):
    """Counts the messages that lists of a branch bring."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.url.path.endswith("/messages") and "branch" in request.url.params:
            self.listed += len(json.loads(await response.aread())["messages"])
        return response


async def test_switching_back_to_a_branch_pulls_only_what_is_new(engine: Engine, session: Session, url: str) -> None:
    for number in range(20):
        await say(engine, session, str(number))
    await engine.branches.create(session.thread_id, "other", at_sequence=1)
    transport = CountingTransport()
    async with SignalPullClient(url, session.thread_id, transport=transport) as client:
        await reached(client, is_whole(20))
        await engine.branches.switch(session.thread_id, "other")
        await reached(client, lambda copy: copy.branch == "other" and texts(copy) == ["0"])
        before = transport.listed
        await engine.branches.switch(session.thread_id, "main")
        await reached(client, lambda copy: copy.branch == "main")
        assert texts(client.copy) == [str(number) for number in range(20)]
        assert transport.listed - before <= 2


async def test_a_branch_created_again_under_its_old_name_is_not_shown_from_the_cache(
    engine: Engine, session: Session, url: str
) -> None:
    await say(engine, session, "one")
    await say(engine, session, "two")
    await engine.branches.create(session.thread_id, "other", at_sequence=1)
    async with SignalPullClient(url, session.thread_id) as client:
        for text in ("first", "second"):
            await engine.branches.switch(session.thread_id, "other")
            await say(engine, session, text)
            await reached(client, lambda copy, text=text: texts(copy) == ["one", text])
            await engine.branches.switch(session.thread_id, "main")
            await reached(client, lambda copy: texts(copy) == ["one", "two"])
            await engine.branches.delete(session.thread_id, "other")
            await engine.branches.create(session.thread_id, "other", at_sequence=1)


async def test_a_message_that_was_stored_shorter_than_it_was_shown_is_read_again(
    engine: Engine, session: Session, url: str
) -> None:
    """Its producer and the backend were lost together: only the first chunk is left."""
    async with SignalPullClient(url, session.id) as client:
        await engine.streams.open(session.thread_id, message_id="m")
        for number, text in enumerate(("one ", "two ", "three"), start=1):
            await engine.streams.append(session.thread_id, "m", first_sequence=number, deltas=[text])
        await reached(client, lambda copy: texts(copy) == ["one two three"])
        await database_of(engine).pool.execute("DELETE FROM message_chunks WHERE sequence > 1")
        assert await engine.streams.abort(session.thread_id, "m") == 1
        page = await engine.streams.read(session.thread_id, "m", after=3)
        assert (page.chunks, page.current_sequence) == ([], 1)  # which tells a reader that it has too much
        copy = await reached(client, is_whole(1))
        assert texts(copy) == ["one "]


class DeafClient(SignalPullClient):
    """Misses the signals of the chunks 2 to 4, and the heartbeats that would make good for them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.missed: list[int] = []

    def handle(self, signal: dict[str, Any]) -> None:
        if signal["type"] == "content_delta" and signal["current_sequence"] in (2, 3, 4):
            self.missed.append(signal["current_sequence"])
        elif signal["type"] != "heartbeat":
            super().handle(signal)


async def test_8_1_a_gap_between_two_signals_is_detected_and_pulled(engine: Engine, session: Session, url: str) -> None:
    async with (
        DeafClient(url, session.thread_id) as client,
        engine.stream_message(session, message_id="m") as message,
    ):
        await message.write("1 ")
        await reached(client, lambda copy: texts(copy) == ["1 "])
        detected = client.gaps
        for number in (2, 3, 4):
            await message.write(f"{number} ")
            await until(lambda number=number: client.missed and client.missed[-1] == number)
        assert (texts(client.copy), client.gaps) == (["1 "], detected)
        await message.write("5 ")
        await reached(client, lambda copy: texts(copy) == ["1 2 3 4 5 "])
        assert client.gaps == detected + 1
