"""Database URLs as people may see them: without a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from cognizes.engine.errors import DatabaseError, SetupError
from cognizes.engine.settings import Settings

_SCHEMES = ("postgresql", "postgres")


def check_urls(settings: Settings) -> None:
    """Refuses what cannot be the URL of a PostgreSQL server, without repeating it: a password may be in it."""
    for variable, secret in (("DATABASE_URL", settings.database_url), ("COGNIZES_LISTEN_URL", settings.listen_url)):
        if secret and _split(secret.get_secret_value()) is None:
            raise SetupError(
                f"{variable} is no URL of a PostgreSQL server; write postgresql://user:password@host:5432/database, "
                "special characters of the password percent-encoded (/ is %2F, @ is %40)"
            )


def describe_url(url: str) -> str:
    """Host and database of a URL."""
    parts = _split(url)
    if parts is None:
        return "***"
    host = _host(parts) or next(iter(parse_qs(parts.query).get("host", [])), "localhost")
    return f"{host}{parts.path}"


def redact_url(text: str) -> str:
    """Return the text without what may be a password or a key, if it holds a URL: user, password and query.

    A password with raw special characters blurs the borders, so everything before the last @ goes.
    """
    scheme, found, rest = text.partition("://")
    if not found:
        return text
    secret, at, place = rest.rpartition("@")
    place, question, _ = place.partition("?")
    return f"{scheme}://{'***@' if at else ''}{place}{'?***' if question else ''}" if secret or at or question else text


def hide_password(url: str) -> tuple[str, str | None]:
    """The URL without its password, and the password: a command line is for everybody to see, an environment not."""
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
    # Joined by hand: the slashes before an empty host belong to the URL, and libpq reads a `+` as itself.
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{'&'.join(kept)}" if any(kept) else ""), hidden


@contextmanager
def naming_server(settings: Settings) -> Iterator[None]:
    """Within it, errors of the given server say which one it is and where it was configured."""
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


def _split(url: str) -> SplitResult | None:
    """None for what is no URL of PostgreSQL, or where a password with raw special characters blurs the borders."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    blurred = "@" in parts.path or parts.fragment or ("@" in parts.query and "@" not in parts.netloc)
    foreign = parts.scheme not in _SCHEMES or "://" not in url
    return None if blurred or foreign or not all(map(_is_port, _ports(parts))) else parts


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
