"""One HTTP POST to a URL that an operator gave: its address is checked and pinned, redirects are not followed.

The host is resolved once. All its addresses must be public, or in a network that the settings allow, and the connection
goes to one of these addresses. A name that resolves to another address a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

import httptools

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.version import __version__

Address = IPv4Address | IPv6Address
Networks = Sequence[IPv4Network | IPv6Network]
_LONGEST_URL = 2000
_LARGEST_HEAD = 64 * 1024
_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ip_network("2000::/3")
"""The only IPv6 addresses of public hosts. `is_global` also accepts site-local and IPv4-compatible ones."""


class CallFailedError(Exception):
    """The receiver was not reached, or did not answer with a status of 200 to 299. The text says why."""


@dataclass(frozen=True)
class Target:
    """A checked URL: where to connect, and what to ask for."""

    url: SplitResult
    host: str
    port: int
    is_secure: bool

    @property
    def path(self) -> str:
        return (self.url.path or "/") + (f"?{self.url.query}" if self.url.query else "")

    @property
    def authority(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_secure else 80) else f"{name}:{self.port}"


def parse_target(url: str) -> Target:
    """Check the form of a URL; raise `InvalidInputError`."""
    if len(url) > _LONGEST_URL:
        raise InvalidInputError(f"the URL has {len(url)} characters; the limit is {_LONGEST_URL}")
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise InvalidInputError("the URL has spaces, control characters or letters outside ASCII; encode them")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInputError(f"the URL is not valid: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError("the URL is not valid; write https://host/path")
    if "@" in parts.netloc:
        raise InvalidInputError("the URL contains a user name or a password; the signature identifies the sender")
    if parts.fragment:
        raise InvalidInputError("the URL contains a fragment (#); remove it")
    is_secure = parts.scheme == "https"
    return Target(parts, parts.hostname, (443 if is_secure else 80) if port is None else port, is_secure)


async def resolve(target: Target, *, allowed: Networks) -> list[str]:
    """Return the addresses of the host; raise `InvalidInputError` if one of them must not be called."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=1)
    except (OSError, UnicodeError) as error:
        raise InvalidInputError(f"the host {target.host!r} cannot be resolved ({error}); check the URL") from error
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    for text in addresses:
        address = embedded_address(ip_address(text))
        if any(address.version == network.version and address in network for network in allowed):
            continue
        if not _is_public(address):
            raise InvalidInputError(
                f"the host {target.host!r} has the internal address {text}; webhooks call public addresses only, and "
                "the networks in COGNIZES_WEBHOOK_NETWORKS"
            )
        if not target.is_secure:
            raise InvalidInputError(
                f"the URL uses http, and {text} is a public address; use https, or list a network of your own in "
                "COGNIZES_WEBHOOK_NETWORKS"
            )
    return addresses


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast


def embedded_address(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for (mapped, 6to4, Teredo, NAT64), else the address."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None) or address


async def post(url: str, body: bytes, *, headers: Mapping[str, str], allowed: Networks, seconds: float) -> None:
    """Send a POST; raise `CallFailedError` unless the answer has a status of 200 to 299 within the time."""
    try:
        async with asyncio.timeout(seconds):
            status = await _post(parse_target(url), body, headers, allowed)
    except TimeoutError as error:
        raise CallFailedError(f"no answer within {seconds:g} s") from error
    except InvalidInputError as error:
        raise CallFailedError(str(error)) from error
    except ssl.SSLError as error:
        raise CallFailedError(f"TLS failed: {error.reason or error}") from error
    except OSError as error:
        raise CallFailedError(f"the connection failed: {error.strerror or type(error).__name__}") from error
    if 300 <= status < 400:
        raise CallFailedError(f"the receiver answered {status}; redirects are not followed")
    if not 200 <= status < 300:
        raise CallFailedError(f"the receiver answered {status}")


async def _post(target: Target, body: bytes, headers: Mapping[str, str], allowed: Networks) -> int:
    addresses = await resolve(target, allowed=allowed)
    context = ssl.create_default_context() if target.is_secure else None
    reader, writer = await _connect(target, addresses, context)
    try:
        lines = [
            f"POST {target.path} HTTP/1.1",
            f"Host: {target.authority}",
            f"User-Agent: cognizes-engine/{__version__}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        return await _read_status(reader)
    finally:
        # Not `close`: a receiver that reads slowly must not hold the connection.
        writer.transport.abort()


async def _connect(
    target: Target, addresses: Sequence[str], context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    failure: OSError | None = None
    for address in addresses:
        try:
            name = target.host if context is not None else None
            return await asyncio.open_connection(address, target.port, ssl=context, server_hostname=name)
        except OSError as error:
            failure = failure or error
    raise failure or OSError("the host has no address")


class _Head:
    """Receives the events of the parser; `is_complete` when the status and the headers have arrived."""

    def __init__(self) -> None:
        self.is_complete = False

    def on_headers_complete(self) -> None:
        self.is_complete = True


async def _read_status(reader: asyncio.StreamReader) -> int:
    """Return the status of the final answer. Its body is not read."""
    head = _Head()
    parser = httptools.HttpResponseParser(head)
    size = 0
    while True:
        data = await reader.read(4096)
        size += len(data)
        if not data or size > _LARGEST_HEAD:
            raise CallFailedError("the receiver closed the connection, or sent too many headers, before its answer")
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not head.is_complete:
                raise CallFailedError("the answer of the receiver is not HTTP") from error
        except httptools.HttpParserUpgrade as error:
            raise CallFailedError("the receiver answered with an upgrade to another protocol") from error
        if head.is_complete and (status := int(parser.get_status_code())) >= 200:
            return status
        # Nothing complete yet, or an interim answer such as 103, which the final one follows.
        head.is_complete = False
