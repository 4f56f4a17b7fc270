"""AguiAgent: hosts any source of AG-UI events. The thread in the database is the history of the agent."""

from __future__ import annotations

import codecs
import inspect
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import ag_ui.core
from ag_ui.core import BaseEvent, RunAgentInput
from pydantic import TypeAdapter, ValidationError

from cognizes.engine.engine import Engine
from cognizes.engine.errors import IllegalFrameError
from cognizes.engine.hosting.agent import AgentCapabilities, RunContext, Turn
from cognizes.engine.hosting.inputs import with_attachments
from cognizes.engine.hosting.turns import ThreadTurn, ThreadTurns, agent_input
from cognizes.engine.models import JsonObject, Run, Session, new_id
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.runs import Resumption

RunFunction = Callable[[RunAgentInput, RunContext], AsyncIterator[BaseEvent]]
"""A function of a run's input and context that yields the AG-UI events of the run."""

_DICT = re.compile(r"(typing\.|collections\.abc\.|t\.)?(dict|Dict|Mapping|MutableMapping)\b")
_EVENT: TypeAdapter[BaseEvent] = TypeAdapter(ag_ui.core.Event)
_THINKING = {
    "THINKING_TEXT_MESSAGE_START": "REASONING_MESSAGE_START",
    "THINKING_TEXT_MESSAGE_CONTENT": "REASONING_MESSAGE_CONTENT",
    "THINKING_TEXT_MESSAGE_END": "REASONING_MESSAGE_END",
    "THINKING_START": "REASONING_START",
    "THINKING_END": "REASONING_END",
}
"""Names before protocol 1.0. These events have no message id."""


