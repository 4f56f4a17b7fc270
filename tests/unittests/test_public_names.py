"""The names that users import."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cognizes.client
import cognizes.engine
from cognizes.engine import errors

EXPORTED = [
    "AccessError",
    "AlreadyExistsError",
    "Artifact",
    "ArtifactScope",
    "ArtifactStoreError",
    "AuthenticationError",
    "ConcurrencyConflictError",
    "ConflictError",
    "DELETE",
    "DatabaseError",
    "DatabaseUnavailableError",
    "DuplicateEventError",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "Event",
    "FeedRewoundError",
    "HistoryExpiredError",
    "IllegalTransitionError",
    "InvalidInputError",
    "LeaseLostError",
    "IllegalFrameError",
    "LimitExceededError",
    "MemoryScope",
    "Message",
    "MessageWriter",
    "MigrationError",
    "ModelTotals",
    "NotFoundError",
    "OpenInterruptsError",
    "Page",
    "PastState",
    "PermissionDeniedError",
    "PoolTimeoutError",
    "Run",
    "RunFailedError",
    "RunStatus",
    "RunWait",
    "Session",
    "Settings",
    "SetupError",
    "StatementTimeoutError",
    "StepInterruptedError",
    "StreamUnavailableError",
    "TokenUsage",
    "TooManyRequestsError",
    "UnreadableCheckpointError",
    "UsageTotals",
    "UnreadableConversationError",
    "WaitExpiredError",
    "WaitKind",
    "Worker",
    "__version__",
]


def test_exported_names() -> None:
    assert sorted(cognizes.engine.__all__) == sorted(EXPORTED)
    assert all(hasattr(cognizes.engine, name) for name in EXPORTED)


OF_AN_ENGINE = [
    "access",
    "approvals",
    "archive",
    "artifacts",
    "attachments",
    "branches",
    "close",
    "consolidations",
    "contexts",
    "feed",
    "live",
    "memory",
    "migrate",
    "open",
    "queues",
    "runs",
    "schedules",
    "sessions",
    "settings",
    "signals",
    "start",
    "stream_message",
    "streams",
    "timeline",
    "usage",
    "user_data",
    "webhooks",
]


async def test_the_names_of_an_engine(engine: cognizes.engine.Engine) -> None:
    assert [name for name in dir(engine) if not name.startswith("_")] == OF_AN_ENGINE


PACKAGES = {
    "access": ["ANONYMOUS", "ApiKey", "ApiKeys", "Authenticator", "Permission", "Principal"],
    "adapters.adk": [
        "EngineStreamPlugin",
        "ListedSession",
        "OpenArtifactService",
        "OpenMemoryService",
        "OpenSessionService",
        "Runner",
        "register",
    ],
    "adapters.agui": ["AguiAgent", "RunFunction", "source_of"],
    "adapters.langgraph": ["OpenCheckpointSaver", "OpenStore", "StoreIndex", "user_of_namespace"],
    "adapters.mcp": ["McpCaller", "McpServer"],
    "adapters.openai_agents": ["ConversationTurn", "OpenSession", "SessionBranch"],
    "adapters.pydantic_ai": ["OpenConversationStore", "host_agent"],
    "agui": ["AgUiEvent", "AgUiEventType", "FrameEncoder", "Profile", "PulseEventBridge", "Translator"],
    "archive": ["ImportedThreads", "ThreadArchive", "UserData"],
    "artifacts": ["Artifact", "ArtifactScope", "Artifacts", "Attachment", "Attachments"],
    "cli": ["app", "main"],
    "database": ["Database", "EmbeddedPostgres"],
    "feed": ["Chunks", "Feed", "FeedItem", "Notification", "StreamEnd", "StreamView"],
    "hosting": [
        "AgentCapabilities",
        "AgentHost",
        "HostedAgent",
        "HostedRun",
        "PredictedState",
        "RunContext",
        "ServedAgent",
        "Turn",
    ],
    "memory": [
        "ChatModel",
        "Consolidated",
        "ContextItem",
        "EpisodeDraft",
        "EpisodicEntry",
        "EpisodicMemoryStore",
        "EventSource",
        "Extraction",
        "Extractor",
        "FactDraft",
        "FactVersion",
        "Filters",
        "GeminiChat",
        "Hit",
        "LanguageModelExtractor",
        "LongTermEntry",
        "LongTermKey",
        "LongTermMemoryStore",
        "Memory",
        "MemoryContext",
        "MemoryPage",
        "MemoryRecord",
        "MemoryScope",
        "MemorySnapshot",
        "MemorySnapshots",
        "MessageHit",
        "OpenAiChat",
        "Range",
        "Remembered",
        "RuleExtractor",
        "TranscriptTurn",
        "WorkingMemory",
        "WorkingMemoryStore",
        "estimate_tokens",
    ],
    "memory.embedders": ["Embedder", "choose_embedder"],
    "pulse": ["Overlay", "Sessions", "StateManager"],
    "runs": [
        "CLIENT_LEASE",
        "CatchUp",
        "Consolidations",
        "Firing",
        "HandledRun",
        "Handler",
        "InProcessRun",
        "Queue",
        "Queues",
        "Resumption",
        "RunContext",
        "RunMemory",
        "RunSuspended",
        "Runs",
        "Schedule",
        "Schedules",
        "SignalOutcome",
        "Step",
        "WaitKind",
        "Worker",
        "WriteMessage",
    ],
    "streams": ["Chunk", "ChunkPage", "MessageStreams", "MessageWriter", "StreamHead", "StreamStatus"],
    "sync": [
        "Branch",
        "Branches",
        "ContextMessage",
        "ContextMetadata",
        "ContextState",
        "Contexts",
        "FoundMessages",
        "LlmContext",
        "MessagesPage",
        "Signal",
        "SignalSubscription",
        "SignalType",
        "Signals",
        "ToolApproval",
        "ToolApprovals",
    ],
    "timeline": ["EventKind", "KINDS", "Timeline", "TimelinePage"],
    "webhooks": ["DeadLetter", "Webhook", "Webhooks"],
}


def test_the_names_of_each_package() -> None:
    found = {}
    for module in pkgutil.walk_packages(cognizes.engine.__path__, "cognizes.engine."):
        names = vars(importlib.import_module(module.name)).get("__all__") if module.ispkg else None
        if names is not None:
            found[module.name.removeprefix("cognizes.engine.")] = sorted(names)
    assert found == PACKAGES
    for package, exported in PACKAGES.items():
        of_package = importlib.import_module(f"cognizes.engine.{package}")
        assert [name for name in exported if not hasattr(of_package, name)] == []


CLIENT = [
    "Agent",
    "Agents",
    "ApiError",
    "Appended",
    "Approval",
    "Attachment",
    "AttachmentPage",
    "AuthenticationError",
    "Branch",
    "Caller",
    "Client",
    "ClientError",
    "ConflictError",
    "Connection",
    "ContextCopy",
    "ContextItem",
    "DELETE",
    "Event",
    "EventPage",
    "Fact",
    "FactSource",
    "FactVersion",
    "FeedRewoundError",
    "HistoryExpiredError",
    "Hit",
    "InvalidAnswerError",
    "InvalidInputError",
    "Memories",
    "Memory",
    "MemoryPage",
    "Message",
    "MessageCopy",
    "MessageEnded",
    "MessageHit",
    "MessagePage",
    "MessageStarted",
    "ModelUsage",
    "NotFoundError",
    "OtherEvent",
    "PermissionDeniedError",
    "PromptContext",
    "Run",
    "RunDetail",
    "RunEnded",
    "RunEvent",
    "RunPage",
    "RunStarted",
    "RunWaiting",
    "Runs",
    "Schedule",
    "SchedulePage",
    "Schedules",
    "ServerError",
    "ServerUnavailableError",
    "Session",
    "SessionPage",
    "Sessions",
    "SignalPullClient",
    "Signalled",
    "State",
    "StateChanged",
    "Step",
    "TextDelta",
    "TimelinePage",
    "TooLargeError",
    "TooManyRequestsError",
    "ToolCalled",
    "ToolReturned",
    "Usage",
    "Wait",
]


def test_the_names_of_the_client() -> None:
    assert sorted(cognizes.client.__all__) == CLIENT
    assert [name for name in CLIENT if not hasattr(cognizes.client, name)] == []


def test_every_error_is_exported() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert defined <= set(EXPORTED)


def test_the_import_loads_no_web_framework_and_no_adapter() -> None:
    heavy = "{'fastapi', 'starlette', 'uvicorn', 'google.adk', 'langgraph', 'typer', 'redis', 'numpy'}"
    script = f"import sys, cognizes.engine; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


_CLASSES_OF_SEED_000 = {
    "api.main": ["FastAPI"],
    "pulse.event_bridge": ["AgUiEvent", "AgUiEventType", "PulseEventBridge"],
    "pulse.pg_notify_listener": ["NotifyEvent", "PgNotifyListener"],
    "pulse.state_debug": ["StateDebugInfo", "StateDebugService"],
    "pulse.state_manager": ["ConcurrencyConflictError", "Event", "Session", "StateManager"],
}


@pytest.mark.parametrize(("module", "names"), _CLASSES_OF_SEED_000.items())
def test_the_paths_of_seed_000(module: str, names: list[str]) -> None:
    found = vars(importlib.import_module(f"cognizes.engine.{module}"))
    assert [name for name in names if not inspect.isclass(found.get(name))] == []
    for name in set(names) & set(EXPORTED):
        assert found[name] is getattr(cognizes.engine, name)
    if module == "api.main":
        assert isinstance(found["app"], found["FastAPI"])


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
        module = importlib.import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
        assert Path(str(module.__file__)) == Path(__file__).parents[2] / path
    elif path.endswith(".sql"):
        tables = ("threads", "events", "runs", "messages", "snapshots", "user_states", "app_states")
        assert all(re.search(rf"CREATE TABLE IF NOT EXISTS \S*\b{table} ", text) for table in tables)
        assert all(f"TRIGGER {name}" in text for name in ("notify_event_insert", "update_updated_at"))
    else:
        links = re.findall(r"\]\(([\w-]+\.md)\)", text)
        assert links
        assert all((Path(__file__).parents[2] / "docs" / link).exists() for link in links)
