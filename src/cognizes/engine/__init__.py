"""Cognizes Engine: the durable heartbeat of AI agents, on nothing but PostgreSQL."""

from cognizes.engine.engine import Engine
from cognizes.engine.errors import (
    AccessError,
    AlreadyExistsError,
    AuthenticationError,
    ConcurrencyConflictError,
    ConflictError,
    DatabaseError,
    DatabaseUnavailableError,
    DuplicateEventError,
    EngineError,
    IllegalTransitionError,
    InvalidInputError,
    LimitExceededError,
    MigrationError,
    NotFoundError,
    PermissionDeniedError,
    PoolTimeoutError,
    SetupError,
    TooManyRequestsError,
)
from cognizes.engine.models import DELETE, Event, Message, Page, PastState, Run, RunStatus, Session
from cognizes.engine.settings import Settings
from cognizes.engine.version import __version__

__all__ = [
    "DELETE",
    "AccessError",
    "AlreadyExistsError",
    "AuthenticationError",
    "ConcurrencyConflictError",
    "ConflictError",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DuplicateEventError",
    "Engine",
    "EngineError",
    "Event",
    "IllegalTransitionError",
    "InvalidInputError",
    "LimitExceededError",
    "Message",
    "MigrationError",
    "NotFoundError",
    "Page",
    "PastState",
    "PermissionDeniedError",
    "PoolTimeoutError",
    "Run",
    "RunStatus",
    "Session",
    "Settings",
    "SetupError",
    "TooManyRequestsError",
    "__version__",
]
