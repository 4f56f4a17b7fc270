"""Grants: connections of one cached key share the right to be served, until it is revoked or ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cognizes.engine.access import Permission, Principal
from cognizes.engine.access.authenticator import Grants


def principal_of(key_id: str | None, *, expires_at: datetime | None = None) -> Principal:
    return Principal("caller", frozenset({Permission.READ}), key_id=key_id, expires_at=expires_at)


async def test_connections_of_one_key_share_a_grant_until_the_last_closes() -> None:
    grants, principal = Grants(), principal_of("k")
    first, second = grants.open(principal), grants.open(principal)
    assert first is second
    grants.close(first)
    assert grants.of_key("k") == [first]
    grants.close(second)
    assert grants.key_ids == []


async def test_a_revocation_reaches_all_connections_of_the_key_and_none_that_opens_later() -> None:
    grants, cached, read_again = Grants(), principal_of("k"), principal_of("k")
    held = [grants.open(cached), grants.open(read_again)]
    other = grants.open(principal_of("other"))
    grants.revoke("k")
    assert [grant.revoked.is_set() for grant in (*held, other)] == [True, True, False]
    later = grants.open(cached)
    assert not later.revoked.is_set()
    for grant in held:
        grants.close(grant)
    assert grants.of_key("k") == [later]


async def test_a_token_has_a_grant_for_each_connection_which_ends_with_it() -> None:
    grants = Grants()
    token = principal_of(None, expires_at=datetime.now(UTC) + timedelta(hours=1))
    first, second = grants.open(token), grants.open(token)
    assert first is not second
    assert first.timer is not None
    grants.close(first)
    assert first.timer.cancelled()
    assert second.timer is not None
    assert not second.timer.cancelled()
    grants.close(second)


async def test_a_grant_that_has_ended_is_not_shared() -> None:
    grants, principal = Grants(), principal_of("k")
    ended = grants.open(principal)
    ended.revoked.set()
    fresh = grants.open(principal)
    assert not fresh.revoked.is_set()
    grants.close(ended)
    assert grants.of_key("k") == [fresh]
