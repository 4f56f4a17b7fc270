"""The plans behind row level security on PostgreSQL 17."""

from __future__ import annotations

import pytest

from tests.integration.access.test_tenant_query_plans import *  # noqa: F403 - the same tests, on this server

pytestmark = pytest.mark.server


@pytest.fixture
def database_url(server_url: str) -> str:
    """Takes the place of the embedded server."""
    return server_url
