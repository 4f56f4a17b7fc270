"""The pauses between attempts of the client."""

from __future__ import annotations

from cognizes.client.transport import Backoff


async def test_thousands_of_attempts_have_a_bounded_pause() -> None:
    backoff = Backoff(0.0)
    backoff.attempts = 5000
    assert not await backoff.pause()
