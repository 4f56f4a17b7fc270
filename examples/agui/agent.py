"""An agent of any kind, as an async generator of AG-UI events: `cognizes serve --agent agent:parrot`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

from ag_ui.core import (
    BaseEvent,
    RunAgentInput,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)


async def parrot(run_input: RunAgentInput) -> AsyncIterator[BaseEvent]:
    """Repeat the last message word by word, and count the messages of the thread."""
    said = run_input.messages[-1].content or ""
    message_id = str(uuid4())
    yield TextMessageStartEvent(message_id=message_id, role="assistant")
    for word in str(said).split():
        yield TextMessageContentEvent(message_id=message_id, delta=f"{word} ")
        await asyncio.sleep(0.01)
    yield TextMessageEndEvent(message_id=message_id)
    yield StateSnapshotEvent(snapshot={**run_input.state, "messages": len(run_input.messages)})
