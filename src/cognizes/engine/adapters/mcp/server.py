"""McpServer: the engine's memory as MCP tools (remember, recall, forget, list), and its threads as MCP resources."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any
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
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Receive, Scope, Send

from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError, InvalidInputError, NotFoundError, PermissionDeniedError
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.records import MemoryRecord, MemoryScope, Remembered
from cognizes.engine.models import MAX_QUERY_LENGTH, JsonObject, Session, new_id
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
_MAX_TEXT = 100_000
_Context = ServerRequestContext[Any, Any]
_Tags = Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=64)]


@dataclass(frozen=True)
class McpCaller:
    """The user whose memory and threads a client reaches, and whether it may change them."""

    app_name: str
    user_id: str
    may_write: bool = True
    name: str = "mcp"
    """The actor in the audit log."""


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Remember(_Arguments):
    text: str = Field(min_length=1, max_length=_MAX_TEXT, description="What to remember, in one or more sentences.")
    id: str | None = Field(
        default=None, min_length=1, max_length=200, description="An id of your own; the same id replaces the text."
    )
    tags: _Tags = Field(default_factory=list, description="Words to filter by later.")


class _Recall(_Arguments):
    query: str = Field(min_length=1, max_length=MAX_QUERY_LENGTH, description="What to find, in your own words.")
    limit: int = Field(default=10, ge=1, le=100, description="The largest number of memories.")
    min_score: float = Field(default=0.0, ge=0, le=1, description="Leave out weaker matches.")
    tags: _Tags | None = Field(default=None, description="Only memories with all of these tags.")


class _Forget(_Arguments):
    id: str = Field(min_length=1, max_length=200, description="The id of a memory, as recall and list return it.")


class _List(_Arguments):
    limit: int = Field(default=50, ge=1, le=500, description="The largest number of memories.")
    before: str | None = Field(default=None, max_length=200, description="`next` of the previous page.")


async def _remember(engine: Engine, caller: McpCaller, arguments: _Remember) -> JsonObject:
    source_id = arguments.id or str(new_id())
    item = Remembered(source_id=source_id, text=arguments.text, tags=arguments.tags)
    stored = await engine.memory.remember(MemoryScope(caller.app_name, caller.user_id, ""), [item])
    return {"stored": bool(stored), "source_id": source_id}


async def _recall(engine: Engine, caller: McpCaller, arguments: _Recall) -> JsonObject:
    hits = await engine.memory.recall(
        arguments.query,
        app=caller.app_name,
        user=caller.user_id,
        k=arguments.limit,
        min_score=arguments.min_score,
        tags=arguments.tags,
    )
    return {"memories": [{**_shown(hit.memory), "score": round(hit.score, 4), "why": hit.why} for hit in hits]}


async def _forget(engine: Engine, caller: McpCaller, arguments: _Forget) -> JsonObject:
    if not await engine.memory.forget(caller.app_name, caller.user_id, arguments.id):
        raise NotFoundError(f"there is no memory {arguments.id!r}; use an id that recall or list returned")
    await engine.access.audit.write(
        actor=caller.name, action="MCP forget", app_name=caller.app_name, target=f"/memory/{arguments.id}"
    )
    return {"forgotten": arguments.id}


async def _list(engine: Engine, caller: McpCaller, arguments: _List) -> JsonObject:
    found = await engine.memory.list(
        caller.app_name, caller.user_id, filters=Filters(), limit=arguments.limit, before=arguments.before
    )
    following = found[-1].id if len(found) == arguments.limit else None
    return {"memories": [_shown(record) for record in found], "next": following}


def _shown(record: MemoryRecord) -> JsonObject:
    return {
        "id": record.id,
        "text": record.text,
        "kind": record.kind,
        "source_id": record.source_id,
        "tags": list(record.tags),
        "created_at": record.created_at.isoformat(),
    }


@dataclass(frozen=True)
class _Tool:
    """A tool: its arguments, the function behind it, and what it does to the memory."""

    title: str
    description: str
    arguments: type[_Arguments]
    function: Callable[[Engine, McpCaller, Any], Awaitable[JsonObject]]
    annotations: ToolAnnotations

    @property
    def schema(self) -> JsonObject:
        return self.arguments.model_json_schema()

    @property
    def writes(self) -> bool:
        return not self.annotations.read_only_hint


_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
TOOLS: dict[str, _Tool] = {
    "remember": _Tool(
        "Remember",
        "Store a text in the durable memory of the user, to be recalled in this or any later conversation.",
        _Remember,
        _remember,
        ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False),
    ),
    "recall": _Tool(
        "Recall", "Find memories of the user by words and by meaning, the best first.", _Recall, _recall, _READS
    ),
    "forget": _Tool(
        "Forget",
        "Delete one memory of the user for good.",
        _Forget,
        _forget,
        ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False),
    ),
    "list": _Tool("List memories", "List the memories of the user, newest first.", _List, _list, _READS),
}


def list_tools(caller: McpCaller) -> list[Tool]:
    """Return the tools that a caller may use."""
    return [
        Tool(
            name=name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.schema,
            annotations=tool.annotations,
        )
        for name, tool in TOOLS.items()
        if caller.may_write or not tool.writes
    ]


async def call_tool(engine: Engine, caller: McpCaller, name: str, given: JsonObject) -> JsonObject:
    """Call a tool; `InvalidInputError` for wrong arguments, `PermissionDeniedError` when the caller may only read."""
    tool = TOOLS[name]
    if tool.writes and not caller.may_write:
        raise PermissionDeniedError(f"{name} needs a key with the permission write")
    try:
        arguments = tool.arguments.model_validate(given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}" for problem in error.errors()
        )
        raise InvalidInputError(f"wrong arguments of {name}: {problems}") from error
    return await tool.function(engine, caller, arguments)


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
