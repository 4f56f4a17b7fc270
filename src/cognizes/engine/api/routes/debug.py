"""Looking into state: grouped, with history, key by key, and between versions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from cognizes.engine.api.dependencies import LARGEST, CurrentEngine, Limit, ThreadId
from cognizes.engine.api.problems import PROBLEMS
from cognizes.engine.api.responses import DocumentResponse
from cognizes.engine.models import JsonObject

router = APIRouter(prefix="/api/debug/threads/{thread_id}", tags=["debug"], responses=PROBLEMS)

Version = Annotated[int, Query(ge=1, le=LARGEST)]


def _plain(item: JsonObject) -> JsonObject:
    return {**item, "time": item["time"].isoformat()}


@router.get("/state", summary="State by scope, with its history")
async def debug_state(thread_id: ThreadId, engine: CurrentEngine, limit: Limit = 1000) -> Response:
    await engine.manager.sessions.get_thread(thread_id)
    info = asdict(await engine.debug.get_debug_info(thread_id, limit=limit))
    return DocumentResponse({**info, "state_history": [_plain(item) for item in info["state_history"]]})


@router.get("/keys", summary="Every write to one key: who, when, in which run")
async def key_history(thread_id: ThreadId, engine: CurrentEngine, key: str, limit: Limit = 1000) -> Response:
    await engine.manager.sessions.get_thread(thread_id)
    history = await engine.debug.key_history(thread_id, key, limit=limit)
    return DocumentResponse({"key": key, "history": [_plain(item) for item in history]})


@router.get("/diff", summary="What changed between two versions")
async def diff(thread_id: ThreadId, engine: CurrentEngine, from_version: Version, to_version: Version) -> Response:
    return DocumentResponse(asdict(await engine.debug.diff(thread_id, from_version, to_version)))
