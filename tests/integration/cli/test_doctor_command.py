"""`cognizes doctor` finds what is wrong and prints how to fix it."""

from __future__ import annotations

import shutil
import socket
import sys
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cognizes.engine import Settings
from cognizes.engine.cli.doctor import SERVER_CHECKS, Finding, Verdict, check_machine
from tests.integration.cli.running_command import Cognizes
from tests.integration.streams.redis_server import RedisServer


def _lines(text: str) -> dict[str, str]:
    """Mark, finding and remedy of each check. The table is wide enough here for one line a check."""
    rows = [[cell.strip() for cell in line.strip("│\n").split("│")] for line in text.splitlines() if "│" in line]
    return {check: f"{mark} {found} | {remedy}" for mark, check, found, remedy in rows}


def test_a_new_machine_is_fine_and_stays_untouched(quick: Cognizes) -> None:
    done = quick("doctor", COGNIZES_PORT="0", COLUMNS="400")
    assert done.returncode == 0, done.stdout + done.stderr
    found = _lines(done.stdout)
    for check in ("Python", "packages", "embedded PostgreSQL", "data directory", "port", "PostgreSQL server"):
        assert found[check].startswith("✓"), found[check]
    for check in ("extension vector", "extension pg_cron", "migrations", "LISTEN/NOTIFY", "clock"):
        assert found[check].startswith("✓"), found[check]
    assert not quick.data_dir.exists()


def test_existing_data_is_checked(cognizes: Cognizes, kept_data_dir: Path) -> None:
    done = cognizes("doctor", "--data-dir", str(kept_data_dir), COGNIZES_PORT="0", COLUMNS="400")
    assert done.returncode == 0, done.stdout
    assert _lines(done.stdout)["migrations"].startswith("✓ up to date")


