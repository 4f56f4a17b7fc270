"""Wrong keys are counted by credential and by address, and the counts are bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cognizes.engine import Settings
from cognizes.engine.access.authenticator import Credential
from cognizes.engine.api.limits import FailedKeys, TokenBuckets, address_of
from cognizes.engine.errors import TooManyRequestsError

WRONG = Credential(bearer="wrong")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def of(host: str) -> dict[str, Any]:
    return {"type": "http", "client": (host, 1)}


def test_attempts_come_back_with_time() -> None:
    clock = Clock()
    failed = FailedKeys(Settings(failed_keys_per_second=0.5, failed_keys_at_once=2), clock=clock)
    for _ in range(2):
        failed.check(WRONG)
        failed.note_failure(of("10.0.0.1"), WRONG)
    with pytest.raises(TooManyRequestsError) as refused:
        failed.check(WRONG)
    assert refused.value.retry_after == 2
    clock.now = 2
    failed.check(WRONG)


def test_an_address_with_failures_limits_its_failures_only() -> None:
    clock = Clock()
    failed = FailedKeys(Settings(failed_keys_per_second=0.5, failed_keys_at_once=2), clock=clock)
    for number in range(2):
        failed.note_failure(of("10.0.0.1"), Credential(bearer=f"wrong-{number}"))
    fresh = Credential(ticket="fresh")
    failed.check(fresh)
    with pytest.raises(TooManyRequestsError):
        failed.note_failure(of("10.0.0.1"), fresh)
    failed.note_failure(of("10.0.0.2"), Credential(ticket="another"))


async def test_unknown_credentials_of_a_limited_address_are_looked_up_a_few_at_a_time() -> None:
    failed = FailedKeys(Settings(failed_keys_per_second=1 / 3600, failed_keys_at_once=1))
    failed.note_success(Credential(bearer="known"))
    failed.note_failure(of("10.0.0.1"), WRONG)
    waiting = [failed.lookup(of("10.0.0.1"), Credential(bearer=str(number))) for number in range(3)]
    async with waiting[0], waiting[1]:
        third = asyncio.ensure_future(waiting[2].__aenter__())
        async with (
            failed.lookup(of("10.0.0.1"), Credential(bearer="known")),
            failed.lookup(of("10.0.0.2"), Credential(bearer="of another address")),
        ):
            assert not third.done()
    await third
    await waiting[2].__aexit__(None, None, None)


def test_showing_nothing_is_no_attempt() -> None:
    failed = FailedKeys(Settings(failed_keys_at_once=1))
    for _ in range(10):
        failed.note_failure(of("10.0.0.1"), Credential())
    failed.note_failure(of("10.0.0.1"), WRONG)


def test_what_is_remembered_is_bounded() -> None:
    failed = FailedKeys(Settings(), callers=10)
    for number in range(100):
        failed.note_failure(of(f"10.0.0.{number}"), Credential(bearer=f"wrong-{number}"))
        failed.note_success(Credential(bearer=str(number)))
    assert (len(failed.by_address), len(failed.by_credential), len(failed.accepted)) == (10, 10, 10)
    # Counts for other processes belong to callers with a bucket.
    assert (len(failed.by_address.take_counts()), len(failed.by_credential.take_counts())) == (10, 10)


def test_a_ticket_is_good_once() -> None:
    failed = FailedKeys(Settings())
    failed.note_success(Credential(ticket="used"))
    assert not failed.accepted


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("a-unix-socket", "a-unix-socket"),
    ],
)
def test_an_address_of_ipv6_is_its_network(host: str, address: str) -> None:
    assert address_of(of(host)) == address


def test_a_connection_without_an_address_has_one_of_its_own() -> None:
    assert address_of({"type": "http", "client": None}) == ""


def test_buckets_say_when_to_come_back() -> None:
    buckets = TokenBuckets(rate=1, size=1, clock=Clock())
    buckets.take("a")
    with pytest.raises(TooManyRequestsError):
        buckets.take("a")
    buckets.take("b")
