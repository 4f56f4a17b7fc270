"""What `cognizes serve` accepts from a connection before it knows the caller."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import psutil
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from tests.integration.cli.running_command import Cognizes, Serving

# The agents take most of the start and no part in these tests.
WITHOUT_AGENTS = (
    sys.executable,
    "-c",
    "import sys; sys.modules['google.adk'] = None; from cognizes.engine.cli import main; main()",
)
HEADERS = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
STREAM = b"GET /api/runs/r/events HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextmanager
def connected(serving: Serving) -> Iterator[socket.socket]:
    """A connection that gives up after 30 s of silence."""
    address = httpx.URL(serving.url)
    with closing(socket.create_connection((address.host, address.port or 80), timeout=30)) as client:
        yield client


def read_to_end(client: socket.socket) -> bytes:
    """Everything that the server sends until it closes the connection."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        # The server closed before it had read everything.
        return received
    return received


def open_stream(client: socket.socket) -> None:
    """Start a stream on the connection and wait for its first frame."""
    client.sendall(STREAM)
    received = b""
    while b"connected" not in received:
        piece = client.recv(65536)
        assert piece, received
        received += piece


def test_the_size_of_headers_is_bounded(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url, COGNIZES_MAX_HEADER_BYTES="8192") as serving:
        allowed = HEADERS + b"x: " + b"a" * (8192 - len(HEADERS) - 7) + b"\r\n\r\n"
        assert len(allowed) == 8192
        with connected(serving) as client:
            client.sendall(allowed)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        for large in (
            HEADERS + b"x: " + b"a" * (8193 - len(HEADERS) - 7) + b"\r\n\r\n",
            HEADERS + b"x: " + b"a" * 9000,
            HEADERS + b"x: a\r\n" * 2000,
            b"GET /" + b"a" * 9000,
            b"\r\n" * 5000,
        ):
            with connected(serving) as client:
                client.sendall(large)
                answer = read_to_end(client)
                assert answer.startswith(b"HTTP/1.1 431"), answer
                assert b"COGNIZES_MAX_HEADER_BYTES" in answer
        assert httpx.get(f"{serving.url}/health").status_code == 200


def test_the_size_of_trailers_is_bounded_and_small_chunks_are_not_trailers(
    cognizes: Cognizes, database_url: str
) -> None:
    head = b"POST /api/sessions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    with cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url, COGNIZES_MAX_HEADER_BYTES="8192") as serving:
        with connected(serving) as client:
            client.sendall(head)
            for _ in range(100):
                client.sendall(b"1\r\n \r\n" * 100)
            client.sendall(b"0\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 422")
        with connected(serving) as client:
            client.sendall(head + b"0\r\n")
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                for _ in range(1000):
                    client.sendall(b"x: " + b"a" * 10_000 + b"\r\n")
        assert httpx.get(f"{serving.url}/health").status_code == 200


def test_the_time_of_headers_is_bounded(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url, COGNIZES_HEADER_SECONDS="0.5") as serving:
        with connected(serving) as client:
            client.sendall(HEADERS)
            answer = read_to_end(client)
            assert answer.startswith(b"HTTP/1.1 408"), answer
        with connected(serving) as client:
            assert read_to_end(client) == b""
        with connected(serving) as client:
            client.sendall(HEADERS + b"\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            client.sendall(HEADERS)
            assert b"HTTP/1.1 408" in read_to_end(client)
        with connected(serving) as client:
            # An answer may take longer than the headers.
            open_stream(client)
            client.settimeout(1)
            with pytest.raises(TimeoutError):
                client.recv(1)


def test_a_body_that_arrives_after_its_answer_does_not_hold_the_connection(
    cognizes: Cognizes, database_url: str
) -> None:
    settings = {"COGNIZES_MAX_BODY_BYTES": "4096", "COGNIZES_HEADER_SECONDS": "0.5"}
    with (
        cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url, **settings) as serving,
        connected(serving) as client,
    ):
        head = b"POST /api/access/tickets HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"
        client.sendall(head + b"x" * 5000)
        assert client.recv(4096).startswith(b"HTTP/1.1 ")
        client.sendall(b"x")
        read_to_end(client)


def test_the_connections_of_one_address_are_bounded(cognizes: Cognizes, database_url: str) -> None:
    with (
        cognizes.serve(
            program=WITHOUT_AGENTS, DATABASE_URL=database_url, COGNIZES_MAX_CONNECTIONS_PER_ADDRESS="4"
        ) as serving,
        ExitStack() as opened,
    ):
        url = serving.url.replace("http", "ws")
        streams = [opened.enter_context(connected(serving)) for _ in range(2)]
        for stream in streams:
            open_stream(stream)
        with connect(f"{url}/ws/events/x") as one, connect(f"{url}/ws/events/x"):
            with connected(serving) as client:
                answer = read_to_end(client)
                assert answer.startswith(b"HTTP/1.1 429"), answer
            one.close()
            assert httpx.get(f"{serving.url}/health").status_code == 200
        assert serving.log.read_text().count("connections of the address 127.0.0.1 are in use") == 1