class AguiAgent:
    """Serves a source of AG-UI events.

    The source gets the conversation of the thread as `RunAgentInput.messages`, the session's state as `state`, and the
    client's tools, context, forwarded properties and answers to interrupts. The host stores what it yields.
    """

    def __init__(
        self,
        source: RunFunction,
        *,
        name: str,
        engine: Engine,
        description: str = "",
        capabilities: AgentCapabilities | None = None,
    ) -> None:
        self._source = source
        self._engine = engine
        self._turns = ThreadTurns(engine)
        self.name = name
        self.description = description
        self.capabilities = capabilities or AgentCapabilities(
            interrupts=True, client_tools=True, streams_tool_arguments=True, multimodal=True
        )

    async def close(self) -> None:
        """Do nothing: the source has no resources that the host knows."""

    async def read_turn(
        self, run_input: RunAgentInput, user_id: str, *, is_end_user: bool, thread_id: UUID | None = None
    ) -> ThreadTurn:
        """Return the new part of the input. Only calls of client tools wait for a client."""
        key = self.name, user_id, run_input.thread_id
        return await self._turns.read(key, run_input, is_end_user=is_end_user, thread_id=thread_id)

    async def read_continuation(
        self, run: Run, run_input: RunAgentInput, session: Session, *, resumption: Resumption | None
    ) -> Turn | None:
        """Return the turn with a signal's answers, or one that continues a run, if the source can continue runs."""
        turn = await self._turns.read_continuation(thread_uuid(run.thread_id), run.id, resumption)
        return turn if turn.events or self.capabilities.resumes_after_crash else None

    async def run(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        """Yield the events of the source."""
        turn = context.turn
        if not isinstance(turn, ThreadTurn):
            raise TypeError(f"{self.name} runs the turns that it has read, not a {type(turn).__name__}")
        given = agent_input(run_input, context, turn)
        given.tools = self.capabilities.offered_tools(given.tools)
        given.messages = await with_attachments(
            self._engine, context.session, given.messages, is_multimodal=self.capabilities.multimodal
        )
        events = self._source(given, context)
        try:
            async for event in events:
                yield event
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()


def source_of(found: Any) -> RunFunction | None:
    """Return the source of an object with `run`, or of an async generator function; None for anything else.

    Both take a `RunAgentInput`, or a dict if the parameter is annotated so, and the `RunContext`, if they have a second
    required parameter or one that is called `context`. They yield events, JSON objects, or server-sent events as text.
    """
    call = found if inspect.isasyncgenfunction(found) else getattr(found, "run", None)
    if call is None or inspect.isclass(found) or not callable(call):
        return None
    parameters = _parameters(call)
    required = [one for one in parameters if one.default is one.empty and one.kind is not one.KEYWORD_ONLY]
    takes_named_context = any(map(_is_context, parameters[1:]))
    takes_dict = bool(required) and _DICT.match(_annotation(required[0])) is not None

    async def events(run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        given = run_input.model_dump(mode="json", by_alias=True, exclude_none=True) if takes_dict else run_input
        if takes_named_context:
            yielded = call(given, context=context)
        else:
            yielded = call(given, context) if len(required) > 1 else call(given)
        if inspect.isawaitable(yielded):
            yielded = await yielded
        if not hasattr(yielded, "__aiter__"):
            raise TypeError(
                f"the agent returned a {type(yielded).__name__}; `run` must be an async generator of AG-UI events"
            )
        decoder = _Decoder()
        try:
            async for item in yielded:
                if isinstance(item, BaseEvent):
                    yield item
                else:
                    for event in decoder.decode(item):
                        yield event
        finally:
            if hasattr(yielded, "aclose"):
                await yielded.aclose()

    return events


def _parameters(call: Any) -> list[inspect.Parameter]:
    with suppress(ValueError, TypeError):
        variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        return [one for one in inspect.signature(call).parameters.values() if one.kind not in variable]
    return []


def _is_context(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter takes the `RunContext` by name: it may be optional, and must not say another type."""
    if parameter.name != "context" or parameter.kind is parameter.POSITIONAL_ONLY:
        return False
    annotation = inspect.formatannotation(parameter.annotation).strip("'")
    return parameter.annotation is parameter.empty or "RunContext" in annotation or annotation in ("Any", "object")


def _annotation(parameter: inspect.Parameter) -> str:
    """Return an annotation as it is written: modules with postponed annotations have texts."""
    found = parameter.annotation
    return found if isinstance(found, str) else getattr(found, "__name__", "") or str(found)


class _Decoder:
    """Decodes what a source yields instead of events: JSON objects, and server-sent events as text or bytes."""

    def __init__(self) -> None:
        # A chunk may end within a character.
        self._characters = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""
        self._thought = ""

    def decode(self, item: object) -> list[BaseEvent]:
        if isinstance(item, bytes | str):
            self._rest += self._characters.decode(item) if isinstance(item, bytes) else item
            *complete, self._rest = self._rest.replace("\r\n", "\n").split("\n\n")
            return [self._event(json.loads(data)) for data in map(_data, complete) if data]
        if isinstance(item, Mapping):
            return [self._event(dict(item))]
        raise IllegalFrameError(f"the agent yielded a {type(item).__name__}; yield AG-UI events")

    def _event(self, document: Any) -> BaseEvent:
        kind = document.get("type") if isinstance(document, dict) else None
        if kind in _THINKING:
            if kind == "THINKING_TEXT_MESSAGE_START" or not self._thought:
                self._thought = str(new_id())
            document = {**document, "type": _THINKING[kind], "messageId": self._thought}
        try:
            return _EVENT.validate_python(_without_nulls(document))
        except ValidationError as error:
            raise IllegalFrameError(f"the agent yielded no valid AG-UI event of type {kind!r:.80}: {error}") from error


def _data(event: str) -> str:
    return "\n".join(line[5:].removeprefix(" ") for line in event.split("\n") if line.startswith("data:"))


def _without_nulls(document: Any) -> Any:
    """Return an event without absent fields: producers before protocol 1.0 write them as null."""
    if not isinstance(document, dict):
        return document
    kept: JsonObject = {key: value for key, value in document.items() if value is not None or key in ("value", "event")}
    return kept
