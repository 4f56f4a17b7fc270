"""To which names and to which machines a server without keys answers."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from cognizes.engine import PermissionDeniedError
from cognizes.engine.api.authorization import check_host, check_peer

ALLOWED = ["https://shop.example"]


@pytest.mark.parametrize(
    ("server", "host", "is_answered"),
    [
        ("127.0.0.1", "127.0.0.1:8000", True),
        ("127.0.0.1", "localhost:8000", True),
        ("127.0.0.1", "app.localhost", True),
        ("::1", "[::1]:8000", True),
        ("127.0.0.1", "shop.example", True),
        ("127.0.0.1", "", True),
        ("127.0.0.1", "evil.example:8000", False),
        ("::1", "evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "evil.example#localhost", False),
        ("127.0.0.1", "[::1", False),
        ("192.0.2.1", "anything.example", True),
        ("a-unix-socket", "anything.example", True),
    ],
)
def test_a_name_that_points_to_this_machine_is_not_enough(server: str, host: str, is_answered: bool) -> None:
    scope = {"type": "http", "server": (server, 8000)}
    with nullcontext() if is_answered else pytest.raises(PermissionDeniedError):
        check_host(scope, {b"host": host.encode()}, allowed=ALLOWED)


@pytest.mark.parametrize(
    ("client", "headers", "is_answered"),
    [
        (("127.0.0.1", 5), {}, True),
        (("127.8.8.8", 5), {}, True),
        (("::1", 5), {}, True),
        (("::ffff:127.0.0.1", 5), {}, True),
        (None, {}, True),
        (("testclient", 5), {}, True),
        (("192.0.2.7", 5), {}, False),
        (("::ffff:192.0.2.7", 5), {}, False),
        (("2001:db8::1", 5), {}, False),
        (("192.0.2.7", 5), {"x-forwarded-for": "127.0.0.1"}, False),
        (("127.0.0.1", 5), {"x-forwarded-for": "127.0.0.1, ::1"}, True),
        (("127.0.0.1", 5), {"x-forwarded-for": "127.0.0.1:80, [::1]:80"}, True),
        (("127.0.0.1", 5), {"x-forwarded-for": "192.0.2.7, 127.0.0.1"}, False),
        (("127.0.0.1", 5), {"x-forwarded-for": "127.0.0.1, 192.0.2.7"}, False),
        (("127.0.0.1", 5), {"x-real-ip": "192.0.2.7"}, False),
        (("127.0.0.1", 5), {"forwarded": 'for="[2001:db8::1]:80";proto=http;by=127.0.0.1'}, False),
        (("127.0.0.1", 5), {"forwarded": 'proto=http; For="[::1]:80"'}, True),
        (("127.0.0.1", 5), {"forwarded": "for=unknown"}, False),
        (None, {"x-forwarded-for": "192.0.2.7"}, False),
        (("testclient", 0), {"x-forwarded-for": "testclient"}, False),
    ],
)
def test_a_server_without_keys_answers_this_machine(
    client: tuple[str, int] | None, headers: dict[str, str], is_answered: bool
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    with nullcontext() if is_answered else pytest.raises(PermissionDeniedError):
        check_peer({"type": "http", "client": client, "headers": raw}, dict(raw))
