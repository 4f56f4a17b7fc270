"""What each route needs, and whether the caller of a request has it: the same for REST, SSE and WebSocket.

A route declares its needs with `@access(...)` below its path. `authorize` is a dependency of the application and so of
every route. A thread of another tenant or user is 404, as if it did not exist; a missing permission and the name of
another app are 403.

Administrators may write any event. Other callers write neither the engine's own events about runs nor a confirmation of
a tool call. An end user writes the user's text and media and nothing else, and changes neither the state of the app nor
what agents wrote. The caller decides the role, which is stored with the event, so that all views agree.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

from fastapi import Depends, Query, Request, WebSocketException
from starlette.requests import HTTPConnection
from starlette.types import Scope

from cognizes.engine.access import ANONYMOUS, Authenticator, Permission, Principal
from cognizes.engine.access.audit import EVERY_APP
from cognizes.engine.access.authenticator import Credential
from cognizes.engine.api.limits import TokenBuckets, caller_of
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, InvalidInputError, NotFoundError, PermissionDeniedError
from cognizes.engine.models import Event
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.timeline.event_kinds import KINDS
from cognizes.engine.timeline.event_reading import CLIENT_HISTORY

LARGEST = 2**62
"""The largest number that a path or a query accepts."""
UNREAD = object()
"""The body of a call that was not parsed."""
_CALL = "cognizes.call"
_MAX_ARGUMENT_LENGTH = 32_768
"""Characters of one argument in a path or a query: room for a list of hundreds of ids."""
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
_ENGINE_KINDS = re.compile(r"run_.*|branch_.*|tool_confirmation.*|memory_.*|monitor_.*")
_CONFIRMATION = "adk_request_confirmation"
_USER_KINDS = frozenset(
    {"user_message", "message", "state_update", "clarification_answered", "decision_answered", "feedback"}
)
_PART_TYPES = frozenset({"text", "image", "image_url", "audio", "input_audio", "video", "file", "document", "binary"})
_TOOL_FIELDS = frozenset(
    {
        *("function_call", "functionCall", "function_response", "functionResponse", "thought", "thought_signature"),
        *("tool_call", "tool_calls", "tool_call_id", "tool_use", "tool_result", "tool_response", "toolCall"),
        *("executable_code", "executableCode", "code_execution_result", "codeExecutionResult"),
    }
)
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
    takes_upload: bool = False
    """The body is a file, which is stored as it arrives and may be as large as an artifact."""
    takes_body: bool = False
    """The endpoint has the parameter `body` and reads the app and the user there, not in the query."""


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
    takes_upload: bool = False,
) -> Callable[[Endpoint], Endpoint]:
    """Declare what a route needs; stands below the decorator with its path."""
    declared = Access(reach, permission, is_audited, is_for_agents, only_reads, has_large_body, takes_upload)

    def declare(endpoint: Endpoint) -> Endpoint:
        takes_body = "body" in inspect.signature(endpoint).parameters
        setattr(endpoint, _DECLARED, replace(declared, takes_body=takes_body))
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


@dataclass(slots=True)
class Call:
    """What is known about the caller of one request; a value of the ASGI scope."""

    principal: Principal = ANONYMOUS
    refusal: EngineError | None = None
    """Why the caller is not authenticated; raised by `authorize` unless the route is public."""
    audited_app: str | None = None
    """The app of the audit log's entry; None when the request is not audited."""
    thread_of_run: UUID | None = None
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    """The headers by their names in lower case; of several with one name the first."""
    body: Any = UNREAD
    """The JSON of the body, if it was parsed before the caller is authorized."""
    is_counted: bool = False
    """The request was counted against the caller's rate. A request that is served again counts once."""


def begin_call(scope: Scope) -> Call:
    call = scope[_CALL] = Call(headers=dict(reversed(scope["headers"])))
    return call


def call_of(connection: HTTPConnection) -> Call:
    call: Call = connection.scope[_CALL]
    return call


