"""What users import is a promise."""

import cognizes.engine

EXPORTED = [
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
    "EngineClosedError",
    "EngineError",
    "Event",
    "IllegalTransitionError",
    "InvalidInputError",
    "LeaseLostError",
    "LimitExceededError",
    "Message",
    "MigrationError",
    "NotFoundError",
    "Page",
    "PastState",
    "PermissionDeniedError",
    "PoolTimeoutError",
    "Run",
    "RunFailedError",
    "RunStatus",
    "Session",
    "Settings",
    "SetupError",
    "StreamUnavailableError",
    "TooManyRequestsError",
    "StepInterruptedError",
    "WaitExpiredError",
    "__version__",
]


def test_exported_names() -> None:
    assert sorted(cognizes.engine.__all__) == sorted(EXPORTED)
    assert all(hasattr(cognizes.engine, name) for name in EXPORTED)


def test_the_paths_of_seed_000() -> None:
    from cognizes.engine.api.main import app
    from cognizes.engine.pulse.event_bridge import AgUiEvent, AgUiEventType, PulseEventBridge
    from cognizes.engine.pulse.pg_notify_listener import NotifyEvent, PgNotifyListener
    from cognizes.engine.pulse.state_debug import StateDebugInfo, StateDebugService
    from cognizes.engine.pulse.state_manager import ConcurrencyConflictError, Event, Session, StateManager

    assert ConcurrencyConflictError is cognizes.engine.ConcurrencyConflictError
    assert all((AgUiEvent, AgUiEventType, PulseEventBridge))
    assert all((app, NotifyEvent, PgNotifyListener, StateDebugInfo, StateDebugService, Event, Session, StateManager))
