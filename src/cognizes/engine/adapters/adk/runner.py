"""Runner: ADK's runner with this engine's services; `register` lets `adk web` and `adk api_server` use them by URI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.apps.app import App
from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.cli.service_registry import get_service_registry
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner as AdkRunner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.workflow import BaseNode

from cognizes.engine.adapters.adk.artifact_service import OpenArtifactService
from cognizes.engine.adapters.adk.memory_service import OpenMemoryService
from cognizes.engine.adapters.adk.session_service import OpenSessionService
from cognizes.engine.adapters.adk.stream_plugin import EngineStreamPlugin
from cognizes.engine.adapters.engines import SCHEME


class Runner(AdkRunner):
    """ADK's `Runner` that stores sessions, memories and artifacts in the engine and records every invocation as a run.

    It takes the arguments of ADK's `Runner` and, unlike it, creates a session that does not exist yet. `database_url`
    selects the server; without it the settings do, and by default the server is embedded. Services that are passed in
    are used instead of the engine's and stay open; `close` closes those that the runner created.

    runner = Runner(app_name="shop", agent=root_agent)
    """

    def __init__(
        self,
        *,
        app: App | None = None,
        app_name: str | None = None,
        agent: BaseAgent | None = None,
        node: BaseNode | None = None,
        plugins: Sequence[BasePlugin] = (),
        database_url: str | None = None,
        session_service: BaseSessionService | None = None,
        memory_service: BaseMemoryService | None = None,
        artifact_service: BaseArtifactService | None = None,
        auto_create_session: bool = True,
        **arguments: Any,
    ) -> None:
        self._own_services: list[OpenSessionService | OpenMemoryService | OpenArtifactService] = []
        if session_service is None:
            session_service = OpenSessionService(database_url)
            self._own_services.append(session_service)
        if memory_service is None:
            memory_service = OpenMemoryService(database_url)
            self._own_services.append(memory_service)
        if artifact_service is None:
            artifact_service = OpenArtifactService(database_url)
            self._own_services.append(artifact_service)
        super().__init__(
            app=_recorded_app(app, app_name, agent, node, plugins),
            app_name=app_name,
            session_service=session_service,
            memory_service=memory_service,
            artifact_service=artifact_service,
            auto_create_session=auto_create_session,
            **arguments,
        )

    async def close(self) -> None:
        """Close toolsets and plugins, then the services that this runner created."""
        try:
            await super().close()
        finally:
            for service in self._own_services:
                await service.close()


def _recorded_app(
    app: App | None,
    app_name: str | None,
    agent: BaseAgent | None,
    node: BaseNode | None,
    plugins: Sequence[BasePlugin],
) -> App:
    if sum(given is not None for given in (app, agent, node)) != 1:
        raise ValueError("pass exactly one of app, agent and node to Runner()")
    if app is None:
        if agent is not None and not app_name:
            raise ValueError("app_name is required with agent")
        root = agent if agent is not None else node
        # Without validation, as ADK's own runner does: an app name here is any text.
        app = App.model_construct(name=app_name or (node.name if node else ""), root_agent=root, plugins=[])
    together = [*app.plugins, *plugins]
    if not any(isinstance(plugin, EngineStreamPlugin) for plugin in together):
        together.append(EngineStreamPlugin())
    return app.model_copy(update={"plugins": together})


def register() -> None:
    """Register the scheme `cognizes` with ADK. Call it in the `services.py` next to your agents."""
    get_service_registry().register_session_service(SCHEME, _make_session_service)
    get_service_registry().register_memory_service(SCHEME, _make_memory_service)
    get_service_registry().register_artifact_service(SCHEME, _make_artifact_service)


def _make_memory_service(uri: str, **options: Any) -> OpenMemoryService:
    return OpenMemoryService(uri, **options)


def _make_artifact_service(uri: str, **options: Any) -> OpenArtifactService:
    return OpenArtifactService(uri, **options)


def _make_session_service(uri: str, **options: Any) -> OpenSessionService:
    return OpenSessionService(uri, **options)
