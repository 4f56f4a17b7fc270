"""McpServer: the engine's memory as MCP tools, and its threads as MCP resources, for one user of one app."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)
from starlette.types import Receive, Scope, Send

from cognizes.engine.adapters.mcp.tools import TOOLS, McpCaller, call_tool, list_tools
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, InvalidInputError
from cognizes.engine.models import Session
from cognizes.engine.version import __version__

__all__ = ["McpCaller", "McpServer"]

_THREADS = "cognizes://threads/"
_JSON = "application/json"
_PAGE = 50
_ITEMS = 200
_INSTRUCTIONS = (
    "A durable memory of one user. Call `recall` before you answer a question about the user or earlier work; call "
    "`remember` with what will matter later. Conversations of the user are resources."
)
_Context = ServerRequestContext[Any, Any]


class McpServer:
    """Serves one engine. `caller_of` returns the caller of an HTTP request; on stdio the caller is given."""

    def __init__(self, engine: Engine, caller_of: Callable[[Any], McpCaller]) -> None:
        self._engine = engine
        self._caller_of = caller_of
        self._server: Server[Any] = Server(
            "cognizes",
            version=__version__,
            title="Cognizes Engine",
            instructions=_INSTRUCTIONS,
            get_tool_input_schema=lambda name: TOOLS[name].schema if name in TOOLS else None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

    async def serve_stdio(self) -> None:
        """Serve standard input and output until the input ends."""
        async with stdio_server() as (reading, writing):
            await self._server.run(reading, writing, self._server.create_initialization_options())

    async def serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of streamable HTTP. No session outlives it, so any process may serve the next one."""
        limit = self._engine.settings.max_body_bytes
        manager = StreamableHTTPSessionManager(
            self._server, json_response=True, stateless=True, max_request_body_size=limit
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    # Tools

    async def _list_tools(self, context: _Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=list_tools(self._caller_of(context.request)))

    async def _call_tool(self, context: _Context, params: CallToolRequestParams) -> CallToolResult:
        """Call a tool. A wrong input is a result with `isError`, so that the model can correct it."""
        if params.name not in TOOLS:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; there is {', '.join(TOOLS)}")
        caller = self._caller_of(context.request)
        try:
            with acting_for([caller.app_name]):
                found = await call_tool(self._engine, caller, params.name, params.arguments or {})
        except EngineError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        text = TextContent(type="text", text=json.dumps(found, ensure_ascii=False))
        return CallToolResult(content=[text], structured_content=found)

    # Resources

    async def _list_resources(self, context: _Context, params: PaginatedRequestParams | None) -> ListResourcesResult:
        caller = self._caller_of(context.request)
        cursor = params.cursor if params else None
        try:
            with acting_for([caller.app_name]):
                page = await self._engine.sessions.list(caller.app_name, caller.user_id, limit=_PAGE, cursor=cursor)
        except InvalidInputError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        return ListResourcesResult(
            resources=[_resource(session) for session in page.items], next_cursor=page.next_cursor
        )

    async def _list_templates(self, _: _Context, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        template = ResourceTemplate(
            name="thread",
            title="A conversation",
            uri_template=f"{_THREADS}{{session_id}}",
            description="The newest items of a conversation of the user: messages, thoughts, tool calls and results.",
            mime_type=_JSON,
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(self, context: _Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        caller, uri = self._caller_of(context.request), str(params.uri)
        with acting_for([caller.app_name]):
            session = None
            if uri.startswith(_THREADS):
                name = unquote(uri.removeprefix(_THREADS))
                # An invalid name, for example with a NUL character, is the name of no session.
                with suppress(InvalidInputError):
                    session = await self._engine.sessions.get(caller.app_name, caller.user_id, name)
            if session is None:
                raise MCPError(
                    INVALID_PARAMS, f"there is no resource {uri[:200]}; use a uri of resources/list", data={"uri": uri}
                )
            page = await self._engine.timeline.read(session.thread_id, limit=_ITEMS)
        document = {
            "session_id": session.id,
            "title": session.title,
            "items": page.items,
            "has_more": page.has_more,
        }
        text = json.dumps(document, ensure_ascii=False, default=str)
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, mime_type=_JSON, text=text)])


def _resource(session: Session) -> Resource:
    return Resource(
        name=session.id,
        title=session.title or session.id,
        uri=f"{_THREADS}{quote(session.id, safe='')}",
        description="A conversation of the user.",
        mime_type=_JSON,
    )
