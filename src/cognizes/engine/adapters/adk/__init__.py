"""Google ADK on this engine: swap one line, get a faster and safer session service.

runner = Runner(app_name="shop", agent=root_agent, session_service=OpenSessionService(),
                memory_service=OpenMemoryService())
"""

from cognizes.engine.adapters.adk.memory_service import OpenMemoryService
from cognizes.engine.adapters.adk.registration import register
from cognizes.engine.adapters.adk.session_service import ListedSession, OpenSessionService
from cognizes.engine.adapters.adk.stream_plugin import EngineStreamPlugin

__all__ = ["EngineStreamPlugin", "ListedSession", "OpenMemoryService", "OpenSessionService", "register"]
