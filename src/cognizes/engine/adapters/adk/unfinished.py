"""Answers that broke off: what of them was streamed is kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from google.adk.events.event import Event
from google.genai import types

from cognizes.engine.adapters.adk.event_codec import encode_event
from cognizes.engine.agui.translator import UnfinishedTurn
from cognizes.engine.engine import Engine
from cognizes.engine.errors import AlreadyExistsError, DuplicateEventError


async def store_unfinished(
    engine: Engine, thread_id: UUID, turns: Sequence[UnfinishedTurn], *, run_id: str, invocation_id: str = ""
) -> None:
    """Stores the beginnings of messages as messages of ADK that say they were interrupted, under their streamed ids."""
    for turn in turns:
        event = Event(
            id=turn.id,
            author=turn.author,
            branch=turn.branch or None,
            invocation_id=invocation_id,
            interrupted=True,
            content=types.Content(role="model", parts=[types.Part(text=turn.text)]),
        )
        # One that was cut off while its whole was being stored is there already.
        with suppress(AlreadyExistsError, DuplicateEventError):
            await engine.manager.append_to_thread(
                thread_id, encode_event(event, thread_id=str(thread_id), run_id=run_id), expected_version=None
            )
