"""Turns of agents that do not keep their own history: the thread in the database is the truth.

The client's input only brings what is new: messages, results of client tools, answers to interrupts. The agent gets the
whole conversation of the thread as `RunAgentInput.messages`, and the state of the session as `RunAgentInput.state`. A
new thread also takes the client's own history (`client_history`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from ag_ui.core import Interrupt, Message, ResumeEntry, RunAgentInput, ToolMessage, UserMessage
from cachetools import LRUCache
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from cognizes.engine.agui.snapshot import History, HistoryBuilder
from cognizes.engine.agui.translator import wait_key_of, wait_of
from cognizes.engine.database.documents import dump_json, text_bytes
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.hosting.agent import RunContext, ThreadKey, Turn, client_state_delta
from cognizes.engine.hosting.inputs import history_events, marked, messages_before
from cognizes.engine.models import Event, JsonObject, Session, new_id
from cognizes.engine.pulse.events import without_temp
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.runs import Resumption

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])
_ANSWERS: TypeAdapter[list[ResumeEntry]] = TypeAdapter(list[ResumeEntry])
_EVENT_BYTES = 500
NO_RESULT = "There is no result: the run ended before the tool returned."
"""The result that models get for a call without one, because they refuse such a call."""


class Conversation:
    """The history of a thread as far as it was read, the questions of its agents, and the answers that runs got."""

    def __init__(self, thread_id: UUID | None = None) -> None:
        self.thread_id = thread_id
        self.size = 0
        """The size of its events in bytes, as they are stored, and of the objects that hold them."""
        self._builder = HistoryBuilder()
        self._calls: dict[str, str] = {}
        self._given_ids: dict[str, str] = {}
        self._answers: dict[str, tuple[ResumeEntry, ...]] = {}
        self._reading = asyncio.Lock()

    @property
    def history(self) -> History:
        return self._builder.history

    def add(self, events: Sequence[Event], *, stored_bytes: int) -> None:
        self._builder.add(events)
        self.size += stored_bytes + _EVENT_BYTES * len(events)
        for event in events:
            if event.event_type == "interrupt":
                for asked in event.content.get("interrupts") or ():
                    self._calls[str(asked.get("id"))] = str(asked.get("toolCallId") or "")
                self._given_ids |= event.content.get("given_ids") or {}
            elif event.event_type == "resume" and event.run_id:
                with suppress(ValidationError):
                    self._answers[event.run_id] = tuple(_ANSWERS.validate_python(event.content.get("answers")))
        self._builder.finish()

    async def read_on(self, engine: Engine) -> None:
        """Add the events behind the last one that is known."""
        if self.thread_id is None:
            return
        async with self._reading:
            after = self.history.last_sequence
            async for page in engine.sessions.log.iterate_pages(self.thread_id, after=after, only_shown=True):
                # Another task may have added some of them since.
                events = [event for event in page.events if (event.sequence_num or 0) > self.history.last_sequence]
                self.add(events, stored_bytes=page.size)

    def answers_of(self, run_id: str) -> tuple[ResumeEntry, ...]:
        """Return the last answers that a run got."""
        return self._answers.get(run_id, ())

    def ask(self, interrupts: Sequence[Interrupt]) -> tuple[list[Interrupt], dict[str, str]]:
        """Return questions under ids that are unique in the thread, and the agent's ids of those with another one.

        Agents may ask every question under one id: LangGraph does for the questions of one node.
        """
        asked: list[Interrupt] = []
        given_ids: dict[str, str] = {}
        taken = set(self._calls)
        for interrupt in interrupts:
            name = interrupt.id
            if not name or "," in name or name in taken:
                name = str(new_id())
                given_ids[name] = interrupt.id
            taken.add(name)
            asked.append(interrupt.model_copy(update={"id": name}))
        return asked, given_ids

    def as_given(self, entry: ResumeEntry) -> ResumeEntry:
        """Return an answer under the id under which the agent asked."""
        given = self._given_ids.get(entry.interrupt_id, entry.interrupt_id)
        return entry.model_copy(update={"interrupt_id": given})

    def calls_of(self, resume: Sequence[ResumeEntry]) -> list[str]:
        """Return the calls about which the answered interrupts ask: their results come from the agent."""
        return [call for entry in resume if (call := self._calls.get(entry.interrupt_id))]


class ConversationCache:
    """The conversations of the threads that were used last, bounded by their size.

    A conversation that would take more than a quarter of the cache is left out. A cached conversation is never trusted
    to be current: `start_hosted_run` compares the head of the thread.
    """

    def __init__(self, *, size: int = 32 * 1024 * 1024) -> None:
        self._largest = size // 4
        self._entries: LRUCache[ThreadKey, Conversation] = LRUCache(size, getsizeof=lambda entry: entry.size)

    def get(self, key: ThreadKey) -> Conversation | None:
        return self._entries.get(key)

    def put(self, key: ThreadKey, conversation: Conversation) -> None:
        """Keep a conversation under its size at this moment: put it again when it has grown."""
        self.drop(key)
        if conversation.size <= self._largest:
            self._entries[key] = conversation

    def drop(self, key: ThreadKey) -> None:
        self._entries.pop(key, None)


@dataclass(frozen=True)
class ThreadTurn(Turn):
    """A turn on a thread whose history the host keeps.

    `waiting_calls` are the tool calls about which the interrupts that `resume` answers have asked: the agent itself
    brings their results. `is_stored`: an earlier attempt of the run stored the answers; the agent may have applied
    them, too. `put` puts the conversation where the next turn finds it, `keep` completes it with the events of the run
    before that.
    """

    conversation: Conversation = field(default_factory=Conversation)
    resume: Sequence[ResumeEntry] = ()
    waiting_calls: Sequence[str] = ()
    is_stored: bool = False
    put: Callable[[Conversation], None] | None = None
    keep: Callable[[Conversation, bool], Awaitable[None]] | None = None
    drop: Callable[[], None] | None = None
    is_branched: bool = False

    @property
    def history(self) -> History:
        return self.conversation.history

    @override
    def begun(self, session: Session, *, is_branched: bool) -> ThreadTurn:
        self.conversation.thread_id = UUID(session.thread_id)
        if not is_branched and self.history.last_sequence == self.expected_sequence:
            # No other event came in between: PostgreSQL compared the head.
            stored_bytes = sum(text_bytes(dump_json(event.content)) for event in self.events)
            self.conversation.add(self.events, stored_bytes=stored_bytes)
            self.history.last_sequence = session.last_sequence
            if self.put is not None:
                self.put(self.conversation)
        return replace(self, thread_id=self.conversation.thread_id, is_branched=is_branched)

    @override
    def forget(self) -> None:
        if self.drop is not None:
            self.drop()

    @override
    def answer_to(self, interrupt_id: str) -> ResumeEntry | None:
        return next((entry for entry in self.resume if entry.interrupt_id == interrupt_id), None)

    @override
    async def prepare(self, engine: Engine) -> None:
        if self.is_branched or self.expected_sequence is None:
            await self.conversation.read_on(engine)

    @override
    async def close(self) -> None:
        if self.keep is not None:
            await self.keep(self.conversation, self.is_branched)


class ThreadTurns:
    """Reads the turns of one agent's threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cache = ConversationCache()

    async def read(
        self, key: ThreadKey, run_input: RunAgentInput, *, is_end_user: bool, thread_id: UUID | None
    ) -> ThreadTurn:
        """Return the new part of an input on a thread; without a `thread_id` of one that is cached, or new."""
        conversation = self._cache.get(key)
        if thread_id is not None:
            if conversation is None or conversation.thread_id != thread_id:
                conversation = Conversation(thread_id)
            await conversation.read_on(self._engine)
            self._cache.drop(key)
            return self._turn(key, run_input, conversation, is_end_user=is_end_user)
        try:
            return self._turn(
                key,
                run_input,
                conversation or Conversation(),
                is_end_user=is_end_user,
                is_cached=conversation is not None,
            )
        except InvalidInputError:
            # Perhaps not on the thread as it is now.
            session = await self._engine.sessions.get(*key)
            if session is None:
                raise
            found = thread_uuid(session.thread_id)
            self._cache.drop(key)
            return await self.read(key, run_input, is_end_user=is_end_user, thread_id=found)

    def _turn(
        self,
        key: ThreadKey,
        run_input: RunAgentInput,
        conversation: Conversation,
        *,
        is_end_user: bool,
        is_cached: bool = False,
    ) -> ThreadTurn:
        history, resume = conversation.history, tuple(run_input.resume or ())
        check_answers(resume, _questions(history))
        new = _new_messages(run_input.messages, history)
        if not new and not resume:
            new = _asked_again(run_input.messages, history)
        earlier: list[Message] = []
        # Also a thread whose first input was interrupted while an earlier version stored its history.
        if all(message["id"] in history.client_history for message in history.snapshot.messages):
            earlier = messages_before(run_input.messages, new, stored=history.client_history)
        brought = history_events(earlier, agent=key[0], is_end_user=is_end_user)
        return ThreadTurn(
            conversation.thread_id,
            new_messages=[*marked(earlier, is_end_user=is_end_user), *new],
            initial_state=client_state_delta(run_input.state, {}),
            events=[*_answer_events(resume), *brought, *_message_events(new)],
            expected_sequence=history.last_sequence,
            is_cached=is_cached,
            answers_wait=bool(resume) and any(wait_of(interrupt) for interrupt in history.interrupts),
            conversation=conversation,
            resume=resume,
            waiting_calls=conversation.calls_of(resume),
            put=partial(self._cache.put, key),
            keep=partial(self._keep, key),
            drop=partial(self._cache.drop, key),
        )

    async def _keep(self, key: ThreadKey, conversation: Conversation, is_branched: bool) -> None:
        await conversation.read_on(self._engine)
        if is_branched:
            self._cache.drop(key)
        else:
            self._cache.put(key, conversation)

    async def read_continuation(self, thread_id: UUID, run_id: str, resumption: Resumption | None) -> ThreadTurn:
        """Return the turn with which another attempt continues a run: with the answers that a signal brought, else with
        those that an earlier attempt of the run stored."""
        conversation = Conversation(thread_id)
        await conversation.read_on(self._engine)
        questions = _questions(conversation.history)
        brought = signalled_answers(resumption, questions)
        check_answers(brought, questions)
        answers = tuple(brought) or conversation.answers_of(run_id)
        return ThreadTurn(
            thread_id,
            events=list(_answer_events(brought)),
            conversation=conversation,
            resume=answers,
            waiting_calls=conversation.calls_of(answers),
            is_stored=bool(answers and not brought),
        )


