"""ADK agents by name: `my_package.agent:root_agent`, or the built-in `demo`."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Sequence

from google.adk.agents._streaming_mode import StreamingMode
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps.app import App
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from cognizes.engine.adapters.adk.agent import AdkAgent, HostedSessionService
from cognizes.engine.adapters.adk.demo import DEMO, ScriptedModel, make_demo_agent
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings


def load_adk_agents(paths: Sequence[str], engine: Engine) -> list[AdkAgent]:
    """Return hosted agents, in the order of their paths; without a path, the demo."""
    service = HostedSessionService(engine)
    return [AdkAgent(app, service) for app in load_apps(paths, engine.settings)]


def load_apps(paths: Sequence[str], settings: Settings) -> list[App]:
    """Return ADK apps with distinct names; `SetupError` when a path names none."""
    apps: dict[str, App] = {}
    for path in paths or [DEMO]:
        app = _load_demo(settings) if path == DEMO else _load(path)
        if app.name in apps:
            raise SetupError(f"two agents are called {app.name!r}; rename one of them")
        apps[app.name] = app
    return list(apps.values())


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


def _load_demo(settings: Settings) -> App:
    has_key = bool(os.environ.get("GOOGLE_API_KEY"))
    script = ScriptedModel(seconds_a_token=settings.demo_token_seconds)
    return _as_app(make_demo_agent(settings.demo_model if has_key and settings.demo_model else script))


def _load(path: str) -> App:
    module_name, _, attribute = path.partition(":")
    # An installed command does not search the current directory for modules.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module_name), attribute or "root_agent")
    except (ImportError, AttributeError, ValueError) as error:
        raise SetupError(f"the agent {path!r} cannot be loaded: {error}; write it as package.module:agent") from error
    if isinstance(found, App):
        return found
    if isinstance(found, BaseAgent):
        return _as_app(found)
    raise SetupError(f"{path!r} is a {type(found).__name__}; it must be an ADK agent or App")


def _as_app(agent: BaseAgent) -> App:
    return App(name=agent.name, root_agent=agent)
