"""The state of a context and its transitions.

The state is derived from the events of the thread, which include those of its runs, and from streamed messages.

| event | state |
| --- | --- |
| `user_message` | ProcessingUserMessage |
| `run_started`, `run_resumed`, `run_retried` | PreparingLLMRequest |
| `llm_request`, a stream without chunks | AwaitingLLMResponse |
| a stream with chunks | StreamingLLMResponse |
| `thought`, `assistant_message` of an active run | ProcessingLLMResponse |
| `act` | ExecutingTool, until every call has its `observe` |
| `observe` | ProcessingToolResults |
| `decision_asked`, a confirmation requested by Google ADK | AwaitingToolApproval, until it is answered |
| `run_waiting` | Paused, or AwaitingToolApproval if an approval is open |
| `run_released` by a worker that shuts down; another worker continues the run | Paused |
| `run_released` (an attempt failed or its lease expired), `error` in a run or with `retryable` | TransientFailure |
| `run_failed`, any other `error` | Failed |
| `cancel_requested` | Cancelling |
| `run_finished`, `run_cancelled`, `complete`, `cancelled`, `branch_switched`, a message without a run | Idle |

A transition that `TRANSITIONS` does not contain is ignored; a command that requests one raises
`IllegalTransitionError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from cognizes.engine.errors import IllegalTransitionError
from cognizes.engine.models import Event
from cognizes.engine.pulse.events import message_role
from cognizes.engine.timeline.event_reading import Answer, Call, Part, Question, Result, read_parts, unconfirmed_calls


class ContextState(StrEnum):
    IDLE = "Idle"
    PROCESSING_USER_MESSAGE = "ProcessingUserMessage"
    PREPARING_LLM_REQUEST = "PreparingLLMRequest"
    AWAITING_LLM_RESPONSE = "AwaitingLLMResponse"
    STREAMING_LLM_RESPONSE = "StreamingLLMResponse"
    PROCESSING_LLM_RESPONSE = "ProcessingLLMResponse"
    AWAITING_TOOL_APPROVAL = "AwaitingToolApproval"
    EXECUTING_TOOL = "ExecutingTool"
    PROCESSING_TOOL_RESULTS = "ProcessingToolResults"
    TRANSIENT_FAILURE = "TransientFailure"
    FAILED = "Failed"
    PAUSED = "Paused"
    CANCELLING = "Cancelling"


_S = ContextState
_WORK = frozenset(
    {
        _S.PROCESSING_USER_MESSAGE,
        _S.PREPARING_LLM_REQUEST,
        _S.AWAITING_LLM_RESPONSE,
        _S.STREAMING_LLM_RESPONSE,
        _S.PROCESSING_LLM_RESPONSE,
        _S.EXECUTING_TOOL,
        _S.PROCESSING_TOOL_RESULTS,
    }
)
_ENDS = frozenset({_S.IDLE, _S.FAILED, _S.TRANSIENT_FAILURE, _S.PAUSED, _S.CANCELLING, _S.AWAITING_TOOL_APPROVAL})
_BEGIN = frozenset(
    {_S.PROCESSING_USER_MESSAGE, _S.PREPARING_LLM_REQUEST, _S.AWAITING_LLM_RESPONSE, _S.STREAMING_LLM_RESPONSE}
)
TRANSITIONS: Mapping[ContextState, frozenset[ContextState]] = MappingProxyType(
    {
        # A result without a call starts nothing, and an idle context cannot be cancelled.
        _S.IDLE: (_WORK - {_S.PROCESSING_TOOL_RESULTS}) | (_ENDS - {_S.IDLE, _S.CANCELLING}),
        **{state: (_WORK | _ENDS) - {state} for state in _WORK},
        _S.AWAITING_TOOL_APPROVAL: frozenset(
            {
                _S.PROCESSING_USER_MESSAGE,
                _S.PREPARING_LLM_REQUEST,
                _S.EXECUTING_TOOL,
                _S.PROCESSING_TOOL_RESULTS,
                _S.IDLE,
                _S.FAILED,
                _S.TRANSIENT_FAILURE,
                _S.CANCELLING,
            }
        ),
        _S.TRANSIENT_FAILURE: _WORK | {_S.IDLE, _S.FAILED, _S.CANCELLING, _S.PAUSED, _S.AWAITING_TOOL_APPROVAL},
        # Left by a new user message or a retry (a new run, or a streamed or stored answer), and by switching to another
        # branch.
        _S.FAILED: _BEGIN | {_S.IDLE},
        _S.PAUSED: _BEGIN | {_S.AWAITING_TOOL_APPROVAL, _S.IDLE, _S.FAILED, _S.TRANSIENT_FAILURE, _S.CANCELLING},
        _S.CANCELLING: frozenset({_S.IDLE, _S.FAILED}),
    }
)
"""The allowed next states of each state."""


def check_transition(state: ContextState, to: ContextState) -> None:
    """Raise `IllegalTransitionError` if the transition is not allowed."""
    if to is not state and to not in TRANSITIONS[state]:
        raise IllegalTransitionError(f"the context is {state}; it cannot become {to}")


_ENDS_OF_RUNS = {"run_finished": _S.IDLE, "run_failed": _S.FAILED, "run_cancelled": _S.IDLE}
_TARGETS = {
    "run_started": _S.PREPARING_LLM_REQUEST,
    "run_resumed": _S.PREPARING_LLM_REQUEST,
    "run_retried": _S.PREPARING_LLM_REQUEST,
    "llm_request": _S.AWAITING_LLM_RESPONSE,
    "run_released": _S.TRANSIENT_FAILURE,
    "cancel_requested": _S.CANCELLING,
    "complete": _S.IDLE,
    "cancelled": _S.IDLE,
    "branch_switched": _S.IDLE,
    **_ENDS_OF_RUNS,
}
RESETS = frozenset({"branch_switched", "run_failed", "run_cancelled"})
"""Events after which earlier events do not affect the state."""


@dataclass
class StateFold:
    """Derives the state from the events of a thread, in order. Tracks active runs, open calls and open questions."""

    state: ContextState = ContextState.IDLE
    sequence: int = 0
    runs: set[str] = field(default_factory=set)
    _open_calls: dict[str, None] = field(default_factory=dict)
    _questions: dict[str, None] = field(default_factory=dict)

    @property
    def questions(self) -> list[str]:
        return list(self._questions)

    def apply(self, event: Event) -> bool:
        """Apply the next event; return whether the state has changed."""
        before = self.state
        self.sequence = max(self.sequence, event.sequence_num or 0)
        target = self._target(event)
        if target is not None and target in TRANSITIONS[self.state]:
            self.state = target
        return self.state is not before

    def apply_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.apply(event)

    def with_streams(self, current_sequences: Iterable[int]) -> ContextState:
        """Return the state given the current sequence numbers of streamed messages."""
        numbers = list(current_sequences)
        if not numbers:
            return self.state
        target = _S.STREAMING_LLM_RESPONSE if max(numbers) > 0 else _S.AWAITING_LLM_RESPONSE
        return target if target in TRANSITIONS[self.state] else self.state

    def _target(self, event: Event) -> ContextState | None:
        kind = event.event_type
        self._track_run(event)
        if kind in RESETS or kind in ("complete", "cancelled"):
            self._open_calls.clear()
            self._questions.clear()
        if kind == "run_waiting" or (kind == "run_finished" and self._questions):
            return _S.AWAITING_TOOL_APPROVAL if self._questions else _S.PAUSED
        if kind == "error":
            # An active run decides itself whether it continues after an error.
            return _S.TRANSIENT_FAILURE if self.runs or event.content.get("retryable") else _S.FAILED
        if kind == "run_released" and event.content.get("is_failure") is False:
            return _S.PAUSED
        if kind in _TARGETS:
            return _TARGETS[kind]
        if kind in ("decision_asked", "decision_answered"):
            return self._decision_target(event)
        return self._message_target(event)

    def _track_run(self, event: Event) -> None:
        if event.run_id is None:
            return
        if event.event_type in ("run_started", "run_resumed"):
            self.runs.add(event.run_id)
        elif event.event_type in (*_ENDS_OF_RUNS, "run_released"):
            self.runs.discard(event.run_id)

    def _decision_target(self, event: Event) -> ContextState | None:
        question = str(event.content.get("decision_id") or event.id)
        if event.event_type == "decision_asked":
            self._questions[question] = None
            return _S.AWAITING_TOOL_APPROVAL
        if self._questions.pop(question, "") == "" or self._questions:
            return None
        return _S.EXECUTING_TOOL if event.content.get("approved") else _S.PROCESSING_TOOL_RESULTS

    def _message_target(self, event: Event) -> ContextState | None:
        if event.event_type == "user_message" or (event.event_type == "message" and message_role(event) == "user"):
            self._questions.clear()
            return _S.PROCESSING_USER_MESSAGE
        parts = list(read_parts(event))
        if any(isinstance(part, Question | Answer) for part in parts):
            return self._question_target(parts)
        if calls := [part for part in parts if isinstance(part, Call)]:
            self._open_calls |= dict.fromkeys(call.id for call in calls)
            return _S.EXECUTING_TOOL
        if any(isinstance(part, Result) for part in parts):
            return self._result_target(event, parts)
        if event.event_type in ("assistant_message", "message"):
            self._open_calls.clear()
            return _S.PROCESSING_LLM_RESPONSE if self.runs else _S.IDLE
        return _S.PROCESSING_LLM_RESPONSE if event.event_type == "thought" else None

    def _question_target(self, parts: list[Part]) -> ContextState | None:
        for part in parts:
            if isinstance(part, Question):
                self._questions[part.id] = None
            elif isinstance(part, Answer):
                self._questions.pop(part.id, None)
        return _S.AWAITING_TOOL_APPROVAL if self._questions else _S.EXECUTING_TOOL

    def _result_target(self, event: Event, parts: list[Part]) -> ContextState | None:
        if self._questions and unconfirmed_calls(event):
            return None
        for part in parts:
            if isinstance(part, Result):
                self._open_calls.pop(part.call_id, None)
        return None if self._open_calls else _S.PROCESSING_TOOL_RESULTS
