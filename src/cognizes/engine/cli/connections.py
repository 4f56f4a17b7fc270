"""Connections to the configured database, and database URLs without their passwords."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from cognizes.engine.database import Database, EmbeddedPostgres
from cognizes.engine.errors import DatabaseError, SetupError
from cognizes.engine.settings import Settings

_Result = TypeVar("_Result")
_DIRECT_CONNECTIONS = 3
"""Outside the pools: the listener, the notifier, and a probe of a server that does not answer."""
_SCHEMES = ("postgresql", "postgres")


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[Database]:
    """Open a pool on the configured server, or start the embedded server for the duration of the block."""
    check_urls(settings)
    async with AsyncExitStack() as parts:
        url = settings.url
        if url is None:
            embedded = EmbeddedPostgres(settings.data_dir)
            await embedded.start()
            parts.push_async_callback(embedded.close)
            url = embedded.url
        database = await connect(url, settings)
        parts.push_async_callback(database.close)
        yield database


@dataclass(frozen=True)
class ConnectionBudget:
    """The largest number of connections that some processes open: to the primary, and to each replica."""

    processes: int
    pooled: int
    direct: int
    replica: int

    @classmethod
    def of(cls, settings: Settings, nodes: int) -> ConnectionBudget:
        """Return the budget of nodes that each run `serve` with `COGNIZES_WORKERS` processes."""
        processes = nodes * settings.workers
        has_tenants = settings.auth == "required" and settings.row_level_security == "required"
        pools = settings.pool_size * (2 if has_tenants else 1)
        return cls(
            processes, processes * pools, processes * _DIRECT_CONNECTIONS, processes * pools if settings.read_url else 0
        )

    @property
    def primary(self) -> int:
        return self.pooled + self.direct


async def connect(url: str, settings: Settings) -> Database:
    """Open a pool; `connect_timeout` limits the time for each host of the URL."""
    return await Database.connect(url, settings)


def has_data(settings: Settings) -> bool:
    return (EmbeddedPostgres(settings.data_dir).cluster / "PG_VERSION").exists()


@contextmanager
def naming_server(settings: Settings) -> Iterator[None]:
    """Add the host and the database to errors of a configured server."""
    try:
        yield
    except DatabaseError as error:
        if settings.url is None:
            raise
        cause = error.__cause__ or error
        raise SetupError(
            f"cannot use the PostgreSQL server at {describe_url(settings.url)} "
            f"({str(cause) or type(cause).__name__}); check DATABASE_URL and the server"
        ) from error


def check_urls(settings: Settings) -> None:
    """Raise `SetupError` for an invalid PostgreSQL URL. The message omits the URL, which may contain a password."""
    for variable, secret in (
        ("DATABASE_URL", settings.database_url),
        ("COGNIZES_LISTEN_URL", settings.listen_url),
        ("COGNIZES_READ_URL", settings.read_url),
        ("COGNIZES_READ_TENANT_URL", settings.read_tenant_url),
    ):
        if secret and _split(secret.get_secret_value()) is None:
            raise SetupError(
                f"{variable} is not a PostgreSQL URL; write postgresql://user:password@host:5432/database, "
                "special characters of the password percent-encoded (/ is %2F, @ is %40)"
            )


def describe_url(url: str) -> str:
    parts = _split(url)
    if parts is None:
        return "***"
    host = _host(parts) or next(iter(parse_qs(parts.query).get("host", [])), "localhost")
    return f"{host}{parts.path}"


def redact_url(text: str) -> str:
    """Remove user, password and query if the text is a URL.

    Unescaped special characters in a password make its end ambiguous, so everything before the last @ is removed.
    """
    scheme, found, rest = text.partition("://")
    if not found:
        return text
    secret, at, place = rest.rpartition("@")
    place, question, _ = place.partition("?")
    return f"{scheme}://{'***@' if at else ''}{place}{'?***' if question else ''}" if secret or at or question else text


def hide_password(url: str) -> tuple[str, str | None]:
    """Return the URL without its password, and the password.

    Other users of the machine can read a command line, but not the environment of a process.
    """
    parts = urlsplit(url)
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    hidden = unquote(password) if colon else None
    kept = []
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if name == "password":
            hidden = unquote(value)
        else:
            kept.append(pair)
    netloc = f"{user}@{_host(parts)}" if user else _host(parts)
    # Not `urlunsplit`: it drops the slashes before an empty host, and libpq does not decode `+` to a space.
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{'&'.join(kept)}" if any(kept) else ""), hidden


def _split(url: str) -> SplitResult | None:
    """Return None for an invalid PostgreSQL URL, or if unescaped characters in a password make it ambiguous."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    ambiguous = "@" in parts.path or parts.fragment or ("@" in parts.query and "@" not in parts.netloc)
    foreign = parts.scheme not in _SCHEMES or "://" not in url
    return None if ambiguous or foreign or not all(map(_is_port, _ports(parts))) else parts


def _ports(parts: SplitResult) -> list[str]:
    addresses = [address for address in _host(parts).split(",") if not address.endswith("]")]
    return [
        *[port for _, colon, port in (address.rpartition(":") for address in addresses) if colon],
        *[port for ports in parse_qs(parts.query).get("port", []) for port in ports.split(",")],
    ]


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]
