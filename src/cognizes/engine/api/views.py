"""The models of request and response bodies that several routes share, and their JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cognizes.engine.models import MAX_TEXT_LENGTH, Event, JsonObject, Message, Run, RunWait, Session
from cognizes.engine.runs import CLIENT_LEASE, Resumption, Step
from cognizes.engine.runs.queues import MAX_PRIORITY

Content = Annotated[str, StringConstraints(max_length=2**30)]
"""A text that is stored as content: the settings limit its bytes."""
_TEXT = {"type": "string", "maxLength": 2**30}
_PART = {
    "type": "object",
    "properties": {
        "text": _TEXT,
        "thought": {"type": "boolean", "description": "The text is a thought of the model."},
        "function_call": {"type": "object", "description": "`{id, name, args}` of a tool call."},
        "function_response": {"type": "object", "description": "`{id, name, response}` of a tool."},
    },
    "additionalProperties": True,
}
_OPTIONAL_CONTENT = {
    "role": {**_TEXT, "description": "`user`, `assistant`, `system` or `tool`; else the author decides."},
    "message_id": {**_TEXT, "description": "The message that the event completes."},
}
EventContent = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "description": "A text, a list of parts, or what another kind of event holds. Unknown keys are stored.",
            "anyOf": [
                {
                    "title": "TextContent",
                    "type": "object",
                    "required": ["text"],
                    "properties": {"text": _TEXT, **_OPTIONAL_CONTENT},
                    "additionalProperties": True,
                },
                {
                    "title": "PartsContent",
                    "type": "object",
                    "required": ["parts"],
                    "properties": {"parts": {"type": "array", "items": _PART}, **_OPTIONAL_CONTENT},
                    "additionalProperties": True,
                },
                {"title": "OtherContent", "type": "object", "additionalProperties": True},
            ],
        }
    ),
]
"""The content of an event. The schema documents it; what is stored is what was sent, whatever it holds."""
EventActions = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "title": "EventActions",
            "type": "object",
            "properties": {
                "state_delta": {
                    "type": "object",
                    "additionalProperties": True,
                    "description": 'Keys to set, with the prefix of their scope; `{"$delete": true}` deletes a key.',
                }
            },
            "additionalProperties": True,
            "description": "What an event does. Unknown keys are stored.",
        }
    ),
]


class Body(BaseModel):
    """A request body: unknown fields are refused, and every text has a limit."""

    model_config = ConfigDict(extra="forbid", str_max_length=MAX_TEXT_LENGTH)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the common limit to the schema, which pydantic leaves out."""
        document = handler(schema)
        for field in handler.resolve_ref_schema(document).get("properties", {}).values():
            for text in (field, field.get("items", {}), *field.get("anyOf", ())):
                if text.get("type") == "string" and not text.keys() & {"enum", "const", "format"}:
                    text.setdefault("maxLength", MAX_TEXT_LENGTH)
        return document


class NewSession(Body):
    """A session to create."""

    app_name: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    session_id: str | None = None
    state: dict[str, Any] | None = None
    title: str | None = None
    metadata: dict[str, Any] | None = None


class SessionChange(Body):
    """A new title (empty removes it) and metadata to merge."""

    title: str | None = None
    metadata: dict[str, Any] | None = None


class Fork(Body):
    """The event after which to fork; by default the newest."""

    at_sequence: int | None = Field(default=None, ge=0, le=2**62)
    session_id: str | None = None


class NewEvent(Body):
    """An event to append. `actions.state_delta` changes state; `{"$delete": true}` as a value deletes the key."""

    id: str | None = None
    author: str
    event_type: str = Field(min_length=1)
    content: EventContent = Field(default_factory=dict)
    actions: EventActions = Field(default_factory=dict)
    invocation_id: str | None = None
    run_id: str | None = None
    expected_version: int | None = Field(default=None, ge=0, le=2**62)


class StateChange(Body):
    """Keys to set, with their scope's prefix. Without an `author` the change is stored as the caller's."""

    delta: dict[str, Any]
    expected_version: int | None = Field(default=None, ge=0, le=2**62)
    author: str | None = None


class NewLease(Body):
    """How long a client may execute a run without a heartbeat or progress of the run; then the run is released."""

    lease_seconds: float = Field(default=CLIENT_LEASE.total_seconds(), ge=1, le=30 * 86_400)


