"""The tests of `api.test_memory_api` again, through PgBouncer."""

from __future__ import annotations

import pytest

from tests.integration.api.conftest import client  # noqa: F401 - the same client, on this engine
from tests.integration.api.test_memory_api import *  # noqa: F403 - the same tests, on this engine
from tests.server.pgbouncer_engine import engine  # noqa: F401 - takes the place of the embedded one

pytestmark = pytest.mark.server
