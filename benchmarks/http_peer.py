"""The peer of `http_edge.py`: the same routes and models on bare FastAPI, without engine, database or access check."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI

from cognizes.engine.api.views import Appended, NewEvent, NewSession, SessionView

app = FastAPI()

_CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def _session(thread_id: str, app_name: str, user_id: str, state: dict[str, Any]) -> SessionView:
    return SessionView(
        thread_id=thread_id,
        session_id=thread_id,
        app_name=app_name,
        user_id=user_id,
        title=None,
        metadata={},
        state=state,
        version=1,
        last_sequence=0,
        created_at=_CREATED,
        updated_at=_CREATED,
    )


@app.post("/api/sessions", status_code=201)
async def create_session(body: NewSession) -> SessionView:
    return _session("01a1ecef-aea0-7a5c-868a-27232a0a754d", body.app_name, body.user_id, body.state or {})


@app.get("/api/sessions/{thread_id}")
async def get_session(thread_id: str) -> SessionView:
    return _session(thread_id, "shop", "ada", {"cart": ["apple"], "user:name": "Ada", "step": 1})


@app.post("/api/sessions/{thread_id}/events", status_code=201)
async def append_event(thread_id: str, body: NewEvent) -> Appended:
    return Appended(id=body.id or thread_id, sequence_num=1, version=1, created_at=_CREATED)