def signalled_answers(resumption: Resumption | None, questions: Collection[str]) -> list[ResumeEntry]:
    """Return the answers with which a signal ended the wait for the open questions; none without one.

    The payload of the signal is the answer to the question; for several questions it maps their ids to answers.
    `InvalidInputError` when it does not answer them.
    """
    if resumption is None or not questions or resumption.correlation_key != wait_key_of(questions):
        return []
    answers = resumption.payload if len(questions) > 1 else dict.fromkeys(questions, resumption.payload)
    if not isinstance(answers, dict):
        raise InvalidInputError(f"the payload must map each of {', '.join(sorted(questions))} to its answer")
    return [ResumeEntry(interrupt_id=one, status="resolved", payload=given) for one, given in answers.items()]


def check_answers(resume: Sequence[ResumeEntry], questions: Collection[str]) -> None:
    """Raise `InvalidInputError` unless the answers are those to all open questions, or none."""
    asked, given = set(questions), {entry.interrupt_id for entry in resume}
    if unknown := given - asked:
        raise InvalidInputError(f"no question {', '.join(sorted(unknown))} is open; connect again")
    if resume and (missing := asked - given):
        raise InvalidInputError(f"resume must answer every open interrupt; {', '.join(sorted(missing))} is missing")


async def read_thread_messages(engine: Engine, thread_id: UUID) -> list[Message]:
    """Return the conversation of a thread as an agent gets it; none if there is no such thread."""
    conversation = Conversation(thread_id)
    await conversation.read_on(engine)
    return _MESSAGES.validate_python(list(_complete_calls(ThreadTurn(thread_id, conversation=conversation))))


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
            "resume": [turn.conversation.as_given(entry) for entry in turn.resume] or None,
        }
    )


def _questions(history: History) -> set[str]:
    return {interrupt.id for interrupt in history.interrupts}


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


def _answer_events(resume: Sequence[ResumeEntry]) -> Iterable[Event]:
    if resume:
        answers = [entry.model_dump(mode="json", by_alias=True) for entry in resume]
        yield _event("resume", {"answered": [entry.interrupt_id for entry in resume], "answers": answers})


def _message_events(messages: Iterable[Message]) -> Iterable[Event]:
    for message in messages:
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
