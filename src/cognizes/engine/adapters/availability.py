"""Which frameworks are installed. Finding out imports none of them."""

from __future__ import annotations

import importlib.util

HOW_TO_GET_AGENTS = (
    "google-adk is not installed; get it with `uv sync --extra adk` or `pip install 'cognizes-engine[adk]'`"
)


def has_adk() -> bool:
    """Whether google-adk can be imported."""
    try:
        return importlib.util.find_spec("google.adk") is not None
    except ModuleNotFoundError:
        return False


def require_adk() -> None:
    """Raise an `ImportError` with the install command unless google-adk can be imported."""
    if not has_adk():
        raise ImportError(HOW_TO_GET_AGENTS, name="google.adk")
