"""LangGraph on this engine: checkpoints and the store of long-term memory in PostgreSQL.

async with OpenCheckpointSaver() as checkpointer, OpenStore() as store:
    graph = builder.compile(checkpointer=checkpointer, store=store)
"""

import importlib.util

if importlib.util.find_spec("langgraph") is None:
    raise ImportError(
        "langgraph is not installed; get it with `uv sync --extra langgraph` or "
        "`pip install 'cognizes-engine[langgraph]'`",
        name="langgraph",
    )

from cognizes.engine.adapters.langgraph.checkpoint_saver import OpenCheckpointSaver
from cognizes.engine.adapters.langgraph.store import OpenStore, StoreIndex, user_of_namespace

__all__ = ["OpenCheckpointSaver", "OpenStore", "StoreIndex", "user_of_namespace"]
