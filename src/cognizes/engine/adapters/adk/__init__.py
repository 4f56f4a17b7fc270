"""Google ADK on this engine: import `Runner` from here, or pass the services to ADK's own runner.

runner = Runner(app_name="shop", agent=root_agent)
"""

from cognizes.engine.adapters.loading import require_adk

require_adk()

from cognizes.engine.adapters.adk.artifact_service import OpenArtifactService
from cognizes.engine.adapters.adk.memory_service import OpenMemoryService
from cognizes.engine.adapters.adk.runner import Runner, register
from cognizes.engine.adapters.adk.session_service import ListedSession, OpenSessionService
from cognizes.engine.adapters.adk.stream_plugin import EngineStreamPlugin

__all__ = [
    "EngineStreamPlugin",
    "ListedSession",
    "OpenArtifactService",
    "OpenMemoryService",
    "OpenSessionService",
    "Runner",
    "register",
]
