"""The system user of the embedded server, made by root on a fresh machine."""

from __future__ import annotations

import os
import pwd
import subprocess
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from cognizes.engine.database.embedded import make_service_user

pytestmark = pytest.mark.server


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can add users")
def test_processes_that_start_at_once_share_the_user() -> None:
    name = f"cognizes{uuid4().hex[:8]}"
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make_service_user, [name] * 8))
        assert pwd.getpwnam(name).pw_uid > 0
    finally:
        subprocess.run(["userdel", name], check=True)
