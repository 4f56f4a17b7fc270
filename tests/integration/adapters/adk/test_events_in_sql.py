"""SQL recognises events of ADK by their first bytes: those that the encoder writes, and those typed in psql."""

from __future__ import annotations

import asyncpg
import pytest
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.adapters.adk.events import encode_event
from cognizes.engine.database.documents import dump_json

_NAMES = {"app_name": "shop", "user_id": "ada"}
_CALL = types.Content(role="model", parts=[types.Part(function_call=types.FunctionCall(name="f", args={}))])


def stored_text(timestamp: float) -> str:
    event = Event(id="x", author="agent", content=_CALL, timestamp=timestamp)
    return dump_json(encode_event(event, thread_id="t").content)


@pytest.mark.parametrize("timestamp", [0.0, -1.5, 1e-7, 1795035626.8550131, 1e17])
@pytest.mark.parametrize("spacing", ["", " ", "\n\t "])
async def test_the_encoders_text_is_recognised_with_any_spacing(
    database_url: str, timestamp: float, spacing: str
) -> None:
    text = stored_text(timestamp)
    for mark in ('{"adk":', '{"timestamp":'):
        assert mark in text
        text = text.replace(mark, spacing.join(["", "{", mark[1:-1], ":", ""]), 1)
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("SELECT is_conversation('act', false, $1)", text)
        assert await connection.fetchval("SELECT adk_event_time($1, now())", text) == timestamp
        assert not await connection.fetchval("SELECT is_conversation('act', false, $1)", '{"text": "{\\"adk\\":"}')
    finally:
        await connection.close()


async def test_an_event_of_adk_that_was_typed_in_psql_is_read(ours: OpenSessionService, database_url: str) -> None:
    session = await ours.create_session(**_NAMES)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(
            """INSERT INTO events (thread_id, id, author, event_type, content)
               VALUES ((SELECT id FROM threads WHERE session_id = $1), 'typed', 'agent', 'act', $2)""",
            session.id,
            '{ "adk" : { "timestamp" : 12.5 }, "role": "model", "parts": [{"function_call": {"name": "f"}}] }',
        )
    finally:
        await connection.close()
    for config in (None, GetSessionConfig(after_timestamp=12.0)):
        found = await ours.get_session(**_NAMES, session_id=session.id, config=config)
        assert found is not None
        assert [(event.id, event.timestamp) for event in found.events] == [("typed", 12.5)]
