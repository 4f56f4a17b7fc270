"""Turns of agents that do not keep their own history: the thread in the database is the truth.

The client's input only brings what is new: messages, results of client tools, answers to interrupts. The agent gets the
whole conversation of the thread as `RunAgentInput.messages`, and the state of the session as `RunAgentInput.state`. A
new thread also takes the client's own history (`client_history`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from ag_ui.core import Message, ResumeEntry, RunAgentInput, ToolMessage, UserMessage
from pydantic import TypeAdapter, ValidationError

from cognizes.engine.agui.snapshot import History, HistoryBuilder
from cognizes.engine.engine import Engine
from cognizes.engine.errors import AlreadyExistsError, InvalidInputError
from cognizes.engine.hosting.agent import RunContext, ThreadKey, Turn
from cognizes.engine.hosting.client_history import history_events, marked, messages_before
from cognizes.engine.models import Event, JsonObject, Session, new_id
from cognizes.engine.pulse.events import without_temp
from cognizes.engine.pulse.session_store import thread_uuid

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_ANSWERS: TypeAdapter[list[ResumeEntry]] = TypeAdapter(list[ResumeEntry])
NO_RESULT = "There is no result: the run ended before the tool returned."
"""The result that models get for a call without one, because they refuse such a call."""


@dataclass(frozen=True)
class ThreadTurn(Turn):
    """A turn on a thread whose history the host keeps.

    `builder` continues when others have written to the thread. `waiting_calls` are the tool calls about which the
    interrupts that `resume` answers have asked: the agent itself brings their results. `client_history` are the events
    of the history that the client brought, which `new_messages` begins with.

    `is_stored`: an earlier attempt of the run stored the answers; the agent may have applied them, too.
    """

    builder: HistoryBuilder = field(default_factory=HistoryBuilder)
    resume: Sequence[ResumeEntry] = ()
    waiting_calls: Sequence[str] = ()
    client_history: Sequence[Event] = ()
    is_stored: bool = False

    @property
    def history(self) -> History:
        return self.builder.history


async def read_thread_turn(
    engine: Engine, key: ThreadKey, run_input: RunAgentInput, *, initial_state: JsonObject, is_end_user: bool
) -> ThreadTurn:
    """Open the thread of an input, create it if it does not exist, and return the new part of the input."""
    session = await _open_session(engine, key, initial_state)
    thread_id = thread_uuid(session.thread_id)
    builder = await _read(engine, thread_id)
    history = builder.history
    check_answers(run_input.resume or (), history)
    new = _new_messages(run_input.messages, history)
    if not new and not run_input.resume:
        new = _asked_again(run_input.messages, history)
    resume = tuple(run_input.resume or ())
    earlier: list[Message] = []
    # Also a thread whose first input was interrupted while its history was stored.
    if all(message["id"] in history.client_history for message in history.snapshot.messages):
        earlier = messages_before(run_input.messages, new, stored=history.client_history)
    return ThreadTurn(
        thread_id,
        new_messages=[*marked(earlier, is_end_user=is_end_user), *new],
        client_history=list(history_events(earlier, agent=key[0], is_end_user=is_end_user)),
        builder=builder,
        resume=resume,
        waiting_calls=_asked_calls(history, resume),
    )


async def read_thread_continuation(
    engine: Engine, thread_id: UUID, *, run_id: str = "", resume: Sequence[ResumeEntry] = ()
) -> ThreadTurn:
    """Return the turn with which another attempt continues a run: with the answers that a signal brought, else with
    those that an earlier attempt of `run_id` stored."""
    questions = _Questions()
    builder = await _read(engine, thread_id, questions)
    check_answers(resume, builder.history)
    answers = tuple(resume) or questions.answers_of(run_id)
    return ThreadTurn(
        thread_id,
        builder=builder,
        resume=answers,
        waiting_calls=questions.calls_of(answers),
        is_stored=bool(answers and not resume),
    )


class _Questions:
    """The tool calls about which the interrupts of a thread ask, and the last answers that each run got."""

    def __init__(self) -> None:
        self._calls: dict[str, str] = {}
        self._answers: dict[str, tuple[ResumeEntry, ...]] = {}

    def add(self, event: Event) -> None:
        if event.event_type == "interrupt":
            for asked in event.content.get("interrupts") or ():
                self._calls[str(asked.get("id"))] = str(asked.get("toolCallId") or "")
        elif event.event_type == "resume" and event.run_id:
            with suppress(ValidationError):
                self._answers[event.run_id] = tuple(_ANSWERS.validate_python(event.content.get("answers")))

    def answers_of(self, run_id: str) -> tuple[ResumeEntry, ...]:
        return self._answers.get(run_id, ())

    def calls_of(self, resume: Sequence[ResumeEntry]) -> list[str]:
        """Return the calls about which the answered interrupts ask: their results come from the agent."""
        return [call for entry in resume if (call := self._calls.get(entry.interrupt_id))]


def _asked_calls(history: History, resume: Sequence[ResumeEntry]) -> list[str]:
    given = {entry.interrupt_id for entry in resume}
    return [asked.tool_call_id for asked in history.interrupts if asked.tool_call_id and asked.id in given]


def check_answers(resume: Sequence[ResumeEntry], history: History) -> None:
    """Raise `InvalidInputError` unless the answers are those to all open interrupts, or none."""
    asked = {interrupt.id for interrupt in history.interrupts}
    given = {entry.interrupt_id for entry in resume}
    if unknown := given - asked:
        raise InvalidInputError(f"no question {', '.join(sorted(unknown))} is open; connect again")
    if resume and (missing := asked - given):
        raise InvalidInputError(f"resume must answer every open interrupt; {', '.join(sorted(missing))} is missing")


async def read_thread_messages(engine: Engine, thread_id: UUID) -> list[Message]:
    """Return the conversation of a thread as an agent gets it; none if there is no such thread."""
    turn = ThreadTurn(thread_id, builder=await _read(engine, thread_id))
    return _MESSAGES.validate_python(list(_complete_calls(turn)))


async def store_turn(context: RunContext, turn: ThreadTurn) -> None:
    """Store the new part of the input, and add to the history what others wrote since it was read."""
    engine, thread_id = context.engine, context.thread_id
    for event in () if turn.is_stored else _turn_events(turn):
        event.thread_id, event.run_id, event.invocation_id = str(thread_id), context.run.id, context.run.id
        await engine.sessions.append_to_thread(thread_id, event)
    async for events in engine.sessions.log.iterate_pages(thread_id, after=turn.history.last_sequence, only_shown=True):
        turn.builder.add(events)
    turn.builder.finish()


def agent_input(run_input: RunAgentInput, context: RunContext, turn: ThreadTurn) -> RunAgentInput:
    """Return the input that the agent gets: the conversation and the state of the thread, the rest of the client."""
    return run_input.model_copy(
        update={
            "run_id": context.run.id,
            "state": without_temp(context.session.state),
            "messages": _MESSAGES.validate_python(list(_complete_calls(turn))),
            "tools": run_input.tools or [],
            "context": run_input.context or [],
            "forwarded_props": {} if run_input.forwarded_props is None else run_input.forwarded_props,
            "resume": list(turn.resume) or None,
        }
    )


async def _open_session(engine: Engine, key: ThreadKey, initial_state: JsonObject) -> Session:
    while True:
        if session := await engine.sessions.get(*key):
            return session
        # When another process creates the same session first, this one reads it.
        with suppress(AlreadyExistsError):
            return await engine.sessions.create(key[0], key[1], session_id=key[2], state=initial_state)


async def _read(engine: Engine, thread_id: UUID, questions: _Questions | None = None) -> HistoryBuilder:
    builder = HistoryBuilder()
    async for events in engine.sessions.log.iterate_pages(thread_id, only_shown=True):
        builder.add(events)
        if questions is not None:
            for event in events:
                questions.add(event)
    builder.finish()
    return builder


def _new_messages(messages: Sequence[Message], history: History) -> list[Message]:
    """Return the messages behind the last one that is stored or not written by the client.

    A tool result that answers no open call of a client tool is left out: the client made it up.
    """
    new: list[Message] = []
    for message in reversed(messages):
        if history.snapshot.find(message.id) or not isinstance(message, UserMessage | ToolMessage):
            break
        if isinstance(message, UserMessage) or message.tool_call_id in history.pending:
            new.append(message)
    return new[::-1]


def _asked_again(messages: Sequence[Message], history: History) -> list[Message]:
    """Return the last message of a client that asks again; stored twice, unless the thread still ends with it."""
    again = messages[-1] if messages else None
    if not isinstance(again, UserMessage):
        raise InvalidInputError("there is nothing to answer: the input has no new user message, tool result or resume")
    if (stored := history.snapshot.messages) and stored[-1]["id"] == again.id:
        return []
    return [again.model_copy(update={"id": str(new_id())})]


def _turn_events(turn: ThreadTurn) -> Iterable[Event]:
    if turn.resume:
        answers = [entry.model_dump(mode="json", by_alias=True) for entry in turn.resume]
        yield _event("resume", {"answered": [entry.interrupt_id for entry in turn.resume], "answers": answers})
    yield from turn.client_history
    brought = {event.content["message_id"] for event in turn.client_history}
    for message in turn.new_messages:
        if message.id in brought:
            continue
        if isinstance(message, UserMessage):
            yield user_message_event(message)
        elif isinstance(message, ToolMessage):
            yield tool_message_event(message, author="user")


def user_message_event(message: UserMessage) -> Event:
    """Return the event of a user's message, under the id of the message."""
    content: JsonObject = {"message_id": message.id}
    if isinstance(message.content, str):
        content["text"] = message.content
    else:
        content["content"] = [part.model_dump(mode="json", by_alias=True) for part in message.content]
    return _event("user_message", content, event_id=message.id)