def credential_of(scope: Scope, headers: Mapping[bytes, bytes]) -> Credential:
    """Return the credential of a request. Only tickets are accepted in a URL: logs of proxies contain URLs."""
    kind, _, value = headers.get(b"authorization", b"").partition(b" ")
    bearer = value.strip() if kind.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    if bearer:
        return Credential(bearer=bearer.decode("latin-1"))
    if scope["type"] == "websocket" or scope["method"] == "GET":
        return Credential(ticket=HTTPConnection(scope).query_params.get("ticket", ""))
    return Credential()


def check_origin(scope: Scope, headers: Mapping[bytes, bytes], *, allowed: list[str], asks_for_keys: bool) -> None:
    """Raise `PermissionDeniedError` for a request that a page of another origin makes in a user's browser.

    Browsers open WebSockets for any page (CORS does not apply), and a server without keys accepts every caller.
    """
    if b"origin" not in headers or (asks_for_keys and scope["type"] != "websocket"):
        return
    origin = headers[b"origin"].decode("latin-1")
    if origin in allowed:
        return
    place = urlsplit(origin)
    if place.netloc and place.netloc == headers.get(b"host", b"").decode("latin-1"):
        return
    if not asks_for_keys and place.hostname in _LOOPBACK:
        return
    raise PermissionDeniedError(f"pages of {origin} may not call this server; see COGNIZES_CORS_ORIGINS")


def check_host(scope: Scope, headers: Mapping[bytes, bytes], *, allowed: list[str]) -> None:
    """Raise `PermissionDeniedError` when a server without keys, on a loopback address, is called by a foreign name.

    A page of a domain that resolves to this machine (DNS rebinding) has the same origin for its browser. An address
    in place of a name cannot be rebound.
    """
    place, _ = scope.get("server") or ("", None)
    if not _is_address(place, loopback=True):
        return
    name = _host_name(headers.get(b"host", b""))
    if name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    if any(name == urlsplit(origin).hostname for origin in allowed):
        return
    raise PermissionDeniedError(
        f"this server needs no key and answers to names of this machine only, not {name!r}; see COGNIZES_CORS_ORIGINS"
    )


@lru_cache(maxsize=1024)
def _host_name(host: bytes) -> str:
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname or "localhost"
    except ValueError:
        return "?"


