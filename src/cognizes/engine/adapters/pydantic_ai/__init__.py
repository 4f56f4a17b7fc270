"""Pydantic AI on this engine: `host_agent` serves an agent whose runs belong to the server."""

from importlib.util import find_spec

if find_spec("pydantic_ai") is None:
    raise ImportError(
        "pydantic-ai is not installed; get it with `uv sync --extra pydantic-ai` or "
        "`pip install 'cognizes-engine[pydantic-ai]'`",
        name="pydantic_ai",
    )

from cognizes.engine.adapters.pydantic_ai.hosting import host_agent

__all__ = ["host_agent"]
