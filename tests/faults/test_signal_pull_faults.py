"""Signal-Pull when things break: a server that restarts in the middle of a message, a reader that never reads."""

from __future__ import annotations

import asyncio
import socket

import httpx

from cognizes.engine import Engine, Session
from cognizes.engine.sync.client import SignalPullClient
from tests.integration.sync.conftest import TIMEOUT, kept_port, serving, until


async def post_chunks(http: httpx.AsyncClient, path: str, first: int, deltas: list[str]) -> None:
    """Sends chunks as a producer does that heard no answer: again, until there is one."""

    async def is_sent() -> bool:
        try:
            answer = await http.post(f"{path}/chunks", json={"first_sequence": first, "deltas": deltas})
        except httpx.TransportError:
            return False
        assert answer.status_code == 200, answer.text
        return True

    await until(is_sent)


async def test_a_server_that_restarts_in_the_middle_of_a_message(database_url: str) -> None:
    """Two engines, one after the other on one database; the producer and the client notice no more than a pause."""
    with kept_port() as port:
        await _restart_in_the_middle(database_url, port)


async def _restart_in_the_middle(database_url: str, port: int) -> None:
    tokens = [f"token {number} " for number in range(40)]
    engine = await Engine.open(database_url).start()
    session = await engine.sessions.create("shop", "ada")
    path = f"/contexts/{session.thread_id}/messages/m"
    async with serving(engine, port=port) as url:
        client = SignalPullClient(url, session.thread_id)
        http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT)
        await client.__aenter__()
        await http.post(path.removesuffix("m") + "stream", json={"message_id": "m"})
        await post_chunks(http, path, 1, tokens[:20])
        async with asyncio.timeout(TIMEOUT):
            await client.wait_for(lambda copy: copy.messages and copy.messages[0].sequence == 20)
    await engine.close()

    sending = asyncio.create_task(post_chunks(http, path, 21, tokens[20:]))  # no server is running yet
    async with Engine.open(database_url) as restarted, serving(restarted, port=port):
        await sending
        assert (await http.post(f"{path}/complete")).json() == {"final_sequence": 40}
        async with asyncio.timeout(TIMEOUT):
            await client.wait_for(lambda copy: copy.messages and copy.messages[0].is_complete)
        assert [message.text for message in client.copy.messages] == ["".join(tokens)]
        stored = [message.content for message in await restarted.sessions.messages(session)]
        assert stored == ["".join(tokens)]
        # A pull that was under way is tried again by itself, and may have brought everything before that.
        await until(lambda: client.connections >= 2)
        await client.__aexit__(None, None, None)
        await http.aclose()


async def test_a_reader_that_never_reads_delays_no_other_reader(engine: Engine) -> None:
    session: Session = await engine.sessions.create("shop", "ada")
    async with serving(engine) as url:
        address = httpx.URL(url)
        stuck = socket.create_connection((address.host, address.port or 0))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stuck.sendall(f"GET /contexts/{session.thread_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            async with SignalPullClient(url, session.thread_id) as client:
                async with engine.stream_message(session, message_id="m") as message:
                    for number in range(3000):
                        await message.write(f"{number} ")
                async with asyncio.timeout(TIMEOUT):
                    await client.wait_for(lambda copy: copy.messages and copy.messages[0].is_complete)
                assert client.copy.messages[0].text == "".join(f"{number} " for number in range(3000))
        finally:
            stuck.close()
