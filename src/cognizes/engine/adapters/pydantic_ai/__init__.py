"""Pydantic AI on this engine: `OpenConversationStore` stores conversations, `host_agent` serves an agent.

async with OpenConversationStore() as store:
    conversation = await store.load("42") or Conversation(conversation_id="42")
    await store.save(await agent.run("Hello", conversation=conversation))
"""

from importlib.util import find_spec

if find_spec("pydantic_ai") is None:
    raise ImportError(
        "pydantic-ai is not installed; get it with `uv sync --extra pydantic-ai` or "
        "`pip install 'cognizes-engine[pydantic-ai]'`",
        name="pydantic_ai",
    )

from cognizes.engine.adapters.pydantic_ai.conversation_store import OpenConversationStore
from cognizes.engine.adapters.pydantic_ai.hosting import host_agent

__all__ = ["OpenConversationStore", "host_agent"]
