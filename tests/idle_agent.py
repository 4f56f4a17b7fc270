"""An agent without a framework: servers of tests that run no agent start without importing ADK for the demo."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ag_ui.core import BaseEvent, RunAgentInput

IDLE_AGENT = "tests.idle_agent:idle"


async def idle(input: RunAgentInput) -> AsyncIterator[BaseEvent]:  # noqa: A002 - the name of the protocol
    for event in ():
        yield event