def test_half_sent_requests_make_room_for_complete_ones(cognizes: Cognizes, database_url: str) -> None:
    limits = {"COGNIZES_MAX_CONNECTIONS_PER_ADDRESS": "4", "COGNIZES_HEADER_SECONDS": "600"}
    with cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url, **limits) as serving, ExitStack() as opened:
        stream = opened.enter_context(connected(serving))
        open_stream(stream)
        halves = [opened.enter_context(connected(serving)) for _ in range(3)]
        halves[0].sendall(b"POST /api/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf")
        for half in halves[1:]:
            half.sendall(HEADERS)
        assert httpx.get(f"{serving.url}/health").status_code == 200
        assert read_to_end(halves[0]) == b"", "the oldest makes room"
        halves[2].sendall(b"\r\n")
        assert halves[2].recv(100).startswith(b"HTTP/1.1 200")
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.recv(1)


def _limited(soft: int, hard: int) -> tuple[str, ...]:
    return ("sh", "-e", "-c", f'ulimit -S -n {soft}; ulimit -H -n {hard}; exec "$0" "$@"', *WITHOUT_AGENTS)


def test_serve_raises_its_descriptor_limit(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve(program=_limited(256, 2048), DATABASE_URL=database_url) as serving:
        serving.banner()
        assert psutil.Process(serving.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (2048, 2048)


async def test_more_half_sent_requests_than_descriptors_disconnect_no_client(
    cognizes: Cognizes, database_url: str
) -> None:
    program = _limited(512, 512)
    settings = {"COGNIZES_HEADER_SECONDS": "600", "COGNIZES_MAX_CONNECTIONS_PER_ADDRESS": "100000"}
    with cognizes.serve(program=program, DATABASE_URL=database_url, **settings) as serving, ExitStack() as opened:
        stream = opened.enter_context(connected(serving))
        open_stream(stream)
        address = httpx.URL(serving.url)
        writers = []
        for _ in range(700):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(HEADERS)
            await writer.drain()
            writers.append(writer)
        for _ in range(20):
            answer = httpx.get(f"{serving.url}/health", timeout=30)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.recv(1)
        for writer in writers:
            writer.transport.abort()
        assert "Traceback" not in serving.log.read_text()


@pytest.mark.parametrize(("proxies", "is_believed"), [("", False), ("127.0.0.0/8", True), ("192.0.2.1", False)])
async def test_x_forwarded_for_counts_only_from_trusted_proxies(
    cognizes: Cognizes, database_url: str, proxies: str, is_believed: bool
) -> None:
    limits = {"COGNIZES_FAILED_KEYS_PER_SECOND": "0.0001", "COGNIZES_FAILED_KEYS_AT_ONCE": "2"}
    with cognizes.serve(
        program=WITHOUT_AGENTS,
        DATABASE_URL=database_url,
        COGNIZES_AUTH="required",
        COGNIZES_TRUSTED_PROXIES=proxies,
        **limits,
    ) as serving:
        statuses = [
            httpx.get(
                f"{serving.url}/api/access/me",
                headers={"authorization": f"Bearer wrong-{number}", "x-forwarded-for": f"192.0.2.{number}"},
            ).status_code
            for number in range(3)
        ]
    assert statuses == [401, 401, 401 if is_believed else 429]


def test_the_size_of_a_message_of_a_websocket_is_bounded(cognizes: Cognizes, database_url: str) -> None:
    with cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url, COGNIZES_MAX_BODY_BYTES="2048") as serving:
        url = serving.url.replace("http", "ws") + "/ws/signals"
        with connect(url) as client:
            client.send("a" * 2048)
            assert '"error"' in str(client.recv(30))
            client.send("a" * 2049)
            with pytest.raises(ConnectionClosedError) as closed:
                client.recv(30)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_proxy_is_an_address_or_a_network(quick: Cognizes) -> None:
    said = quick.fail("serve", COGNIZES_TRUSTED_PROXIES="*")
    assert "list addresses or networks such as 10.0.0.0/8" in said


def test_a_response_of_a_direct_route_is_complete_on_every_kind_of_connection(
    cognizes: Cognizes, database_url: str
) -> None:
    """Its head and its body are one write, which does not pass through uvicorn's own `send`."""
    version = b"GET /version HTTP/1.1\r\nhost: localhost\r\n"
    with cognizes.serve(program=WITHOUT_AGENTS, DATABASE_URL=database_url) as serving:
        with connected(serving) as client:
            client.sendall(version + b"x-request-id: first\r\n\r\n" + version + b"connection: close\r\n\r\n")
            first, second = read_to_end(client).split(b"HTTP/1.1 200 OK\r\n")[1:]
        for answer in (first, second):
            head, _, body = answer.partition(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n"))
            assert int(fields[b"content-length"]) == len(body)
            assert fields[b"content-type"] == b"application/json"
            assert fields[b"x-content-type-options"] == b"nosniff"
            assert fields.keys() >= {b"date", b"server"}
            assert b"postgresql" in body
        assert b"x-request-id: first\r\n" in first
        assert b"connection: close" in second
        assert b"connection: close" not in first
        with connected(serving) as client:
            body = b'{"app_name": "shop", "user_id": "ada"}'
            head = b"POST /api/sessions HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body[:10])
            client.sendall(body[10:])
            created = read_to_end(client)
            assert created.startswith(b"HTTP/1.1 201")
            assert created.endswith(b"}")
        answer = httpx.get(f"{serving.url}/version", headers={"x-request-id": "not sane!"})
        other = httpx.get(f"{serving.url}/version")
        assert answer.headers["x-request-id"] != other.headers["x-request-id"]
