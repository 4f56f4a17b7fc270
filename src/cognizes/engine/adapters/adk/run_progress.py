"""What a run of ADK does, on its row in `runs`: thoughts, tool calls and their results, waits for people."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from google.adk.events.event import Event

from cognizes.engine.adapters.adk.event_codec import to_json
from cognizes.engine.agui.translator import wait_key_of
from cognizes.engine.database.documents import dump_jsonb
from cognizes.engine.engine import Engine
from cognizes.engine.errors import EngineError
from cognizes.engine.models import JsonObject, Run
from cognizes.engine.pulse.fencing import attempt_at
from cognizes.engine.runs.waits import WaitKind

logger = logging.getLogger(__name__)


async def record_progress(engine: Engine, thread_id: UUID, run_id: str, event: Event) -> None:
    """Records what a stored event did. What cannot be recorded is logged: the event itself is safe."""
    if event.partial:
        return
    attempt = attempt_at(thread_id, run_id)
    for kind, entry in _entries(event):
        try:
            progress = thread_id, run_id, kind, dump_jsonb(entry), None, None, attempt
            await engine.runs.until_available(partial(engine.database.fetch_value, "record_run_progress", *progress))
        except EngineError as error:
            logger.warning("the progress of run %s could not be recorded: %s", run_id, error)


async def wait_for_people(engine: Engine, run: Run, questions: Collection[str], *, reason: str | None = None) -> None:
    """Let a run wait for the answers to the questions of its agent."""
    await engine.runs.wait(run, kind=WaitKind.HUMAN, correlation_key=wait_key_of(questions), reason=reason)


async def end_waiting_runs(engine: Engine, thread_id: UUID, handler: str | None, *, is_answered: bool) -> None:
    """End the runs of a thread that wait for people: another run continues with the answers, or without them."""
    for row in await engine.database.fetch("find_waiting_runs", thread_id, handler):
        end = engine.runs.finish if is_answered else engine.runs.cancel
        await end(thread_id, row["id"])


def _entries(event: Event) -> Iterator[tuple[str, JsonObject]]:
    moment = datetime.now(UTC).isoformat()
    for part in (event.content and event.content.parts) or ():
        if part.thought and part.text:
            yield "thought", {"thought": part.text, "at": moment}
        elif call := part.function_call:
            yield "act", {"id": call.id, "tool_name": call.name, "input": to_json(call.args), "at": moment}
        elif response := part.function_response:
            output = {"id": response.id, "output": to_json(response.response), "is_error": False}
            yield "observe", output | {"finished_at": moment}
