"""The address that `serve` listens on."""

from __future__ import annotations

import errno
import ipaddress
import resource
import socket
from typing import Any

from cognizes.engine.errors import SetupError

_BACKLOG = 2048
_MOST_DESCRIPTORS = 1_048_576


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Takes the port, for good: who connects from now on waits until somebody accepts.

    Binding without listening would only be a promise: Linux lets two of such sockets have one port.
    """
    family, address = _resolve(host, port)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SetupError(_explain(error, host, port)) from error
    return listening


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    _, address = _resolve(host, 0)
    return ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback


def raise_descriptor_limit() -> None:
    """Let this process open as many descriptors as its hard limit allows: each connection of a client takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def page_url(listening: socket.socket) -> str:
    """Where a browser on this machine finds what listens there."""
    name = listening.getsockname()
    address = ipaddress.ip_address(str(name[0]).partition("%")[0])
    host = "127.0.0.1" if address.is_unspecified else str(address)
    return f"http://[{host}]:{name[1]}/" if ":" in host else f"http://{host}:{name[1]}/"


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)  # noqa: S104
    except (socket.gaierror, UnicodeError) as error:
        raise SetupError(f"the host {host!r} is not known; give an address of this machine with --host") from error
    # A name such as localhost may mean several addresses; clients that try the other one first come back to this.
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, address


def _explain(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is taken by another program; stop that, or choose another port with --port"
        case errno.EACCES:
            return f"port {port} is for root only; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; choose another with --host"
    return f"cannot listen on port {port} of {host} ({error.strerror}); choose others with --host and --port"
