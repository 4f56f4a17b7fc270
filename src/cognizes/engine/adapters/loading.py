"""Loads agents by name. Google ADK is an extra, and importing it takes seconds: this module imports it on demand."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence

from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.hosting import HostedAgent

logger = logging.getLogger(__name__)

HOW_TO_GET_AGENTS = (
    "google-adk is not installed; get it with `uv sync --extra adk` or `pip install 'cognizes-engine[adk]'`"
)


def has_adk() -> bool:
    """Return whether google-adk can be imported, without importing it."""
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


def require_adk() -> None:
    """Raise an `ImportError` with the install command unless google-adk can be imported."""
    if not has_adk():
        raise ImportError(HOW_TO_GET_AGENTS, name="google.adk")


def load_agents(paths: Sequence[str], engine: Engine) -> list[HostedAgent]:
    """Return the agents of these paths, in order; without a path the demo, or no agent without google-adk.

    It imports frameworks: call it in a thread.
    """
    if not has_adk():
        if paths:
            raise SetupError(f"cannot serve {', '.join(paths)}: {HOW_TO_GET_AGENTS}")
        return []
    from cognizes.engine.adapters.adk.loading import load_adk_agents  # noqa: PLC0415

    return [*load_adk_agents(paths, engine)]


def warm_up() -> None:
    """Run an agent once in memory: the first run imports hundreds of modules. Call it in a thread."""
    from cognizes.engine.adapters.adk.loading import run_demo_once  # noqa: PLC0415

    try:
        run_demo_once()
    except Exception as error:
        # Only the first run is slower to start.
        logger.warning("the warm-up of agents failed", exc_info=error)
