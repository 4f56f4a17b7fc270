"""What each route needs, and whether the caller of a request has it: the same for REST, SSE and WebSocket.

A route declares its needs with `@access(...)` below its path. `authorize` is a dependency of the application and so of
every route. A thread of another tenant or user is 404, as if it did not exist; a missing permission and the name of
another app are 403.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Request, WebSocketException
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from cognizes.engine.access import ANONYMOUS, Authenticator, Permission, Principal
from cognizes.engine.access.authenticator import Credential
from cognizes.engine.api.event_policy import check_event
from cognizes.engine.api.limits import TokenBuckets, caller_of
from cognizes.engine.api.requests import Scope
from cognizes.engine.engine import Engine
from cognizes.engine.errors import (
    EngineError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
)
from cognizes.engine.pulse.session_store import thread_uuid

PRINCIPAL = "cognizes.principal"
REFUSAL = "cognizes.refusal"
AUDITED = "cognizes.audited"
THREAD = "cognizes.thread"
_POLICY_VIOLATION = 1008
_REASON_BYTES = 120
_FORWARDED_HEADERS = frozenset({b"x-forwarded-for", b"x-real-ip", b"forwarded"})
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_THREAD_PARAMETERS = ("thread_id", "context_id")
_SESSION_PARAMETER = "context_id"
"""The path parameter that also accepts a session id."""
_EVERY_THREAD = "*"
_DECLARED = "__access__"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Reach(StrEnum):
    """What a route touches, and so what is compared with the caller."""

    PUBLIC = "public"
    """No data of any tenant. No credential is needed."""
    CALLER = "caller"
    """The caller itself, or names that are not secret."""
    THREAD = "thread"
    """The thread in the path."""
    THREADS = "threads"
    """The threads in the query, or those that the connection names while it is open."""
    RUN = "run"
    """The run in the path, and so its thread."""
    APP = "app"
    """The app and the user in the query or the body."""
    AGENT = "agent"
    """The app that the agent in the path is, and the caller's user."""
    AGENTS = "agents"
    """The apps of all agents, and the caller's user."""
    EVERYTHING = "everything"
    """More than one app."""


@dataclass(frozen=True)
class Access:
    """What a route needs of its caller, and how the server treats its requests."""

    reach: Reach
    permission: Permission = Permission.READ
    is_audited: bool = False
    is_for_agents: bool = False
    """The route speaks for an agent: callers bound to an end user are refused."""
    only_reads: bool = False
    """A POST that stores nothing: it is cancelled when its client disconnects, as a GET is."""
    has_large_body: bool = False
    """The body holds events or state and may be as large as these may be."""


UNDECLARED = Access(Reach.EVERYTHING, Permission.ADMIN, is_audited=True)
"""What a route without a declaration needs."""


def access(
    reach: Reach,
    permission: Permission = Permission.READ,
    *,
    is_audited: bool = False,
    is_for_agents: bool = False,
    only_reads: bool = False,
    has_large_body: bool = False,
) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route needs; stands below the decorator with its path."""
    declared = Access(reach, permission, is_audited, is_for_agents, only_reads, has_large_body)

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _DECLARED, declared)
        return endpoint

    return declare


def declared_access(endpoint: object) -> Access | None:
    """Return what an endpoint declares; None without a declaration."""
    found: Access | None = getattr(endpoint, _DECLARED, None)
    return found


def access_of(scope: Scope) -> Access:
    """Return what the route of a request needs. Before a route is found this is `UNDECLARED`."""
    return declared_access(scope.get("endpoint")) or UNDECLARED


def only_reads(scope: Scope) -> bool:
    """Return whether a request stores nothing, so that it may be cancelled at any moment."""
    return scope["method"] in _READING_METHODS or access_of(scope).only_reads


def credential_of(scope: Scope) -> Credential:
    """What a request shows. A ticket counts in the query only; a key or token in a URL would end in somebody's log."""
    headers = Headers(scope=scope)
    kind, _, value = headers.get("authorization", "").partition(" ")
    bearer = value.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    if bearer:
        return Credential(bearer=bearer)
    if scope["type"] == "websocket" or scope["method"] == "GET":
        return Credential(ticket=HTTPConnection(scope).query_params.get("ticket", ""))
    return Credential()


def check_origin(scope: Scope, *, allowed: list[str], asks_for_keys: bool) -> None:
    """A web page somewhere else may not use the browser of somebody who can reach this server.

    A WebSocket is opened by any page without asking (no CORS there), and a server without keys believes whoever comes.
    """
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None or origin in allowed or (asks_for_keys and scope["type"] != "websocket"):
        return
    place = urlsplit(origin)
    if place.netloc and place.netloc == headers.get("host"):
        return
    if not asks_for_keys and place.hostname in _LOOPBACK:
        return
    raise PermissionDeniedError(f"pages of {origin} may not call this server; see COGNIZES_CORS_ORIGINS")


