"""Where a context stands, and how it gets from one state to another.

Nobody sets a state: it follows from the thread's events, which also say what runs do, and from what is being streamed.

| what is stored | the state |
| --- | --- |
| `user_message` | ProcessingUserMessage |
| `run_started`, `run_resumed`, `run_retried` | PreparingLLMRequest |
| `llm_request`, a stream that has no chunk yet | AwaitingLLMResponse |
| a stream that has one | StreamingLLMResponse |
| `thought`, `assistant_message` of a run that goes on | ProcessingLLMResponse |
| `act` | ExecutingTool, until every call has its `observe` |
| `observe` | ProcessingToolResults |
| `decision_asked`, a confirmation that Google ADK asks for | AwaitingToolApproval, until it is answered |
| `run_waiting` | Paused, or AwaitingToolApproval when that is what it waits for |
| `run_released` by a worker that stops on purpose: another one goes on | Paused |
| `run_released` (an attempt failed, its worker fell silent), `error` in a run or with `retryable` | TransientFailure |
| `run_failed`, any other `error` | Failed |
| `cancel_requested` | Cancelling |
| `run_finished`, `run_cancelled`, `complete`, `cancelled`, `branch_switched`, an answer without a run | Idle |

A move that `TRANSITIONS` does not hold is not made; a caller who asks for one by a command gets an
`IllegalTransitionError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from cognizes.engine.errors import IllegalTransitionError
from cognizes.engine.models import Event
from cognizes.engine.pulse.messages import message_role
from cognizes.engine.timeline.event_reading import Answer, Call, Part, Question, Result, read_parts, unconfirmed_calls


class ContextState(StrEnum):
    """What a context is doing, spelled as on the wire."""

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
        # A result nobody asked for begins nothing, and there is nothing to cancel.
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
        # Left by a new user message or a retry: a new run, an answer that begins to stream, or one that is there. And
        # by going to another branch, which the failure is not on.
        _S.FAILED: _BEGIN | {_S.IDLE},
        _S.PAUSED: _BEGIN | {_S.AWAITING_TOOL_APPROVAL, _S.IDLE, _S.FAILED, _S.TRANSIENT_FAILURE, _S.CANCELLING},
        _S.CANCELLING: frozenset({_S.IDLE, _S.FAILED}),
    }
)
"""From each state, the states that may follow it. The only such table."""


def check_transition(state: ContextState, to: ContextState) -> None:
    """`IllegalTransitionError` when a context cannot go from one state to the other."""
    if to is not state and to not in TRANSITIONS[state]:
        raise IllegalTransitionError(f"the context is {state}; it cannot become {to} from there")


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
"""Events after which nothing of what came before matters."""


@dataclass
class StateFold:
    """Follows a thread's events, in their order. It remembers runs that go on, calls and questions that are open."""

    state: ContextState = ContextState.IDLE
    sequence: int = 0
    runs: set[str] = field(default_factory=set)
    _open_calls: dict[str, None] = field(default_factory=dict)
    _questions: dict[str, None] = field(default_factory=dict)

    @property
    def questions(self) -> list[str]:
        """The approvals that somebody waits for."""
        return list(self._questions)

    def apply(self, event: Event) -> bool:
        """Takes in the next event; whether the state is another one now."""
        before = self.state
        self.sequence = max(self.sequence, event.sequence_num or 0)
        target = self._target(event)
        if target is not None and target in TRANSITIONS[self.state]:
            self.state = target
        return self.state is not before

    def apply_all(self, events: Iterable[Event]) -> None:
        """Takes in several."""
        for event in events:
            self.apply(event)

    def with_streams(self, current_sequences: Iterable[int]) -> ContextState:
        """The state while messages are being streamed that have come so far."""
        numbers = list(current_sequences)
        if not numbers:
            return self.state
        target = _S.STREAMING_LLM_RESPONSE if max(numbers) > 0 else _S.AWAITING_LLM_RESPONSE
        return target if target in TRANSITIONS[self.state] else self.state

    def _target(self, event: Event) -> ContextState | None:
        kind = event.event_type
        self._follow_run(event)
        if kind in RESETS or kind in ("complete", "cancelled"):
            self._open_calls.clear()
            self._questions.clear()
        if kind == "run_waiting" or (kind == "run_finished" and self._questions):
            return _S.AWAITING_TOOL_APPROVAL if self._questions else _S.PAUSED
        if kind == "error":
            # Whether a run can go on after an error is for the run to say.
            return _S.TRANSIENT_FAILURE if self.runs or event.content.get("retryable") else _S.FAILED
        if kind == "run_released" and event.content.get("is_failure") is False:
            return _S.PAUSED
        if kind in _TARGETS:
            return _TARGETS[kind]
        if kind in ("decision_asked", "decision_answered"):
            return self._decision(event)
        return self._said(event)

    def _follow_run(self, event: Event) -> None:
        if event.run_id is None:
            return
        if event.event_type in ("run_started", "run_resumed"):
            self.runs.add(event.run_id)
        elif event.event_type in (*_ENDS_OF_RUNS, "run_released"):
            self.runs.discard(event.run_id)

    def _decision(self, event: Event) -> ContextState | None:
        question = str(event.content.get("decision_id") or event.id)
        if event.event_type == "decision_asked":
            self._questions[question] = None
            return _S.AWAITING_TOOL_APPROVAL
        if self._questions.pop(question, "") == "" or self._questions:
            return None
        return _S.EXECUTING_TOOL if event.content.get("approved") else _S.PROCESSING_TOOL_RESULTS

    def _said(self, event: Event) -> ContextState | None:
        if event.event_type == "user_message" or (event.event_type == "message" and message_role(event) == "user"):
            self._questions.clear()
            return _S.PROCESSING_USER_MESSAGE
        parts = list(read_parts(event))
        if any(isinstance(part, Question | Answer) for part in parts):
            return self._asked(parts)
        if calls := [part for part in parts if isinstance(part, Call)]:
            self._open_calls |= dict.fromkeys(call.id for call in calls)
            return _S.EXECUTING_TOOL
        if any(isinstance(part, Result) for part in parts):
            return self._answered(event, parts)
        if event.event_type in ("assistant_message", "message"):
            self._open_calls.clear()
            return _S.PROCESSING_LLM_RESPONSE if self.runs else _S.IDLE
        return _S.PROCESSING_LLM_RESPONSE if event.event_type == "thought" else None

    def _asked(self, parts: list[Part]) -> ContextState | None:
        for part in parts:
            if isinstance(part, Question):
                self._questions[part.id] = None
            elif isinstance(part, Answer):
                self._questions.pop(part.id, None)
        return _S.AWAITING_TOOL_APPROVAL if self._questions else _S.EXECUTING_TOOL

    def _answered(self, event: Event, parts: list[Part]) -> ContextState | None:
        if self._questions and unconfirmed_calls(event):
            return None
        for part in parts:
            if isinstance(part, Result):
                self._open_calls.pop(part.call_id, None)
        return None if self._open_calls else _S.PROCESSING_TOOL_RESULTS
