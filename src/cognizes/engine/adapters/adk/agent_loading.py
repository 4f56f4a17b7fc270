"""Agents by name: `my_package.agent:root_agent`, or the built-in `demo`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from google.adk.agents.base_agent import BaseAgent
from google.adk.apps.app import App

from cognizes.engine.adapters.adk.demo import DEMO, ScriptedModel, make_demo_agent
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings


def load_agents(paths: Sequence[str], settings: Settings) -> dict[str, App]:
    """ADK apps by their agents' names, in the order given; without any path, the demo."""
    apps: dict[str, App] = {}
    for path in paths or [DEMO]:
        app = _load_demo(settings) if path == DEMO else _load(path)
        if app.name in apps:
            raise SetupError(f"two agents are called {app.name!r}; rename one of them")
        apps[app.name] = app
    return apps


def _load_demo(settings: Settings) -> App:
    has_key = bool(os.environ.get("GOOGLE_API_KEY"))
    script = ScriptedModel(seconds_a_token=settings.demo_token_seconds)
    return _as_app(make_demo_agent(settings.demo_model if has_key and settings.demo_model else script))


def _load(path: str) -> App:
    module_name, _, attribute = path.partition(":")
    # An installed command does not look for modules where it is started; people expect it to.
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