def check_host(scope: Scope, *, allowed: list[str]) -> None:
    """A server without keys, on an address of this machine, answers to names of this machine.

    A page elsewhere whose name was made to point here (DNS rebinding) is of the same origin to its browser. An address
    in place of a name cannot be made to point elsewhere.
    """
    place, _ = scope.get("server") or ("", None)
    if not _is_address(place, loopback=True):
        return
    try:
        name = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or "localhost"
    except ValueError:
        name = "?"
    known = ("localhost", *(urlsplit(origin).hostname for origin in allowed))
    if name in known or name.endswith(".localhost") or _is_address(name):
        return
    raise PermissionDeniedError(
        f"this server asks for no key and answers to names of this machine, not to {name!r}; see COGNIZES_CORS_ORIGINS"
    )


def check_peer(scope: Scope) -> None:
    """Raise `PermissionDeniedError` unless a request comes from this machine.

    A unix socket and an application in the same process have no address. A proxy on this machine that says for which
    address it asks is asked by that address, whether its word is trusted otherwise or not.
    """
    host, _ = scope.get("client") or ("", None)
    forwarded = [header for header in scope["headers"] if header[0] in _FORWARDED_HEADERS]
    named = [address for header in forwarded for address in _forwarded_for(*header)]
    foreign = next((address for address in named if not _is_address(address, loopback=True)), None)
    if foreign is None and _is_address(host) and not _is_address(host, loopback=True):
        foreign = host
    if foreign is not None:
        raise PermissionDeniedError(
            f"this server asks for no key and answers this machine only, not {foreign[:100]!r}; set "
            "COGNIZES_AUTH=required and make a key with `cognizes keys create`, or set COGNIZES_INSECURE=true if a "
            "firewall or proxy keeps strangers out"
        )


def _forwarded_for(name: bytes, value: bytes) -> list[str]:
    """Return the addresses for which a proxy says that it asks."""
    items = value.decode("latin-1").replace(";", ",").split(",")
    if name == b"forwarded":
        pairs = [item.strip().partition("=") for item in items]
        items = [address for key, _, address in pairs if key.lower() == "for"]
    return [_without_port(item.strip().strip('"')) for item in items]


def _without_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


@lru_cache(maxsize=1024)
def _is_address(text: str, *, loopback: bool = False) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback if loopback else True


class Authorizer:
    """Compares what a request asks for with its caller."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._authenticator: Authenticator = engine.access
        settings = engine.settings
        self._rate = TokenBuckets(rate=settings.requests_per_second, size=settings.requests_at_once)
        self._origins = origins_of(engine.settings.cors_origins)

    async def authorize(self, connection: HTTPConnection) -> None:
        """Returns when the caller may go on; raises what it is told otherwise."""
        scope = connection.scope
        needed = _needed(scope)
        check_origin(scope, allowed=self._origins, asks_for_keys=self._authenticator.is_required)
        if not self._authenticator.is_required:
            check_host(scope, allowed=self._origins)
        self._check_contexts(connection)
        principal = principal_of(connection)
        if needed.is_audited:
            scope[AUDITED] = "*"
        if not self._authenticator.is_required or needed.reach is Reach.PUBLIC:
            return
        if REFUSAL in scope:
            raise scope[REFUSAL]
        self._rate.take(caller_of(principal))
        if not principal.may(needed.permission):
            raise PermissionDeniedError(f"this needs the permission {needed.permission}, which {principal.name} lacks")
        if needed.is_for_agents and principal.user_id is not None:
            raise PermissionDeniedError("this is for those who run agents; a user's key or token does not do")
        await self._check_reach(connection, needed, principal)

    async def find_context(self, principal: Principal, name: str) -> UUID:
        """A thread by its id, or by its session id where only one of those has it that the caller may see."""
        return await self._engine.manager.sessions.find_context(
            name, app_names=principal.app_names, user_id=principal.user_id
        )

    async def find_contexts(self, principal: Principal, names: list[str]) -> list[UUID]:
        """The same for connections that name several. How many is asked before the first is looked for."""
        self.check_count(len(names))
        return [await self.find_context(principal, name) for name in names]

    def check_count(self, contexts: int) -> None:
        """Whether one connection may follow so many."""
        most = self._engine.settings.max_contexts_per_connection
        if contexts > most:
            raise InvalidInputError(
                f"one connection may follow {most} contexts (COGNIZES_MAX_CONTEXTS_PER_CONNECTION); open another"
            )

    async def _check_reach(self, connection: HTTPConnection, needed: Access, principal: Principal) -> None:
        parameters = connection.path_params
        match needed.reach:
            case Reach.THREAD:
                parameter = next(name for name in _THREAD_PARAMETERS if name in parameters)
                name = str(parameters[parameter])
                # Only where the route, too, takes a session's id: elsewhere the same text would name another thread.
                if parameter == _SESSION_PARAMETER and not principal.sees_everything:
                    name = str(await self.find_context(principal, name))
                app_name = await self._check_thread(principal, name)
                if needed.is_audited:
                    connection.scope[AUDITED] = app_name
            case Reach.RUN:
                connection.scope[THREAD] = await self._check_run(principal, str(parameters["run_id"]))
            case Reach.AGENT:
                _check_app(principal, str(parameters["agent"]))
            case Reach.EVERYTHING if not principal.sees_everything:
                raise PermissionDeniedError("this concerns all apps; it needs a key that is not bound to some of them")
            case _:
                pass
        await _check_names(connection, needed, principal)

    async def _check_thread(self, principal: Principal, name: str) -> str:
        if principal.sees_everything:
            return "*"
        owner = await self._find_owner(name)
        if owner is None or not principal.sees(*owner):
            raise NotFoundError(f"there is no thread {name}")
        return owner[0]

    async def _find_owner(self, name: str) -> tuple[str, str] | None:
        with suppress(NotFoundError):
            return await self._authenticator.find_owner(thread_uuid(name))
        return None

    async def _check_run(self, principal: Principal, run_id: str) -> UUID | None:
        """The newest thread of the caller with such a run. Clients choose the ids of runs, so others may have one too;
        and one that does not exist yet may begin tomorrow, and be somebody else's."""
        if principal.sees_everything:
            return None
        apps = None if principal.app_names is None else sorted(principal.app_names)
        found: UUID | None = await self._engine.database.fetch_value(
            "find_thread_of_run", run_id, apps, principal.user_id
        )
        if found is None:
            raise NotFoundError(f"there is no run {run_id}")
        return found

    def _check_contexts(self, connection: HTTPConnection) -> None:
        self.check_count(connection.query_params.get("contexts", "").count(",") + 1)


