"""Makes `adk web` and `adk api_server` understand `cognizes://` URIs."""

from __future__ import annotations

from typing import Any

from google.adk.cli.service_registry import get_service_registry

from cognizes.engine.adapters.adk.memory_service import OpenMemoryService
from cognizes.engine.adapters.adk.service_uri import SCHEME
from cognizes.engine.adapters.adk.session_service import OpenSessionService


def register() -> None:
    """Registers the scheme with ADK. Call it in the `services.py` beside your agents."""
    get_service_registry().register_session_service(SCHEME, _make_session_service)
    get_service_registry().register_memory_service(SCHEME, _make_memory_service)


def _make_memory_service(uri: str, **options: Any) -> OpenMemoryService:
    return OpenMemoryService(uri, **options)


def _make_session_service(uri: str, **options: Any) -> OpenSessionService:
    return OpenSessionService(uri, **options)
