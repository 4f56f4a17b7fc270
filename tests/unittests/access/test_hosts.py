"""To which names a server without keys answers."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from cognizes.engine import PermissionDeniedError
from cognizes.engine.api.auth import check_host

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
    scope = {"type": "http", "server": (server, 8000), "headers": [(b"host", host.encode())]}
    with nullcontext() if is_answered else pytest.raises(PermissionDeniedError):
        check_host(scope, allowed=ALLOWED)
