"""The one table of transitions, and the state that follows from events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cognizes.engine.errors import IllegalTransitionError
from cognizes.engine.models import Event
from cognizes.engine.sync.context_state import TRANSITIONS, ContextState, StateFold, check_transition
from tests.unittests.agui.conftest import adk, call, response, said

S = ContextState


def event(kind: str, *, author: str = "agent", run_id: str | None = None, **content: Any) -> Event:
    return Event("e", "t", "", author, kind, content, run_id=run_id, sequence_num=1)


def states(*events: Event) -> list[ContextState]:
    fold = StateFold()
    found = []
    for item in events:
        fold.apply(item)
        found.append(fold.state)
    return found


def test_the_states_of_the_contract_are_spelled_as_on_the_wire() -> None:
    assert {state.value for state in S} == {
        "Idle", "ProcessingUserMessage", "PreparingLLMRequest", "AwaitingLLMResponse", "StreamingLLMResponse",
        "ProcessingLLMResponse", "AwaitingToolApproval", "ExecutingTool", "ProcessingToolResults", "TransientFailure",
        "Failed", "Paused", "Cancelling",
    }  # fmt: skip
    assert set(TRANSITIONS) == set(S)


def test_a_turn_with_a_tool() -> None:
    assert states(
        event("user_message", author="user", text="hi"),
        event("run_started", run_id="r"),
        event("thought", run_id="r", thought="hm"),
        event("act", run_id="r", tool_call_id="c", tool_name="search"),
        event("observe", run_id="r", tool_call_id="c", observation=1),
        event("assistant_message", run_id="r", text="done"),
        event("run_finished", run_id="r"),
    ) == [
        S.PROCESSING_USER_MESSAGE, S.PREPARING_LLM_REQUEST, S.PROCESSING_LLM_RESPONSE, S.EXECUTING_TOOL,
        S.PROCESSING_TOOL_RESULTS, S.PROCESSING_LLM_RESPONSE, S.IDLE,
    ]  # fmt: skip


def test_without_a_run_the_answer_ends_the_turn() -> None:
    said_and_done = states(event("user_message", author="user"), event("assistant_message", text="x"))
    assert said_and_done == [S.PROCESSING_USER_MESSAGE, S.IDLE]


def test_parallel_tools_are_executing_until_the_last_result() -> None:
    assert states(
        event("act", tool_call_id="a"), event("act", tool_call_id="b"), event("observe", tool_call_id="a"),
        event("observe", tool_call_id="b"),
    ) == [S.EXECUTING_TOOL, S.EXECUTING_TOOL, S.EXECUTING_TOOL, S.PROCESSING_TOOL_RESULTS]  # fmt: skip


def test_an_approval_is_awaited_until_it_is_answered() -> None:
    asked, yes = event("decision_asked", decision_id="d"), event("decision_answered", decision_id="d", approved=True)
    assert states(event("run_started", run_id="r"), asked, yes)[1:] == [S.AWAITING_TOOL_APPROVAL, S.EXECUTING_TOOL]
    no = event("decision_answered", decision_id="d", approved=False)
    assert states(asked, no) == [S.AWAITING_TOOL_APPROVAL, S.PROCESSING_TOOL_RESULTS]
    other = event("decision_answered", decision_id="other", approved=True)
    assert states(asked, other) == [S.AWAITING_TOOL_APPROVAL, S.AWAITING_TOOL_APPROVAL]
    assert states(asked, event("user_message", author="user"))[-1] is S.PROCESSING_USER_MESSAGE


def test_a_confirmation_of_adk_outlives_the_run_that_asked() -> None:
    question = adk(call("q", "adk_request_confirmation"))
    waiting = adk(response("c", {"error": "confirm"}), actions={"requested_tool_confirmations": {"c": {}}})
    answer = adk(response("q", {"confirmed": True}, name="adk_request_confirmation"), author="user")
    assert states(
        event("run_started", run_id="r"), adk(call("c")), question, waiting, event("run_finished", run_id="r"),
        event("run_started", run_id="r2"), answer, adk(response("c", {"ok": 1})), adk(said("done")),
        event("run_finished", run_id="r2"),
    ) == [
        S.PREPARING_LLM_REQUEST, S.EXECUTING_TOOL, S.AWAITING_TOOL_APPROVAL, S.AWAITING_TOOL_APPROVAL,
        S.AWAITING_TOOL_APPROVAL, S.PREPARING_LLM_REQUEST, S.EXECUTING_TOOL, S.PROCESSING_TOOL_RESULTS,
        S.PROCESSING_LLM_RESPONSE, S.IDLE,
    ]  # fmt: skip


def test_waiting_failing_and_resuming() -> None:
    assert states(
        event("run_started", run_id="r"), event("run_waiting", run_id="r"), event("run_resumed", run_id="r"),
        event("run_released", run_id="r"), event("run_started", run_id="r"), event("run_failed", run_id="r"),
    ) == [
        S.PREPARING_LLM_REQUEST, S.PAUSED, S.PREPARING_LLM_REQUEST, S.TRANSIENT_FAILURE, S.PREPARING_LLM_REQUEST,
        S.FAILED,
    ]  # fmt: skip
    given_back = event("run_released", run_id="r", is_failure=False)
    assert states(event("run_started", run_id="r"), given_back, event("run_resumed", run_id="r"))[1:] == [
        S.PAUSED,
        S.PREPARING_LLM_REQUEST,
    ]
    assert states(event("run_started", run_id="r"), event("run_released", run_id="r", is_failure=True))[-1] is (
        S.TRANSIENT_FAILURE
    )
    assert states(event("user_message", author="user"), event("error", retryable=True))[-1] is S.TRANSIENT_FAILURE
    in_a_run = (event("run_started", run_id="r"), event("error", run_id="r"), event("thought", run_id="r", text="x"))
    assert states(*in_a_run)[1:] == [S.TRANSIENT_FAILURE, S.PROCESSING_LLM_RESPONSE]


def test_failed_is_left_by_a_new_user_message_or_a_retry_and_by_nothing_else() -> None:
    failed = event("error")
    assert states(failed, event("user_message", author="user"))[-1] is S.PROCESSING_USER_MESSAGE
    for kind in ("run_started", "run_retried"):
        assert states(failed, event(kind, run_id="again"))[-1] is S.PREPARING_LLM_REQUEST
    assert states(failed, event("assistant_message", text="the retry went well"))[-1] is S.IDLE
    for kind in ("thought", "act", "observe", "decision_asked", "run_waiting"):
        assert states(failed, event(kind, text="x"))[-1] is S.FAILED


def test_cancelling_ends_with_the_run() -> None:
    begun = (event("run_started", run_id="r"), event("cancel_requested"))
    assert states(*begun)[-1] is S.CANCELLING
    assert states(*begun, event("user_message", author="user"))[-1] is S.CANCELLING
    assert states(*begun, event("run_cancelled", run_id="r"))[-1] is S.IDLE
    assert states(event("cancel_requested")) == [S.IDLE]


def test_streams_show_as_awaiting_then_streaming() -> None:
    fold = StateFold()
    fold.apply(event("user_message", author="user"))
    assert fold.with_streams([]) is S.PROCESSING_USER_MESSAGE
    assert fold.with_streams([0]) is S.AWAITING_LLM_RESPONSE
    assert fold.with_streams([0, 3]) is S.STREAMING_LLM_RESPONSE
    fold.apply(event("cancel_requested"))
    assert fold.with_streams([3]) is S.CANCELLING


def test_a_transition_outside_the_table_is_an_error() -> None:
    check_transition(S.IDLE, S.PROCESSING_USER_MESSAGE)
    check_transition(S.PAUSED, S.PAUSED)
    for state, to in ((S.IDLE, S.CANCELLING), (S.FAILED, S.EXECUTING_TOOL), (S.CANCELLING, S.STREAMING_LLM_RESPONSE)):
        with pytest.raises(IllegalTransitionError, match=f"{state}.*{to}"):
            check_transition(state, to)


_KINDS = st.sampled_from(
    ["user_message", "run_started", "thought", "act", "observe", "assistant_message", "decision_asked", "error",
     "decision_answered", "run_waiting", "run_released", "run_failed", "run_finished", "run_cancelled",
     "cancel_requested", "branch_switched", "complete", "state_update", "unknown"]
)  # fmt: skip


@given(st.lists(st.tuples(_KINDS, st.sampled_from(["a", "b"]), st.booleans()), max_size=30))
def test_any_events_cause_only_transitions_of_the_table(events: list[tuple[str, str, bool]]) -> None:
    fold = StateFold()
    for kind, name, yes in events:
        before = fold.state
        fold.apply(event(kind, run_id=name, tool_call_id=name, decision_id=name, approved=yes, retryable=yes, text="x"))
        assert fold.state is before or fold.state in TRANSITIONS[before]
    # From wherever it got to, there is a way back to rest.
    fold.apply(event("branch_switched", name="main"))
    assert fold.state is S.IDLE
