"""What routes ask for."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Depends, Query
from starlette.requests import HTTPConnection

from cognizes.engine.api.authorization import Caller, CurrentAuthorizer
from cognizes.engine.api.sse import HeartbeatWheel
from cognizes.engine.engine import Engine
from cognizes.engine.pulse.session_store import thread_uuid

LARGEST = 2**62


async def _engine(connection: HTTPConnection) -> Engine:
    engine: Engine = connection.app.state.engine
    return engine


async def _thread(thread_id: str) -> UUID:
    return thread_uuid(thread_id)


async def _context(context_id: str, authorizer: CurrentAuthorizer, caller: Caller) -> UUID:
    return await authorizer.find_context(caller, context_id)


async def _wheel(connection: HTTPConnection) -> HeartbeatWheel:
    wheel: HeartbeatWheel = connection.app.state.wheel
    return wheel


Wheel = Annotated[HeartbeatWheel, Depends(_wheel)]
CurrentEngine = Annotated[Engine, Depends(_engine)]
ThreadId = Annotated[UUID, Depends(_thread)]
ContextId = Annotated[UUID, Depends(_context)]
"""A thread by its id, or by its session id where that is unique among what the caller may see; 404 before anything
else happens."""
Limit = Annotated[int, Query(ge=1, le=10_000)]
Sequence = Annotated[int, Query(ge=0, le=LARGEST)]
OptionalSequence = Annotated[int | None, Query(ge=0, le=LARGEST)]
