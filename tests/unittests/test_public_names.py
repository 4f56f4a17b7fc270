"""What users import is a promise."""

import importlib
import re
from pathlib import Path

import pytest

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


_DELIVERABLES = [
    "docs/010-the-pulse.md",
    "src/cognizes/engine/schema/agent_schema.sql",
    "src/cognizes/engine/pulse/state_manager.py",
    "src/cognizes/engine/pulse/pg_notify_listener.py",
    "src/cognizes/engine/pulse/event_bridge.py",
    "src/cognizes/engine/pulse/state_debug.py",
    "src/cognizes/engine/api/main.py",
    "tests/unittests/pulse/test_state_manager.py",
    "tests/unittests/pulse/test_pg_notify_listener.py",
    "tests/unittests/pulse/test_event_bridge.py",
    "tests/unittests/pulse/test_state_debug.py",
    "tests/integration/pulse/test_state_manager_db.py",
    "tests/integration/pulse/test_notify_latency.py",
    "tests/integration/pulse/test_event_bridge_e2e.py",
    "tests/integration/pulse/test_state_debug_db.py",
]


@pytest.mark.parametrize("path", _DELIVERABLES)
def test_the_deliverables_of_seed_000(path: str) -> None:
    """Seed 000 §8: every path exists and has content of its kind."""
    text = (Path(__file__).parents[2] / path).read_text()
    if path.startswith("tests/"):
        assert re.search(r"^ *(async )?def test_", text, re.MULTILINE)
    elif path.endswith(".py"):
        assert importlib.import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
    elif path.endswith(".sql"):
        tables = ("threads", "events", "runs", "messages", "snapshots", "user_states", "app_states")
        assert all(re.search(rf"CREATE TABLE IF NOT EXISTS \S*\b{table} ", text) for table in tables)
        assert all(f"TRIGGER {name}" in text for name in ("notify_event_insert", "update_updated_at"))
    else:
        links = re.findall(r"\]\(([\w-]+\.md)\)", text)
        assert links
        assert all((Path(__file__).parents[2] / "docs" / link).exists() for link in links)