async def _check_names(connection: HTTPConnection, needed: Access, principal: Principal) -> None:
    """App and user in the query and in the body must be the caller's, on every route."""
    query = connection.query_params
    body = await _body(connection)
    apps = [value for source in (body, query) if isinstance(value := source.get("app_name"), str)]
    users = [value for source in (body, query) if isinstance(value := source.get("user_id"), str)]
    for app in apps:
        _check_app(principal, app)
    if needed.reach is Reach.APP and not apps and principal.app_names is not None:
        raise PermissionDeniedError("name the app: app_name is missing")
    if principal.user_id is not None and (
        any(user != principal.user_id for user in users) or (needed.reach is Reach.APP and not users)
    ):
        raise PermissionDeniedError(f"user_id must be {principal.user_id!r} for this caller")
    if needed.reach in (Reach.APP, Reach.THREAD):
        check_event(principal, body)


async def _body(connection: HTTPConnection) -> dict[str, Any]:
    if not isinstance(connection, Request) or connection.method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        return {}
    if not (await connection.body()).strip():
        return {}
    try:
        body = await connection.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _check_app(principal: Principal, app_name: str) -> None:
    if not principal.sees_app(app_name):
        raise PermissionDeniedError(f"{principal.name} is not for the app {app_name!r}")


def _needed(scope: Scope) -> Access:
    if scope["path_params"].get("thread_id") == _EVERY_THREAD:
        return Access(Reach.EVERYTHING, Permission.ADMIN)
    return access_of(scope)


def origins_of(text: str) -> list[str]:
    """The origins of a setting."""
    return [origin.strip().rstrip("/") for origin in text.split(",") if origin.strip()]


def principal_of(connection: HTTPConnection) -> Principal:
    """The caller of a request that was let in."""
    principal: Principal = connection.scope.get(PRINCIPAL, ANONYMOUS)
    return principal


async def authorize(connection: HTTPConnection) -> None:
    """The dependency of every router."""
    authorizer: Authorizer = connection.app.state.authorizer
    if connection.scope["type"] != "websocket":
        await authorizer.authorize(connection)
        return
    try:
        await authorizer.authorize(connection)
    except EngineError as error:
        raise WebSocketException(_POLICY_VIOLATION, str(error)[:_REASON_BYTES]) from error


async def _authorizer(connection: HTTPConnection) -> Authorizer:
    authorizer: Authorizer = connection.app.state.authorizer
    return authorizer


async def _thread_of_run(connection: HTTPConnection) -> UUID | None:
    thread: UUID | None = connection.scope.get(THREAD)
    return thread


async def _caller(connection: HTTPConnection) -> Principal:
    return principal_of(connection)


Caller = Annotated[Principal, Depends(_caller)]
CurrentAuthorizer = Annotated[Authorizer, Depends(_authorizer)]
ThreadOfRun = Annotated[UUID | None, Depends(_thread_of_run)]
"""The thread in which a caller may see the run in the path; None for callers who may see every thread."""
AUTHORIZED = [Depends(authorize)]
