"""The Model Context Protocol at `/mcp`, if the extra `mcp` is installed: streamable HTTP without sessions."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from cognizes.engine.access import Permission
from cognizes.engine.api.agents import DEFAULT_USER
from cognizes.engine.api.authorization import Caller, CurrentEngine, Reach, access
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.engine import Engine
from cognizes.engine.errors import NotFoundError

if TYPE_CHECKING:
    from cognizes.engine.adapters.mcp import McpCaller, McpServer

router = APIRouter(tags=["mcp"])

HOW_TO_GET_MCP = "the extra mcp is not installed; get it with `pip install 'cognizes-engine[mcp]'`"
DEFAULT_APP = "default"
_CALLER = "cognizes.mcp_caller"
_INVALID_REQUEST = -32600

AppName = Annotated[str | None, Query(description="The app; by default the only one of the key.")]
UserId = Annotated[str | None, Query(description="The user, for a key that is bound to none.")]


_REFUSED = {
    "application/json": {"schema": {"type": "object"}},
    "text/plain": {"schema": {"type": "string"}},
    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}},
}
"""Errors of JSON-RPC, of the transport, and of the server around it."""
_ANSWERS: dict[int | str, dict[str, object]] = {
    200: {"description": "The answer to a request", "content": {"application/json": {"schema": {"type": "object"}}}},
    202: {"description": "A notification was taken"},
    400: {
        "description": "The body is no JSON-RPC message, or of an unknown version of the protocol",
        "content": _REFUSED,
    },
    403: {"description": "The key does not reach the app or the user", "content": _REFUSED},
    404: {"description": "The extra `mcp` is not installed"},
    406: {"description": "The `Accept` header allows no JSON", "content": _REFUSED},
    413: {"description": "The message is larger than COGNIZES_MAX_BODY_BYTES"},
    422: {"description": "The app is not named, or the query is not valid", "content": _REFUSED},
}


class McpResponse(Response):
    """Lets the MCP server answer a request whose body has been read."""

    def __init__(self, server: McpServer, message: bytes) -> None:
        super().__init__()
        self._server = server
        self._message: bytes | None = message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def replay() -> Message:
            if self._message is None:
                return await receive()
            message, self._message = self._message, None
            return {"type": "http.request", "body": message, "more_body": False}

        async def send_labelled(message: Message) -> None:
            # The transport names no type for the texts with which it refuses a request.
            if message["type"] == "http.response.start" and "content-type" not in Headers(raw=message["headers"]):
                message = {**message, "headers": [*message["headers"], (b"content-type", b"text/plain; charset=utf-8")]}
            await send(message)

        await self._server.serve_http(scope, replay, send_labelled)


@router.post(
    "/mcp",
    response_class=Response,
    responses=_ANSWERS,
    openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}},
    summary="Send a message of the Model Context Protocol",
)
@access(Reach.CALLER)
async def post_message(
    request: Request,
    engine: CurrentEngine,
    caller: Caller,
    app_name: AppName = None,
    user_id: UserId = None,
    x_user_id: Annotated[str | None, Header(description="The user, for a key that is bound to none.")] = None,
) -> Response:
    """Answer a JSON-RPC message: memory tools, and the threads of one user of one app as resources.

    There are no sessions: each request is complete by itself. A key without the permission `write` can only read.
    """
    server = await _server(request, engine)
    bound_app = next(iter(caller.app_names)) if caller.app_names and len(caller.app_names) == 1 else None
    app = app_name or bound_app or (None if engine.access.is_required else DEFAULT_APP)
    if app is None:
        return _refusal(422, "this key is for several apps; name one: /mcp?app_name=...")
    given = user_id or x_user_id
    user = caller.user_id or given or DEFAULT_USER
    if not caller.sees(app, user) or given not in (None, user):
        return _refusal(403, f"this key does not reach the user {given or user!r:.80} of the app {app!r:.80}")
    from cognizes.engine.adapters.mcp import McpCaller  # noqa: PLC0415 - the extra may be missing

    request.scope[_CALLER] = McpCaller(app, user, may_write=caller.may(Permission.WRITE), name=caller.name)
    return McpResponse(server, await request.body())


def _refusal(status: int, reason: str) -> Response:
    """Return an error of JSON-RPC, whose message MCP clients show; they ignore problem details."""
    error = {"code": _INVALID_REQUEST, "message": reason}
    return DocumentResponse({"jsonrpc": "2.0", "id": None, "error": error}, status_code=status)


async def _server(request: Request, engine: Engine) -> McpServer:
    state = request.app.state
    if not hasattr(state, "mcp"):
        if importlib.util.find_spec("mcp") is None:
            raise NotFoundError(HOW_TO_GET_MCP)
        # In a thread: the import takes half a second, and the server answers other requests.
        adapter = await asyncio.to_thread(importlib.import_module, "cognizes.engine.adapters.mcp")
        if not hasattr(state, "mcp"):
            # No other request of this moment has made the server.
            state.mcp = adapter.McpServer(engine, _caller_of)
    server: McpServer = state.mcp
    return server


def _caller_of(request: Any) -> McpCaller:
    caller: McpCaller = request.scope[_CALLER]
    return caller
