"""`cognizes psql`: the bundled psql, with its arguments and exit codes."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cli.running_command import Cognizes


def test_it_starts_the_embedded_server_and_stops_it_again(cognizes: Cognizes, data_dir: Path) -> None:
    asked = cognizes("psql", "-At", "-c", "select 6 * 7", "-c", "create table kept as select 1 as one")
    assert (asked.returncode, asked.stdout) == (0, "42\nSELECT 1\n"), asked.stderr
    assert not (data_dir / "postgres" / "postmaster.pid").exists()
    assert cognizes("psql", "-Atc", "select one from kept").stdout == "1\n"


def test_its_exit_code_is_returned(cognizes: Cognizes, database_url: str) -> None:
    failed = cognizes("psql", "-c", "no sql", DATABASE_URL=database_url)
    assert failed.returncode == 1
    assert "syntax error" in failed.stderr
    unconnected = cognizes("psql", "-c", "select 1", DATABASE_URL="postgresql://ada:s3cret@127.0.0.1:1/shop")
    assert unconnected.returncode == 2
    assert "Connection refused" in unconnected.stderr
    assert "s3cret" not in unconnected.stderr


def test_a_password_is_in_the_environment_only(cognizes: Cognizes, database_url: str) -> None:
    look = r"\! tr '\0' ' ' < /proc/$PPID/cmdline; echo; echo $PGPASSWORD"
    seen = cognizes("psql", "-c", look, DATABASE_URL=database_url.replace("postgres@", "postgres:p%40w@"))
    command, password = seen.stdout.splitlines()
    assert "postgresql://postgres@/" in command
    assert "p%40w" not in command
    assert password == "p@w"


def test_a_database_named_by_d_is_one_of_the_configured_server(cognizes: Cognizes, database_url: str) -> None:
    """Seed 000 §5.1 writes `psql -d cognizes-engine`."""
    asks = ("-Atc", "select current_database()")
    for option in (["-d", "postgres"], ["-dpostgres"], ["--dbname", "postgres"], ["--dbname=postgres"]):
        asked = cognizes("psql", *option, *asks, DATABASE_URL=database_url)
        assert (asked.returncode, asked.stdout) == (0, "postgres\n"), asked.stderr
    elsewhere = cognizes("psql", "-d", "host=127.0.0.1 port=1 dbname=x", *asks, DATABASE_URL=database_url)
    assert elsewhere.returncode == 2
    assert "Connection refused" in elsewhere.stderr