def test_a_configured_server_is_checked(quick: Cognizes, empty_database_url: str, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = quick(
            "doctor",
            DATABASE_URL=empty_database_url,
            # A listener on another database receives nothing, like a listener behind PgBouncer.
            COGNIZES_LISTEN_URL=database_url,
            COGNIZES_PORT=str(other.getsockname()[1]),
            COLUMNS="400",
        )
    assert done.returncode == 1
    found = _lines(done.stdout)
    assert found["PostgreSQL server"].startswith("✓ PostgreSQL 18")
    assert found["extension pg_cron"].startswith("!")
    assert found["extension pg_cron"].endswith("optional: install pg_cron on the server")
    assert found["migrations"].startswith("!")
    assert "`cognizes migrate`" in found["migrations"]
    assert found["LISTEN/NOTIFY"].startswith("✗ a notification did not arrive within 5 s")
    assert "COGNIZES_LISTEN_URL" in found["LISTEN/NOTIFY"]
    assert found["port"].startswith("✗")
    assert "COGNIZES_PORT" in found["port"]
    assert "embedded PostgreSQL" not in found


def test_a_server_that_does_not_answer(quick: Cognizes) -> None:
    done = quick("doctor", DATABASE_URL="postgresql://ada:s3cret@127.0.0.1:1/shop", COGNIZES_PORT="0", COLUMNS="400")
    assert done.returncode == 1
    assert _lines(done.stdout)["PostgreSQL server"].startswith("✗ cannot use the PostgreSQL server at 127.0.0.1:1/shop")
    assert done.stderr == ""
    assert "s3cret" not in done.stdout


class _Server:
    """A database with fixed answers, for servers that cannot be installed here."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    async def fetch_row(self, query: str) -> Any:
        return self._answers[query]

    fetch_value = fetch_row


async def _find(subject: str, server: _Server, **settings: Any) -> Finding:
    return await SERVER_CHECKS[subject](server, Settings(**settings))  # type: ignore[arg-type]


async def test_an_old_server_is_refused() -> None:
    server = _Server(read_server={"number": 150010, "spelling": "15.10", "has_vector": False})
    version = await _find("PostgreSQL server", server)
    assert (version.verdict, "upgrade it to 16" in version.remedy) == (Verdict.FAILURE, True)
    vector = await _find("extension vector", server)
    assert (vector.verdict, "postgresql-15-pgvector" in vector.remedy) == (Verdict.FAILURE, True)


@pytest.mark.parametrize(
    ("available", "may_look", "loaded", "remedy"),
    [
        (False, True, False, "install pg_cron"),
        (True, False, None, "superuser"),
        (True, True, False, "shared_preload_libraries"),
        (True, True, True, "cron.database_name"),
    ],
)
async def test_why_pg_cron_is_not_used(available: bool, may_look: bool, loaded: bool | None, remedy: str) -> None:
    reasons = {"is_available": available, "may_look": may_look, "is_loaded": loaded, "this_database": "shop"}
    server = _Server(has_cron=False, explain_cron=reasons)
    cron = await _find("extension pg_cron", server, database_url="postgresql://host/shop")
    assert (cron.verdict, remedy in cron.remedy) == (Verdict.WARNING, True)


@pytest.mark.parametrize(("seconds", "verdict"), [(-1.5, Verdict.WARNING), (0.5, Verdict.OK), (90, Verdict.WARNING)])
async def test_a_clock_that_differs(seconds: float, verdict: Verdict) -> None:
    server = _Server(read_clock=datetime.now(UTC) + timedelta(seconds=seconds))
    assert (await _find("clock", server)).verdict is verdict


async def test_a_configured_redis_is_checked(tmp_path: Path) -> None:
    with RedisServer.on_socket() as server:
        for redis_url, verdict, seen in (
            (None, Verdict.OK, "use PostgreSQL"),
            (server.url, Verdict.OK, "use Redis, which answers"),
            (f"unix://{tmp_path / 'nothing.sock'}", Verdict.FAILURE, "Redis is not reachable"),
            ("https://user:secret@host", Verdict.FAILURE, "REDIS_URL is not a valid Redis URL"),
        ):
            found = await _find("token deltas", _Server(), redis_url=redis_url)
            assert (found.verdict, bool(found.remedy)) == (verdict, verdict is Verdict.FAILURE)
            assert seen in found.seen
            assert "secret" not in found.seen + found.remedy


def _data_directory(path: Path) -> Finding:
    findings = check_machine(Settings(data_dir=path, port=0))
    return next(finding for finding in findings if finding.subject == "data directory")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _data_directory(tmp_path / "new" / "data").verdict is Verdict.OK
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1024**3 - 1))
    assert _data_directory(tmp_path).verdict is Verdict.WARNING


def test_a_data_directory_that_is_a_file() -> None:
    assert _data_directory(Path(__file__) / "data").verdict is Verdict.FAILURE


def test_missing_parts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", find_nothing)
    monkeypatch.setattr("cognizes.engine.cli.doctor.binaries", lambda: Path("/nowhere"))
    monkeypatch.setattr(sys, "version_info", (3, 10, 0))
    found = {finding.subject: finding for finding in check_machine(Settings(port=0))}
    assert found["Python"].verdict is Verdict.FAILURE
    assert found["packages"].verdict is Verdict.FAILURE
    assert found["extra adk"].verdict is Verdict.WARNING
    assert "--extra adk" in found["extra adk"].remedy
    assert found["embedded PostgreSQL"].verdict is Verdict.FAILURE


def test_the_connections_of_some_nodes_are_compared_with_the_limit_of_the_server(
    quick: Cognizes, database_url: str
) -> None:
    """The embedded server accepts 197: three nodes of two processes with keys need 6 x (10 + 10 + 3)."""
    settings = {"COGNIZES_PORT": "0", "COLUMNS": "400", "COGNIZES_WORKERS": "2", "DATABASE_URL": database_url}
    keys = {"COGNIZES_AUTH": "required", "COGNIZES_READ_URL": database_url}
    fits = _lines(quick("doctor", "--nodes", "3", **settings, **keys).stdout)["connections"]
    assert fits.startswith("✓ 3 nodes x 2 processes: up to 138 of 197 (120 in pools, 18 direct), 120 on each replica")
    too_many = _lines(quick("doctor", "--nodes", "10", **settings, **keys).stdout)["connections"]
    assert too_many.startswith("! 10 nodes x 2 processes: up to 460 of 197")
    assert "max_connections above 506" in too_many
    pooled = {**settings, "COGNIZES_LISTEN_URL": database_url}
    assert _lines(quick("doctor", "--nodes", "20", **pooled).stdout)["connections"].startswith("✓")
