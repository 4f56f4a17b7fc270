"""ADK agents as hosted agents, and the built-in demo."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.util import find_spec
from weakref import WeakKeyDictionary

from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from cognizes.engine.adapters.adk.agent import AdkAgent, HostedSessionService
from cognizes.engine.adapters.adk.demo import ScriptedModel, make_demo_agent
from cognizes.engine.engine import Engine
from cognizes.engine.settings import Settings

_REMOTE_AGENT = "google.adk.agents.remote_a2a_agent"
_services: WeakKeyDictionary[Engine, HostedSessionService] = WeakKeyDictionary()


def host_app(found: App | BaseAgent, *, name: str, engine: Engine) -> AdkAgent:
    """Return an ADK app, or an agent as an app of its name, as a hosted agent.

    Agents of one engine share a session service. The name of an ADK agent is always its own.
    """
    service = _services.get(engine)
    if service is None:
        service = _services[engine] = HostedSessionService(engine)
        _skip_missing_a2a()
    return AdkAgent(found if isinstance(found, App) else _as_app(found), service)


def _skip_missing_a2a() -> None:
    """Let an import fail at once that ADK tries for every run, if the package it needs is not installed.

    Python keeps no record of a failed import: each run would load the module again, for milliseconds.
    """
    if find_spec("a2a") is None:
        sys.modules.setdefault(_REMOTE_AGENT, None)  # type: ignore[arg-type]


def run_demo_once() -> None:
    """Let the demo agent answer once, in memory and on an event loop of its own."""
    asyncio.run(_run_once())


async def _run_once() -> None:
    service = InMemorySessionService()
    app = App(name="warm_up", root_agent=make_demo_agent(ScriptedModel(seconds_a_token=0)))
    runner = Runner(app=app, session_service=service)
    session = await service.create_session(app_name="warm_up", user_id="warm_up")
    async for _ in runner.run_async(
        user_id="warm_up",
        session_id=session.id,
        new_message=types.UserContent("Hello"),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    ):
        pass
    await runner.close()


def make_demo_app(settings: Settings) -> App:
    has_key = bool(os.environ.get("GOOGLE_API_KEY"))
    script = ScriptedModel(seconds_a_token=settings.demo_token_seconds)
    return _as_app(make_demo_agent(settings.demo_model if has_key and settings.demo_model else script))


def _as_app(agent: BaseAgent) -> App:
    return App(name=agent.name, root_agent=agent)
