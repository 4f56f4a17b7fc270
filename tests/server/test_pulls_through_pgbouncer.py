"""The tests of `sync.test_pulls` again, through PgBouncer."""

from __future__ import annotations

import pytest

from tests.integration.api.conftest import client  # noqa: F401 - the same client, on this engine
from tests.integration.sync.conftest import session  # noqa: F401 - the same session
from tests.integration.sync.test_pulls import *  # noqa: F403 - the same tests, on this engine
from tests.server.pgbouncer_engine import engine  # noqa: F401 - takes the place of the embedded one

pytestmark = pytest.mark.server
