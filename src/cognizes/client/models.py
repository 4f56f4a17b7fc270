"""What the server answers: its JSON, and frozen models. Fields that a newer server adds are ignored.

The server encodes values that plain JSON cannot hold, and `decode` restores them: NaN and the infinities are
`{"$float": "NaN"}`; lone surrogates follow the character U+E000 as four hexadecimal digits.
"""

from __future__ import annotations

import json
import re
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, JsonValue

JsonObject = dict[str, JsonValue]

_FLOAT = "$float"
_ESCAPE = "\ue000"
_ESCAPED = re.compile("\ue000([0-9a-f]{4})")


def decode(text: str) -> JsonValue:
    """Return the value of a document of the server; `ValueError` if it is not JSON."""
    value: JsonValue = json.loads(text, object_hook=_restore_float) if _FLOAT in text else json.loads(text)
    return _unescape(value) if _ESCAPE in text or "\\ue000" in text else value


def _restore_float(value: JsonObject) -> JsonValue:
    if len(value) != 1 or _FLOAT not in value:
        return value
    encoded = value[_FLOAT]
    if isinstance(encoded, list) and len(encoded) == 1:
        return {_FLOAT: encoded[0]}
    return float(encoded) if isinstance(encoded, str) else value


def _unescape(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    if isinstance(value, dict):
        return {str(_unescape(key)): _unescape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape(item) for item in value]
    return value


ENDED = ("completed", "failed", "cancelled")


class Answer(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", populate_by_name=True, protected_namespaces=(), defer_build=True
    )


class Session(Answer):
    """A session. `thread_id` is its id; `session_id` is the name that its creator chose. `version` counts changes of
    the state, `last_sequence` counts events."""

    thread_id: str
    session_id: str
    app_name: str
    user_id: str
    title: str | None
    metadata: JsonObject
    state: JsonObject
    version: int
    last_sequence: int
    created_at: datetime
    updated_at: datetime


class SessionPage(Answer):
    """Sessions, newest activity first; `next_cursor` is None on the last page."""

    sessions: list[Session]
    next_cursor: str | None


class Appended(Answer):
    """The result of an append."""

    id: str
    sequence_num: int
    version: int
    created_at: datetime


class Event(Appended):
    """A stored event."""

    thread_id: str
    run_id: str | None
    invocation_id: str
    author: str
    event_type: str
    content: JsonObject
    actions: JsonObject


class EventPage(Answer):
    """Events, oldest first. `has_more`: there are events after the page; `has_earlier`: before it."""

    events: list[Event]
    last_sequence: int
    has_more: bool
    has_earlier: bool


class State(Answer):
    """A state with prefixed keys, and where it was read."""

    state: JsonObject
    version: int
    sequence_num: int


class Message(Answer):
    """A message."""

    id: str
    event_id: str
    sequence_num: int
    role: str
    content: str
    metadata: JsonObject
    created_at: datetime


class MessagePage(Answer):
    """Messages, oldest first."""

    messages: list[Message]
    has_more: bool


class TimelinePage(Answer):
    """Timeline items, oldest first. Page with `before=first_sequence` or `after=last_sequence`."""

    thread_id: str = Field(alias="conversationId")
    items: list[JsonObject] = Field(alias="timeline")
    total: int
    has_more: bool = Field(alias="hasMore")
    first_sequence: int | None = Field(alias="firstSequence")
    last_sequence: int | None = Field(alias="lastSequence")


class Attachment(Answer):
    """A file of a session. `part` is the part of an AG-UI message that refers to it."""

    id: str
    name: str
    mime_type: str
    size: int
    sha256: str
    created_at: datetime
    url: str
    part: JsonObject


class AttachmentPage(Answer):
    """Attachments; `next_cursor` is None on the last page."""

    attachments: list[Attachment]
    next_cursor: str | None


class Wait(Answer):
    """What a run waits for: `human`, `message`, `signal`, `webhook` or `timer`."""

    kind: str
    correlation_key: str
    reason: str | None
    expires_at: datetime | None
    timeout_node: str | None


class Run(Answer):
    """A run. `status` is pending, running, waiting, completed, failed or cancelled."""

    id: str
    thread_id: str
    app_name: str
    status: str
    thinking_steps: list[JsonValue]
    tool_calls: list[JsonValue]
    error: str | None
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    handler: str | None
    input: JsonValue
    result: JsonValue
    worker_id: str | None
    attempt: int
    failures: int
    max_attempts: int
    available_at: datetime | None
    lease_expires_at: datetime | None
    queue: str | None
    priority: int
    traceparent: str | None
    wait: Wait | None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_waiting(self) -> bool:
        return self.status == "waiting"


class Step(Answer):
    """A durable step of a run."""

    name: str
    status: str
    attempt: int
    result: JsonValue
    error: str | None
    started_at: datetime
    finished_at: datetime | None


class RunDetail(Run):
    """A run with its steps, and with what it stored at its last wait."""

    steps: list[Step]
    resumption_context: JsonObject | None
    resumption: JsonObject | None


class RunPage(Answer):
    """Runs, newest first; `next_cursor` is None on the last page."""

    runs: list[Run]
    next_cursor: str | None = None


class Signalled(Answer):
    """The result of a signal: `resumed`, `kept` for a later wait, or `duplicate` of an earlier one."""

    outcome: str
    run: Run


class NewToolCall(Answer):
    """The id of a tool call that was added to a run."""

    id: str


class Branch(Answer):
    """A branch of a session; `forked_at` is the sequence number of the last event that it shares with its parent."""

    name: str
    parent: str | None
    forked_at: int | None
    tip_sequence: int
    is_active: bool
    created_at: datetime


class BranchList(Answer):
    """The branches of a session."""

    branches: list[Branch]


class Approval(Answer):
    """A tool call that a person approves or denies; `approved` is None while it is open."""

    approval_id: str
    tool_name: str
    tool_input: JsonValue
    tool_call_id: str | None
    message: str | None
    run_id: str | None
    approved: bool | None
    asked_at: datetime


class ApprovalList(Answer):
    """The open approvals of a session."""

    approvals: list[Approval]


class Agent(Answer):
    """A hosted agent."""

    name: str
    url: str


class AgentList(Answer):
    """The agents of a server."""

    agents: list[Agent]


class Memory(Answer):
    """A memory: a `note`, a `turn` of a session, a `long_term` fact or an `episodic` one."""

    id: str
    agent_id: str
    kind: str
    namespace: str
    source_id: str
    session_id: str | None
    author: str | None
    text: str
    content: JsonValue
    created_at: datetime
    tags: list[str]
    metadata: JsonObject
    importance: float | None
    expires_at: datetime | None
    visibility: str


class MemoryPage(Answer):
    """Memories, newest first; `next_before` is where the next page begins."""

    memories: list[Memory]
    next_before: str | None


class Hit(Memory):
    """A recalled memory, with a score from 0 to 1, its parts, and the reasons in words."""

    score: float
    scores: dict[str, float]
    why: str


class Hits(Answer):
    """Recalled memories, best first."""

    hits: list[Hit]


class MessageHit(Message):
    """A found message, with a score from 0 to 1, its parts, and the reasons in words."""

    thread_id: str
    app_name: str
    user_id: str
    session_id: str
    score: float
    scores: dict[str, float]
    why: str


class MessageHits(Answer):
    """Found messages, best first."""

    hits: list[MessageHit]


class ContextItem(Answer):
    """A part of a context; `citation` names it in the text."""

    section: str
    citation: str
    text: str
    created_at: datetime | None
    memory_id: str | None
    kind: str | None
    visibility: str | None
    session_id: str | None
    event_id: str | None
    score: float | None


class PromptContext(Answer):
    """The text of a context, its items in the order of the text, and the number of items that did not fit."""

    text: str
    items: list[ContextItem]
    tokens: int
    left_out: int


class Fact(Answer):
    """A long-term fact."""

    agent_id: str
    namespace: str
    key: str
    value: JsonValue
    text: str
    created_at: datetime
    updated_at: datetime


class FactSource(Answer):
    """An event that a value of a fact came from."""

    session_id: str
    event_id: str


class FactVersion(Answer):
    """A value of a fact and the events that it came from; `valid_until` is None for the current one."""

    value: JsonValue
    text: str
    valid_from: datetime
    valid_until: datetime | None
    sources: list[FactSource]


class FactHistory(Answer):
    """The values of a fact, newest first."""

    versions: list[FactVersion]


class Stored(Answer):
    """How many memories are new or changed."""

    stored: int


class ErasedRows(Answer):
    """The number of deleted rows by table."""

    rows: dict[str, int]


class ModelUsage(Answer):
    """The calls of one model; `cost` is None without a price."""

    model: str
    calls: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost: float | None


class Usage(Answer):
    """Tokens and cost, by model and in total."""

    models: list[ModelUsage]
    calls: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost: float | None
    unpriced_models: list[str]


class Schedule(Answer):
    """A schedule and its next due times; none while it is paused."""

    id: str
    app_name: str
    user_id: str
    thread_id: str | None
    name: str
    handler: str
    input: JsonValue
    max_attempts: int
    queue: str | None
    priority: int
    cron: str | None
    every_seconds: float | None
    timezone: str
    catch_up: str
    catch_up_limit: int
    paused_at: datetime | None
    created_at: datetime
    next_times: list[datetime]


class SchedulePage(Answer):
    """Schedules; `next_cursor` is None on the last page."""

    schedules: list[Schedule]
    next_cursor: str | None


class Caller(Answer):
    """The caller of a key or token. Without apps it is for all apps; without a user it may act for any user."""

    name: str
    permissions: list[str]
    app_names: list[str] | None
    user_id: str | None
    expires_at: datetime | None