def tool_message_event(message: ToolMessage, *, author: str) -> Event:
    """Return the event of a tool's result, under the id of the message."""
    content: JsonObject = {"tool_call_id": message.tool_call_id, "message_id": message.id, "is_error": False}
    if message.error:
        content |= {"observation": {"error": message.error}, "is_error": True}
    elif isinstance(message.content, str):
        content |= {"observation": message.content, "format": "text"}
    else:
        parts = [part.model_dump(mode="json", by_alias=True) for part in message.content]
        content |= {"observation": parts, "format": "parts"}
    return _event("observe", content, event_id=message.id, author=author)


def _event(kind: str, content: JsonObject, *, event_id: str = "", author: str = "user") -> Event:
    return Event(
        id=event_id or str(new_id()), thread_id="", invocation_id="", author=author, event_type=kind, content=content
    )


def _complete_calls(turn: ThreadTurn) -> Iterable[JsonObject]:
    """Yield the messages of the thread such that models accept them: every call has JSON arguments and a result.

    A call about which an interrupt asked has none: the agent brings it. A call whose result the client still owes has
    one that says so, until the result arrives. What an end user brought from an earlier conversation is quoted.
    """
    messages = [_as_quoted(message, turn.history.client_history) for message in turn.history.snapshot.messages]
    answered = {message["toolCallId"] for message in messages if message["role"] == "tool"}
    waiting = set(turn.waiting_calls)
    for message in messages:
        if not (calls := message.get("toolCalls")):
            yield message
            continue
        whole = [call for call in map(_with_arguments, calls) if call]
        if whole or message.get("content"):
            yield {**message, "toolCalls": whole} if whole else _without_calls(message)
        for call in whole:
            if call["id"] not in answered and call["id"] not in waiting:
                yield {"id": f"{call['id']}/result", "role": "tool", "toolCallId": call["id"], "content": NO_RESULT}


def _as_quoted(message: JsonObject, client_history: Mapping[str, str | None]) -> JsonObject:
    text = client_history.get(message["id"])
    return message if text is None else {"id": message["id"], "role": "user", "content": text}


def _without_calls(message: JsonObject) -> JsonObject:
    return {key: value for key, value in message.items() if key != "toolCalls"}


def _with_arguments(call: JsonObject) -> JsonObject | None:
    """Return a call with complete arguments; None for one that its run did not finish."""
    text = call["function"]["arguments"] or "{}"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {**call, "function": {**call["function"], "arguments": text}}
