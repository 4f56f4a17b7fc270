"""The session tests in the sdist of openai-agents, with `OpenSession` in place of their `SQLiteSession`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.sdists import download_sdist, run_suite

pytestmark = [pytest.mark.kits, pytest.mark.timeout(900)]

_SDIST = "openai-agents==0.24.0"
_NEEDS_SQLITE = {
    "counts SQLite connections of worker threads": [
        "test_sqlite_session_close_closes_worker_thread_connections",
        "test_sqlite_session_reaps_connections_from_exited_worker_threads",
        "test_sqlite_session_closes_retired_connections_before_the_next_allocation",
        "test_sqlite_session_keeps_connections_of_live_worker_threads",
    ],
    "expects the error text of a closed SQLiteSession": ["test_sqlite_session_closed_rejects_empty_add_items"],
    "writes a damaged row into the SQLite file": [
        "test_sqlite_session_pop_item_skips_corrupt_most_recent",
        "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows",
        "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows",
        "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows",
    ],
    "reads the locks and connections of SQLiteSession": [
        "test_sqlite_session_file_lock_is_shared_across_instances",
        "test_sqlite_session_rollback_failure_evicts_connection",
        "test_sqlite_session_close_retries_quarantined_connection",
    ],
    "creates a trigger in the SQLite file": [
        "test_sqlite_session_failed_clear_session_rolls_back",
        "test_sqlite_session_failed_pop_item_releases_write_lock",
    ],
    "writes into the SQLite file to test its lock": ["test_sqlite_session_failed_add_items_releases_write_lock"],
    "replaces a method of the SQLite connection": [
        "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome"
    ],
}
_FILES = ["test_session.py", "test_session_limit.py", "test_session_context_wrapper.py"]
_PASSED = 68
"""53 tests are about the session class (38 of test_session.py, 15 of test_session_limit.py), 15 about how the runner
calls any session. test_session_persistence_sanitize.py (27 tests) uses no session and is left out."""


def test_the_session_tests_of_the_sdk_pass(tmp_path: Path, database_url: str) -> None:
    passed = run_suite(
        download_sdist(_SDIST, tmp_path),
        [f"tests/memory/{name}" for name in _FILES],
        plugin="openai_session_plugin",
        database_url=database_url,
        left_out=[f"tests/memory/test_session.py::{name}" for names in _NEEDS_SQLITE.values() for name in names],
    )
    assert passed == _PASSED
