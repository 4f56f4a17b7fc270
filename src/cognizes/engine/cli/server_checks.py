"""What `cognizes doctor` finds out about the PostgreSQL server, through the same URLs that the engine uses."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from cognizes.engine.access.api_keys import ApiKeys
from cognizes.engine.cli.configured_database import connect, has_data, open_database
from cognizes.engine.cli.connection_urls import describe_url, naming_server
from cognizes.engine.cli.finding import Finding, bearable, broken, good
from cognizes.engine.cli.migration import migrator
from cognizes.engine.database import Database, EmbeddedPostgres
from cognizes.engine.database.migrations import MINIMUM_SERVER
from cognizes.engine.errors import DatabaseError, EngineError, SetupError, StreamUnavailableError
from cognizes.engine.settings import Settings
from cognizes.engine.streams.backend_choice import choose_backend

_NOTIFY_SECONDS = 5.0
_CLOCK_SECONDS = 1.0
_SUBJECT = "PostgreSQL server"

Check = Callable[[Database, Settings], Awaitable[Finding]]


async def examine_server(settings: Settings) -> AsyncIterator[Finding]:
    """The server and what is in it; one finding only when it cannot be reached."""
    try:
        with naming_server(settings):
            async with _database(settings) as database:
                for subject, check in _CHECKS.items():
                    yield await _run(subject, check, database, settings)
    except EngineError as error:
        yield broken(_SUBJECT, str(error), "mend that, then run `cognizes doctor` again for the other checks")


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database]:
    if settings.url is not None or has_data(settings):
        async with open_database(settings) as database:
            yield database
        return
    # Nothing is there yet, and looking must not create it: try the embedded server out somewhere else.
    with tempfile.TemporaryDirectory(prefix="cognizes-doctor-") as elsewhere:
        async with open_database(settings.model_copy(update={"data_dir": Path(elsewhere)})) as database:
            yield database


async def _run(subject: str, check: Check, database: Database, settings: Settings) -> Finding:
    try:
        return await check(database, settings)
    except EngineError as error:
        return broken(subject, str(error), "mend that, then run `cognizes doctor` again")


async def _check_version(database: Database, settings: Settings) -> Finding:
    server = await database.fetch_row("read_server")
    assert server is not None  # noqa: S101 - a SELECT without FROM has one row
    place = describe_url(settings.url) if settings.url else "embedded, starts and answers"
    seen = f"PostgreSQL {server['spelling']} ({place})"
    if server["number"] < MINIMUM_SERVER:
        return broken(_SUBJECT, seen, "upgrade it to 16 or newer, or unset DATABASE_URL to use the embedded one")
    return good(_SUBJECT, seen)


async def _check_vector(database: Database, settings: Settings) -> Finding:
    server = await database.fetch_row("read_server")
    assert server is not None  # noqa: S101 - as above
    if not server["has_vector"]:
        major = server["number"] // 10000
        remedy = f"install it there (Debian: postgresql-{major}-pgvector, macOS: brew install pgvector)"
        return broken("extension vector", "missing on the server", remedy)
    return good("extension vector", "available")


async def _check_cron(database: Database, settings: Settings) -> Finding:
    subject = "extension pg_cron"
    if settings.url is None:
        return good(subject, "not needed: the engine does the housekeeping of the embedded server itself")
    if await database.fetch_value("has_cron"):
        return good(subject, "usable: it does the housekeeping")
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
    return bearable(subject, "not usable here; the engine does the housekeeping while it runs", remedy)


async def _check_migrations(database: Database, settings: Settings) -> Finding:
    if settings.url is None and not has_data(settings):
        return good("migrations", "nothing stored yet; `cognizes serve` creates the schema")
    async with database.connection() as connection:
        pending = await migrator(connection, settings).pending()
    if pending:
        return bearable("migrations", f"{len(pending)} pending", "run `cognizes migrate`; `cognizes serve` does it too")
    return good("migrations", "up to date")


async def _check_notifications(database: Database, settings: Settings) -> Finding:
    subject = "LISTEN/NOTIFY"
    direct = settings.listen_url.get_secret_value() if settings.listen_url else settings.url
    try:
        listening = database if direct is None else await connect(direct, settings)
    except DatabaseError as error:
        return broken(subject, f"cannot connect to listen: {error}", "check COGNIZES_LISTEN_URL")
    try:
        seconds = await _measure_notification(listening, database)
    finally:
        if listening is not database:
            await listening.close()
    if seconds is None:
        return broken(
            subject,
            f"a notification did not arrive within {_NOTIFY_SECONDS:g} s",
            "a pooler such as PgBouncer swallows them: set COGNIZES_LISTEN_URL to a direct URL of the same database",
        )
    return good(subject, f"a notification arrived after {seconds * 1000:.0f} ms")


async def _measure_notification(listening: Database, sending: Database) -> float | None:
    channel = f"cognizes_doctor_{uuid4().hex}"
    heard = asyncio.Event()

    def hear(*_: object) -> None:
        heard.set()

    async with listening.connection() as ear:
        await ear.add_listener(channel, hear)
        try:
            started = time.perf_counter()
            await sending.fetch_value("send_notification", channel, "")
            await asyncio.wait_for(heard.wait(), _NOTIFY_SECONDS)
            return time.perf_counter() - started
        except TimeoutError:
            return None
        finally:
            await ear.remove_listener(channel, hear)


async def _check_clock(database: Database, settings: Settings) -> Finding:
    before = time.time()
    server = await database.fetch_value("read_clock")
    after = time.time()
    ahead = float(server.timestamp()) - (before + after) / 2
    seen = f"the server is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} this machine"
    if abs(ahead) > _CLOCK_SECONDS:
        return bearable("clock", seen, "set both by NTP (for example with chrony)")
    return good("clock", seen)


async def _check_access(database: Database, settings: Settings) -> Finding:
    if settings.auth != "required":
        return good("access", "no key is asked for, so `serve` listens on this machine only")
    keys = [key for key in await ApiKeys(database).list() if key.revoked_at is None]
    if not keys and not settings.jwt_jwks:
        return bearable("access", "keys are asked for, and there is none", "run `cognizes keys create`")
    tokens = " and tokens" if settings.jwt_jwks else ""
    return good("access", f"{len(keys)} keys{tokens} open this server")


async def _check_second_wall(database: Database, settings: Settings) -> Finding:
    subject = "row level security"
    if settings.auth != "required":
        return good(subject, "not needed: no key is asked for")
    if settings.row_level_security == "off":
        return bearable(
            subject, "off by COGNIZES_ROW_LEVEL_SECURITY: only the API checks tenants", "set it to required"
        )
    own = settings.tenant_url.get_secret_value() if settings.tenant_url else None
    url = own or settings.url or EmbeddedPostgres(settings.data_dir).url
    reason = await database.open_tenant_pool(url, settings, take_role=own is None)
    if reason is None:
        return good(subject, "requests of tenants see rows of their apps only")
    remedy = (
        "run `cognizes migrate` as a user that may create roles, or set COGNIZES_TENANT_URL to a user that is a member "
        "of the role cognizes_server and owns nothing"
    )
    return broken(subject, f"`serve` does not start: {reason}", remedy)


async def _check_deltas(database: Database, settings: Settings) -> Finding:
    subject = "token deltas"
    if settings.redis_url is None:
        return good(subject, "travel through PostgreSQL; REDIS_URL is not set")
    remedy = "start that Redis and check REDIS_URL, or unset it; until then `serve` runs degraded"
    try:
        backend = choose_backend(settings, database)
        try:
            await backend.start(lambda _: None)
            await backend.ping()
        finally:
            await backend.close()
    except SetupError as error:
        return broken(subject, str(error), "correct or unset REDIS_URL; `serve` does not start with it")
    except StreamUnavailableError as error:
        return broken(subject, str(error), remedy)
    return good(subject, "travel through Redis, which answers")


_CHECKS: dict[str, Check] = {
    _SUBJECT: _check_version,
    "extension vector": _check_vector,
    "extension pg_cron": _check_cron,
    "migrations": _check_migrations,
    "LISTEN/NOTIFY": _check_notifications,
    "token deltas": _check_deltas,
    "clock": _check_clock,
    "access": _check_access,
    "row level security": _check_second_wall,
}