class NewRun(NewLease):
    """A run, under an id of the caller's or a new one. With a `handler` it is pending, for the workers that have the
    handler, from `available_at` on. Without one the caller executes it: `start` makes it running at once, with a lease
    of `lease_seconds`."""

    run_id: str | None = None
    start: bool = True
    handler: str | None = None
    input: Any = None
    max_attempts: int | None = Field(default=None, ge=1, le=1_000_000)
    available_at: AwareDatetime | None = None
    queue: str | None = None
    priority: int = Field(default=0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)


class LongTermKeyView(Body):
    """The name of a long-term memory."""

    namespace: str = ""
    key: str = Field(min_length=1)


class NewWait(Body):
    """What a running run waits for, and what it wants back. A memory snapshot of the session is stored with it;
    `long_term_keys` are the long-term keys that the run has used."""

    kind: Literal["webhook", "human", "timer", "signal", "message"]
    correlation_key: str = Field(min_length=1)
    reason: str | None = None
    expires_at: AwareDatetime | None = None
    timeout_node: str | None = None
    cursor_node: str | None = None
    plan_decision_id: str | None = None
    payload_results: dict[str, Any] = Field(default_factory=dict)
    long_term_keys: list[LongTermKeyView] = Field(default_factory=list, max_length=1000)


class NewSignal(Body):
    """A signal for a waiting run."""

    correlation_key: str = Field(min_length=1)
    payload: Any = None


class Signalled(BaseModel):
    """The result of a signal: `resumed`, `kept` for a later wait, or `duplicate` of an earlier one."""

    outcome: str
    run: RunView


class Failure(Body):
    """Why a run failed."""

    error: Content


class Thought(Body):
    """A thinking step."""

    thought: Content


class ToolCall(Body):
    """A tool call."""

    tool_name: str
    input: Any = None


class ToolResult(Body):
    """The result of a tool."""

    output: Any = None
    is_error: bool = False


class SessionView(BaseModel):
    """A session."""

    thread_id: str
    session_id: str
    app_name: str
    user_id: str
    title: str | None
    metadata: dict[str, Any]
    state: dict[str, Any]
    version: int
    last_sequence: int
    created_at: datetime
    updated_at: datetime


class SessionPage(BaseModel):
    """Sessions, newest activity first."""

    sessions: list[SessionView]
    next_cursor: str | None


class Appended(BaseModel):
    """The result of an append."""

    id: str
    sequence_num: int
    version: int
    created_at: datetime


class EventView(Appended):
    """A stored event."""

    thread_id: str
    run_id: str | None
    invocation_id: str
    author: str
    event_type: str
    content: EventContent
    actions: EventActions


class EventPage(BaseModel):
    """Events, oldest first. `has_more`: there are events after the page; `has_earlier`: before it."""

    events: list[EventView]
    last_sequence: int
    has_more: bool
    has_earlier: bool


class StateView(BaseModel):
    """A state with prefixed keys."""

    state: dict[str, Any]
    version: int
    sequence_num: int


class MessageView(BaseModel):
    """A message."""

    id: str
    event_id: str
    sequence_num: int
    role: str
    content: str
    metadata: dict[str, Any]
    created_at: datetime


class MessagePage(BaseModel):
    """Messages, oldest first, and whether there are later ones."""

    messages: list[MessageView]
    has_more: bool


class RunView(BaseModel):
    """A run."""

    id: str
    thread_id: str
    app_name: str
    status: str
    thinking_steps: list[Any]
    tool_calls: list[Any]
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    handler: str | None
    input: Any
    result: Any
    worker_id: str | None
    attempt: int
    failures: int
    max_attempts: int
    available_at: datetime | None
    lease_expires_at: datetime | None
    queue: str | None
    priority: int
    traceparent: str | None = Field(description="The position in a trace at which the run was created (W3C).")
    wait: WaitView | None


class WaitView(BaseModel):
    """What a run waits for now."""

    kind: str
    correlation_key: str
    reason: str | None
    expires_at: datetime | None
    timeout_node: str | None


class StepView(BaseModel):
    """A step of a run."""

    name: str
    status: str
    attempt: int
    result: Any
    error: str | None
    started_at: datetime
    finished_at: datetime | None