def check_peer(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Raise `PermissionDeniedError` unless a request comes from this machine.

    A unix socket and an application in the same process have no address. A proxy on this machine that forwards a
    request counts as the address that it names, also when it is not a trusted proxy.
    """
    host, _ = scope.get("client") or ("", None)
    is_forwarded = not _FORWARDED_HEADERS.isdisjoint(headers)
    forwarded = [header for header in scope["headers"] if header[0] in _FORWARDED_HEADERS] if is_forwarded else ()
    named = [address for header in forwarded for address in _forwarded_for(*header)]
    foreign = next((address for address in named if not _is_address(address, loopback=True)), None)
    if foreign is None and _is_address(host) and not _is_address(host, loopback=True):
        foreign = host
    if foreign is not None:
        raise PermissionDeniedError(
            f"this server needs no key and answers only this machine, not {foreign[:100]!r}; set "
            "COGNIZES_AUTH=required and make a key with `cognizes keys create`, or set COGNIZES_INSECURE=true if a "
            "firewall or proxy refuses other clients"
        )


def _forwarded_for(name: bytes, value: bytes) -> list[str]:
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
        self.rate = TokenBuckets(rate=settings.requests_per_second, size=settings.requests_at_once)
        self._max_contexts = settings.max_contexts_per_connection
        self._origins = origins_of(settings.cors_origins)

    async def authorize(self, connection: HTTPConnection) -> None:
        """Return when the caller may make this request; raise what it is answered otherwise."""
        scope, call = connection.scope, call_of(connection)
        self._check_arguments(connection)
        check_origin(scope, call.headers, allowed=self._origins, asks_for_keys=self._authenticator.is_required)
        if not self._authenticator.is_required:
            check_host(scope, call.headers, allowed=self._origins)
        needed = _needed(scope)
        if needed.is_audited:
            call.audited_app = EVERY_APP
        if not self._authenticator.is_required or needed.reach is Reach.PUBLIC:
            return
        if call.refusal is not None:
            raise call.refusal
        principal = call.principal
        if not call.is_counted:
            call.is_counted = True
            self.rate.take(caller_of(principal))
        if not principal.may(needed.permission):
            raise PermissionDeniedError(f"this needs the permission {needed.permission}, which {principal.name} lacks")
        if needed.is_for_agents and principal.user_id is not None:
            raise PermissionDeniedError("this route is for agents; the key or token of an end user is not accepted")
        await self.check_reach(connection, needed, call)

    async def find_context(self, principal: Principal, name: str) -> UUID:
        """Find a thread by its id, or by a session id that is unique among the caller's threads."""
        return await self._engine.sessions.store.find_context(
            name, app_names=principal.app_names, user_id=principal.user_id
        )

    async def find_contexts(self, principal: Principal, names: list[str]) -> list[UUID]:
        """Find several threads; their number is checked before the first is looked up."""
        self.check_count(len(names))
        return [await self.find_context(principal, name) for name in names]

    def check_count(self, contexts: int) -> None:
        """Raise `InvalidInputError` when one connection may not follow so many contexts."""
        if contexts > self._max_contexts:
            raise InvalidInputError(
                f"one connection may follow {self._max_contexts} contexts (COGNIZES_MAX_CONTEXTS_PER_CONNECTION); "
                "open another"
            )

    def _check_arguments(self, connection: HTTPConnection) -> None:
        """Bound the arguments before anything reads them."""
        for name, value in connection.path_params.items():
            _check_length(name, value)
        if not connection.scope.get("query_string"):
            return
        for name, value in connection.query_params.multi_items():
            _check_length(name, value)
            if name == "contexts":
                self.check_count(value.count(",") + 1)

    async def check_reach(self, connection: HTTPConnection, needed: Access, call: Call) -> None:
        principal, parameters = call.principal, connection.path_params
        match needed.reach:
            case Reach.THREAD:
                app_name = await self._check_thread(principal, parameters)
                if needed.is_audited:
                    call.audited_app = app_name
            case Reach.RUN:
                call.thread_of_run = await self._find_thread_of_run(principal, str(parameters["run_id"]))
            case Reach.AGENT:
                _check_app(principal, str(parameters["agent"]))
            case Reach.EVERYTHING if not principal.sees_everything:
                raise PermissionDeniedError("this concerns all apps; it needs a key that is not bound to some of them")
            case _:
                pass
        await _check_names(connection, needed, principal)

    async def _check_thread(self, principal: Principal, parameters: Mapping[str, object]) -> str:
        """Return the app of the thread in the path; raise `NotFoundError` for a thread of another tenant or user."""
        if principal.sees_everything:
            return EVERY_APP
        parameter = next(name for name in _THREAD_PARAMETERS if name in parameters)
        name = str(parameters[parameter])
        # Session ids only where the route accepts them: elsewhere the same text would name another thread.
        if parameter == _SESSION_PARAMETER:
            name = str(await self.find_context(principal, name))
        try:
            owner = await self._authenticator.find_owner(thread_uuid(name))
        except NotFoundError:
            owner = None
        if owner is None or not principal.sees(*owner):
            raise NotFoundError(f"there is no thread {name}")
        return owner[0]

    async def _find_thread_of_run(self, principal: Principal, run_id: str) -> UUID | None:
        """Return the newest thread of the caller with such a run.

        Clients choose run ids, so another tenant may have the same one, now or later: `NotFoundError` when the caller
        has none.
        """
        if principal.sees_everything:
            return None
        apps = None if principal.app_names is None else sorted(principal.app_names)
        found: UUID | None = await self._engine._database.fetch_value(
            "find_thread_of_run", run_id, apps, principal.user_id
        )
        if found is None:
            raise NotFoundError(f"there is no run {run_id}")
        return found


async def _check_names(connection: HTTPConnection, needed: Access, principal: Principal) -> None:
    """Compare app and user in the query and in the body with the caller, on every route."""
    if principal.sees_everything and principal.may(Permission.ADMIN):
        return
    query = connection.query_params if connection.scope.get("query_string") else {}
    body = await _body(connection)
    sources = [source for source in (body, query) if source]
    apps = [value for source in sources if isinstance(value := source.get("app_name"), str)]
    users = [value for source in sources if isinstance(value := source.get("user_id"), str)]
    for app in apps:
        _check_app(principal, app)
    # A name in the query does not replace one that the endpoint reads in the body, nor the other way round.
    named = body if needed.takes_body else query
    must_be_named = needed.reach is Reach.APP
    if must_be_named and principal.app_names is not None and not isinstance(named.get("app_name"), str):
        raise PermissionDeniedError("name the app: app_name is missing")
    if principal.user_id is not None and (
        any(user != principal.user_id for user in users)
        or (must_be_named and not isinstance(named.get("user_id"), str))
    ):
        raise PermissionDeniedError(f"user_id must be {principal.user_id!r} for this caller")
    if needed.reach in (Reach.APP, Reach.THREAD):
        check_event(principal, body)


async def _body(connection: HTTPConnection) -> dict[str, Any]:
    if not isinstance(connection, Request) or connection.method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        return {}
    if access_of(connection.scope).takes_upload:
        return {}
    if (parsed := call_of(connection).body) is not UNREAD:
        return parsed if isinstance(parsed, dict) else {}
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


def _check_length(name: str, value: object) -> None:
    if isinstance(value, str) and len(value) > _MAX_ARGUMENT_LENGTH:
        raise InvalidInputError(f"{name} is {len(value)} characters; the limit is {_MAX_ARGUMENT_LENGTH}")


def _needed(scope: Scope) -> Access:
    if scope["path_params"].get("thread_id") == _EVERY_THREAD:
        return Access(Reach.EVERYTHING, Permission.ADMIN)
    return access_of(scope)


def is_end_user(principal: Principal) -> bool:
    """Return whether a caller is bound to one user and may therefore only write as that user."""
    return principal.user_id is not None and not principal.may(Permission.ADMIN)


def origins_of(text: str) -> list[str]:
    return [origin.strip().rstrip("/") for origin in text.split(",") if origin.strip()]


def default_author(principal: Principal) -> str:
    return "system" if principal is ANONYMOUS else principal.name


def store_as_user(event: Event) -> None:
    """Give an end user's event the author `user`, and the id of its message.

    With its own id it cannot take the place of another message.
    """
    event.author = "user"
    message_id = event.content.get("message_id")
    if not event.id and isinstance(message_id, str):
        event.id = message_id


async def check_user_references(engine: Engine, thread_id: UUID, event: Event) -> None:
    """Raise `PermissionDeniedError` for an end user's event that names a streamed message or a foreign run."""
    # A message that is being streamed will be stored under its id; the user's event would take its place.
    if event.id and await engine._database.fetch_row("find_stream", thread_id, event.id):
        raise PermissionDeniedError(f"a user's event may not have the id of a streamed message: {event.id[:200]!r}")
    # Readers of a run receive the events that name it, also of a run of another thread or one not started yet.
    if event.run_id and await engine._database.fetch_row("read_run", thread_id, event.run_id) is None:
        raise PermissionDeniedError(
            f"a user's event may not name a run that its thread does not have: {event.run_id[:200]!r}; omit run_id"
        )


def check_event(principal: Principal, body: dict[str, Any]) -> None:
    """Raise `PermissionDeniedError` for a body that would store an event the caller may not write."""
    if principal.may(Permission.ADMIN):
        return
    kind = body.get("event_type")
    if isinstance(kind, str) and _is_engine_kind(kind):
        raise PermissionDeniedError(f"events of the type {kind} are written by the engine")
    if isinstance(kind, str) and _mentions_confirmation(body.get("content")):
        raise PermissionDeniedError("a confirmation of a tool call is given by resuming its run, not as an event")
    if principal.user_id is not None:
        _check_user_event(principal.user_id, body)


def _is_engine_kind(kind: str) -> bool:
    known = KINDS.get(kind)
    return (known is not None and known.engine_only) or _ENGINE_KINDS.fullmatch(kind) is not None


def _check_user_event(user_id: str, body: dict[str, Any]) -> None:
    kind, author, role = (body.get(name) for name in ("event_type", "author", "role"))
    if isinstance(author, str) and author not in ("user", user_id):
        raise PermissionDeniedError(f"a user may not write as {author!r}")
    if isinstance(role, str) and role != "user":
        raise PermissionDeniedError(f"a user may not write with the role {role!r}")
    if isinstance(kind, str) and kind not in _USER_KINDS:
        raise PermissionDeniedError(f"a user may not write events of the type {kind!r}")
    content = body.get("content")
    if isinstance(content, dict) and ("adk" in content or content.get("role", "user") != "user"):
        raise PermissionDeniedError("a user may not write what ADK stores (`adk`), nor content of another role")
    if isinstance(content, dict) and CLIENT_HISTORY in content:
        # Views and agents read the message under this name instead of the text, in the role that it claims.
        raise PermissionDeniedError(f"the host writes `{CLIENT_HISTORY}`; bring a history with the input of a run")
    _check_parts(content)
    if isinstance(content, dict) and body.get("id") and content.get("message_id", body["id"]) != body["id"]:
        # Clients add the text to the message that has this id.
        raise PermissionDeniedError("a user's event has the id of its message: `id` and `message_id` are the same")
    actions = body.get("actions")
    if isinstance(actions, dict) and actions.keys() - {"state_delta"}:
        raise PermissionDeniedError(
            "a user's event changes state and does nothing else (`actions` holds `state_delta` only)"
        )
    changed = [body.get("delta"), body.get("state"), actions.get("state_delta") if isinstance(actions, dict) else None]
    for delta in changed:
        if isinstance(delta, dict) and any(str(key).startswith("app:") for key in delta):
            raise PermissionDeniedError("a user may not change the state of the app (`app:` keys)")


def _check_parts(content: Any) -> None:
    """Refuse parts that models and views could read as a tool call, its result or a thought."""
    lists = [content.get("parts"), content.get("content")] if isinstance(content, dict) else [content]
    for part in (part for parts in lists if isinstance(parts, list) for part in parts):
        if not isinstance(part, dict) or part.keys() & _TOOL_FIELDS or part.get("type", "text") not in _PART_TYPES:
            raise PermissionDeniedError(
                "a part of a user's message is a text or media, no tool call, result or thought; "
                f"known types are {', '.join(sorted(_PART_TYPES))}"
            )


def _mentions_confirmation(value: Any) -> bool:
    """Return whether a value contains the name of ADK's confirmation. Not recursive: it may be deep."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if item == _CONFIRMATION:
            return True
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return False


# Dependencies of routes. All are async: FastAPI runs others in a thread.


async def authorize(connection: HTTPConnection) -> None:
    """Authorize a request; a dependency of the whole application."""
    authorizer: Authorizer = connection.app.state.authorizer
    if connection.scope["type"] != "websocket":
        await authorizer.authorize(connection)
        return
    try:
        await authorizer.authorize(connection)
    except EngineError as error:
        raise WebSocketException(_POLICY_VIOLATION, str(error)[:_REASON_BYTES]) from error


async def _engine(connection: HTTPConnection) -> Engine:
    engine: Engine = connection.app.state.engine
    return engine


async def _authorizer(connection: HTTPConnection) -> Authorizer:
    authorizer: Authorizer = connection.app.state.authorizer
    return authorizer


async def _caller(connection: HTTPConnection) -> Principal:
    return call_of(connection).principal


async def _thread_of_run(connection: HTTPConnection) -> UUID | None:
    return call_of(connection).thread_of_run


async def _thread(thread_id: str) -> UUID:
    return thread_uuid(thread_id)


CurrentEngine = Annotated[Engine, Depends(_engine)]
CurrentAuthorizer = Annotated[Authorizer, Depends(_authorizer)]
Caller = Annotated[Principal, Depends(_caller)]
ThreadOfRun = Annotated[UUID | None, Depends(_thread_of_run)]
"""The thread in which a caller may see the run in the path; None for callers who may see every thread."""
ThreadId = Annotated[UUID, Depends(_thread)]


async def _context(context_id: str, authorizer: CurrentAuthorizer, caller: Caller) -> UUID:
    return await authorizer.find_context(caller, context_id)


ContextId = Annotated[UUID, Depends(_context)]
"""A thread by its id, or by a session id that is unique among the caller's threads; else 404."""
Limit = Annotated[int, Query(ge=1, le=10_000)]
Sequence = Annotated[int, Query(ge=0, le=LARGEST)]
OptionalSequence = Annotated[int | None, Query(ge=0, le=LARGEST)]
