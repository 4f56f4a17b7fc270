"""The OpenAI Agents SDK on this engine: `OpenSession` is a session for its `Runner`.

async with OpenSession("conversation-1") as session:
    result = await Runner.run(agent, "Hello", session=session)
"""

from importlib.util import find_spec

if find_spec("agents") is None or find_spec("openai") is None:
    raise ImportError(
        "openai-agents is not installed; get it with `uv sync --extra openai-agents` or "
        "`pip install 'cognizes-engine[openai-agents]'`",
        name="agents",
    )

from cognizes.engine.adapters.openai_agents.session import ConversationTurn, OpenSession, SessionBranch

__all__ = ["ConversationTurn", "OpenSession", "SessionBranch"]
