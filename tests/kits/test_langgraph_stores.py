"""The store tests in the sdist of langgraph-checkpoint-postgres, with `OpenStore` in place of its stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.sdists import download_sdist, run_suite

pytestmark = [pytest.mark.kits, pytest.mark.timeout(900)]

_SDIST = "langgraph-checkpoint-postgres==3.2.0"
_NEEDS_INTERNALS = {
    "tests private functions of PostgresStore": [
        "tests/test_store.py::test_escape_like_literal",
        "tests/test_store.py::test_namespace_match_pattern",
        "tests/test_store.py::test_nonnull_migrations",
    ],
    "counts connections of the psycopg pool": [
        "tests/test_async_store.py::test_abatch_uses_single_pool_checkout",
    ],
    "writes into the table of PostgresStore; tests/integration/adapters/langgraph/test_store.py has the same tests": [
        f"tests/{file}::test_omit_expired_{subject}"
        for file in ("test_store.py", "test_async_store.py")
        for subject in (
            "filters_read_paths",
            "disabled_preserves_expired_rows",
            "refresh_ttl_only_refreshes_live_rows",
            "search_pagination",
        )
    ],
}
_PASSED = 171
"""The stores of the sdist pass the same 171 (`KIT_REFERENCE=1`). Its other two modes of psycopg are left out."""


def test_the_store_tests_of_langgraph_pass(tmp_path: Path, database_url: str) -> None:
    passed = run_suite(
        download_sdist(_SDIST, tmp_path),
        ["tests/test_store.py", "tests/test_async_store.py"],
        plugin="langgraph_store_plugin",
        database_url=database_url,
        without_parameters=["pipe", "pool"],
        left_out=[name for names in _NEEDS_INTERNALS.values() for name in names],
    )
    assert passed == _PASSED
