"""LangGraph on this engine: checkpoints in PostgreSQL.

async with OpenCheckpointSaver() as checkpointer:
    graph = builder.compile(checkpointer=checkpointer)
"""

import importlib.util

if importlib.util.find_spec("langgraph") is None:
    raise ImportError(
        "langgraph is not installed; get it with `uv sync --extra langgraph` or "
        "`pip install 'cognizes-engine[langgraph]'`",
        name="langgraph",
    )

from cognizes.engine.adapters.langgraph.checkpoint_saver import OpenCheckpointSaver

__all__ = ["OpenCheckpointSaver"]
