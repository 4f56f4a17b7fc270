"""The memory tools: remember, recall, forget and list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from mcp.types import Tool, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError, NotFoundError, PermissionDeniedError
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.ingest import Remembered
from cognizes.engine.memory.records import MemoryRecord, MemoryScope
from cognizes.engine.models import MAX_QUERY_LENGTH, JsonObject, new_id

_MAX_TEXT = 100_000
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
