"""A run for nobody, so that the first real one does not hold up the server.

ADK imports hundreds of modules when an agent runs for the first time; done by the event loop, that stops everything for
seconds.
"""

from __future__ import annotations

import asyncio

from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from cognizes.engine.adapters.adk.demo import ScriptedModel, make_demo_agent


def rehearse() -> None:
    """Lets the demo agent answer once, in memory. For a thread: it has an event loop of its own."""
    asyncio.run(_run_once())


async def _run_once() -> None:
    service = InMemorySessionService()
    app = App(name="rehearsal", root_agent=make_demo_agent(ScriptedModel(seconds_a_token=0)))
    runner = Runner(app=app, session_service=service)
    session = await service.create_session(app_name="rehearsal", user_id="nobody")
    async for _ in runner.run_async(
        user_id="nobody",
        session_id=session.id,
        new_message=types.UserContent("Hello"),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    ):
        pass
    await runner.close()
