"""Stopping what goes on in a context, wherever it goes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from cognizes.engine.engine import Engine
from cognizes.engine.errors import ConflictError, NotFoundError
from cognizes.engine.models import Event
from cognizes.engine.sync.context_state import ContextState, check_transition

if TYPE_CHECKING:
    from cognizes.engine.adapters.adk.hosting import AgentHost

logger = logging.getLogger(__name__)


async def cancel(engine: Engine, thread_id: UUID, host: AgentHost | None) -> list[str]:
    """Stops the runs of a context, those of hosted agents by their host, and its streamed messages.

    Returns the runs that ended. `IllegalTransitionError` when nothing goes on.
    """
    context = await engine.contexts.metadata(thread_id)
    check_transition(context.current_state, ContextState.CANCELLING)
    await _append(engine, thread_id, "cancel_requested")
    active = [row["id"] for row in await engine.database.fetch("list_active_runs", thread_id)]
    if host is not None and context.app_name in host.descriptions:
        await host.cancel(context.app_name, context.user_id, context.session_id)
    for run_id in active:
        try:
            await engine.runs.cancel(thread_id, run_id)
        except (ConflictError, NotFoundError) as error:
            logger.debug("run %s had ended already: %s", run_id, error)
    for head in await engine.streams.heads([thread_id]):
        try:
            await engine.streams.abort(thread_id, head.message_id)
        except (ConflictError, NotFoundError) as error:
            # A process writes it: it ends with the run that was cancelled.
            logger.debug("message %s is not ours to end: %s", head.message_id, error)
    if await engine.contexts.state(thread_id) is ContextState.CANCELLING:
        await _append(engine, thread_id, "cancelled")
    return active


async def _append(engine: Engine, thread_id: UUID, kind: str) -> None:
    event = Event(id="", thread_id=str(thread_id), invocation_id="", author="user", event_type=kind)
    await engine.manager.append_to_thread(thread_id, event)