class MemorySnapshotView(BaseModel):
    """The memory of the agent when its run started to wait."""

    id: str
    working_memory: dict[str, Any] = Field(
        description="`{agent_id, session_id, messages, variables, tool_calls, scratchpad, last_checkpoint, updated_at}`"
    )
    episodic_tail: list[dict[str, Any]]
    long_term_keys: list[LongTermKeyView]
    snapshot_at: datetime | None


class ResumptionContextView(BaseModel):
    """What a run stored with its last wait."""

    payload_results: dict[str, Any]
    plan_decision_id: str | None
    cursor_node: str | None
    memory_snapshot: MemorySnapshotView | None


class ResumptionView(BaseModel):
    """What a run continues with after its last wait. `payload_results` has the payload of every wait that is over, by
    its correlation key. `kept_keys` are the state keys that another writer changed after the memory snapshot was
    taken: they keep the newer value."""

    kind: str
    correlation_key: str
    payload: Any
    timed_out: bool
    payload_results: dict[str, Any]
    plan_decision_id: str | None
    cursor_node: str | None
    kept_keys: list[str]


class RunDetail(RunView):
    """A run with its steps, in the order they were begun, and what it stored with its last wait. `resumption` is null
    until that wait is over."""

    steps: list[StepView]
    resumption_context: ResumptionContextView | None
    resumption: ResumptionView | None


class RunTotals(BaseModel):
    """The tokens of a run. `cost` is null if no model of the run has a price."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None


class ListedRun(RunView):
    """A run; `usage` is missing unless it was asked for."""

    usage: RunTotals | None = None


class FoundRuns(BaseModel):
    """Runs of all threads."""

    runs: list[ListedRun]
    next_cursor: str | None


class RunPage(BaseModel):
    """Runs, newest first."""

    runs: list[RunView]


def format_time(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def session_view(session: Session) -> JsonObject:
    return {
        "thread_id": session.thread_id,
        "session_id": session.id,
        "app_name": session.app_name,
        "user_id": session.user_id,
        "title": session.title,
        "metadata": session.metadata,
        "state": session.state,
        "version": session.version,
        "last_sequence": session.last_sequence,
        "created_at": format_time(session.created_at),
        "updated_at": format_time(session.updated_at),
    }


def event_view(event: Event) -> JsonObject:
    return {
        "id": event.id,
        "sequence_num": event.sequence_num,
        "version": event.version,
        "created_at": format_time(event.created_at),
        "thread_id": event.thread_id,
        "run_id": event.run_id,
        "invocation_id": event.invocation_id,
        "author": event.author,
        "event_type": event.event_type,
        "content": event.content,
        "actions": event.actions,
    }


def message_view(message: Message) -> JsonObject:
    return {
        "id": message.id,
        "event_id": message.event_id,
        "sequence_num": message.sequence_num,
        "role": message.role,
        "content": message.content,
        "metadata": message.metadata,
        "created_at": format_time(message.created_at),
    }


def run_view(run: Run) -> JsonObject:
    return {
        "id": run.id,
        "thread_id": run.thread_id,
        "app_name": run.app_name,
        "status": run.status,
        "thinking_steps": run.thinking_steps,
        "tool_calls": run.tool_calls,
        "error": run.error,
        "created_at": format_time(run.created_at),
        "started_at": format_time(run.started_at),
        "completed_at": format_time(run.completed_at),
        "handler": run.handler,
        "input": run.input,
        "result": run.result,
        "worker_id": run.worker_id,
        "attempt": run.attempt,
        "failures": run.failures,
        "max_attempts": run.max_attempts,
        "available_at": format_time(run.available_at),
        "lease_expires_at": format_time(run.lease_expires_at),
        "queue": run.queue,
        "priority": run.priority,
        "traceparent": run.traceparent,
        "wait": _wait_view(run.wait) if run.wait else None,
    }


def _wait_view(wait: RunWait) -> JsonObject:
    return {
        "kind": wait.kind,
        "correlation_key": wait.correlation_key,
        "reason": wait.reason,
        "expires_at": format_time(wait.expires_at),
        "timeout_node": wait.timeout_node,
    }


def resumption_view(resumption: Resumption) -> JsonObject:
    return {name: getattr(resumption, name) for name in ResumptionView.model_fields}


def step_view(step: Step) -> JsonObject:
    return {**vars(step), "started_at": format_time(step.started_at), "finished_at": format_time(step.finished_at)}
