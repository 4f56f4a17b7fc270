"""The stream of a graph as AG-UI events: texts, reasoning, tool calls and results, steps, state, interrupts.

It counts the tokens of messages; spans of model calls come from the callbacks of LangChain.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langgraph.types import Interrupt, StreamMode
from pydantic_core import to_json, to_jsonable_python

from cognizes.engine.agui.frames import clean_text
from cognizes.engine.models import UNKNOWN_MODEL, JsonObject, TokenUsage, new_id
from cognizes.engine.telemetry import model_attributes, record_span
from cognizes.engine.usage import trace_model_call

STREAM_MODES: Sequence[StreamMode] = ["messages", "tasks", "updates", "values", "custom"]
"""The modes of `astream` that `GraphTranslator` reads."""
MESSAGES = "messages"
"""The channel of the conversation, which AG-UI has as messages and not as state."""
_CUSTOM_NAME = "langgraph"


@dataclass
class _OpenMessage:
    """A message of a model that is being streamed; `text_id`, `thought_id` and `call_id` name its open parts."""

    id: str
    task: str
    parts: int = 0
    text_id: str | None = None
    thought_id: str | None = None
    call_id: str | None = None
    calls: dict[object, str] = field(default_factory=dict)


class GraphTranslator:
    """Translates the parts that `astream(..., stream_mode=STREAM_MODES, subgraphs=True)` yields.

    `interrupts` are the questions with which the graph stopped; `is_at_breakpoint` if it stopped without one. `known`
    are the ids of messages that clients have, `hidden` the keys of the state that clients do not receive.
    """

    def __init__(self, known: Iterable[str] = (), *, hidden: frozenset[str] = frozenset()) -> None:
        self._hidden = hidden
        self.interrupts: list[Interrupt] = []
        self.is_at_breakpoint = False
        self.usage: dict[str, TokenUsage] = {}
        """The tokens of model calls by the id of their message, until the caller takes them."""
        self._messages: dict[str, _OpenMessage] = {}
        self._complete: set[str] = set(known)
        self._steps: Counter[str] = Counter()
        self._state: JsonObject | None = None

    def translate(self, namespace: tuple[str, ...], mode: str, payload: Any) -> Iterator[BaseEvent]:
        """Yield the events of one part. Steps, state and interrupts are those of the graph itself, not of subgraphs."""
        if mode == "messages":
            message, metadata = payload
            yield from self._message(message, metadata)
        elif mode == "custom":
            yield CustomEvent(name=_CUSTOM_NAME, value=_as_json(payload))
        elif namespace:
            return
        elif mode == "tasks":
            yield from self._task(payload)
        elif mode == "updates" and isinstance(payload, Mapping):
            if (found := payload.get("__interrupt__")) is not None:
                self.interrupts.extend(found)
                self.is_at_breakpoint = not found
        elif mode == "values" and isinstance(payload, Mapping):
            yield from self._unstreamed(payload)
            yield from self._snapshot(payload)

    def finish(self) -> Iterator[BaseEvent]:
        """End what is open."""
        for message in list(self._messages.values()):
            yield from self._close(message)
        for step in self._steps:
            yield StepFinishedEvent(step_name=step)
        self._steps.clear()

    def take_usage(self) -> dict[str, TokenUsage]:
        """Return the tokens of the messages that have ended, by message id, each once."""
        ended = {identity: usage for identity, usage in self.usage.items() if identity in self._complete}
        for identity in ended:
            del self.usage[identity]
        return ended

    def _task(self, payload: Mapping[str, Any]) -> Iterator[BaseEvent]:
        name = payload["name"]
        if "result" not in payload:
            # Parallel tasks of one node are one step.
            self._steps[name] += 1
            if self._steps[name] == 1:
                yield StepStartedEvent(step_name=name)
            return
        for message in [open_ for open_ in self._messages.values() if payload["id"] in open_.task]:
            yield from self._close(message)
        if self._steps[name] > 1:
            self._steps[name] -= 1
        elif name in self._steps:
            del self._steps[name]
            yield StepFinishedEvent(step_name=name)

    def _unstreamed(self, values: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Yield messages of the state that LangGraph did not stream, such as those that a node returns as tuples."""
        messages = values.get(MESSAGES)
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, AIMessage | ToolMessage) and message.id and message.id not in self._messages:
                yield from self._message(message, {})

    def _snapshot(self, values: Mapping[str, Any]) -> Iterator[BaseEvent]:
        state = state_of({key: value for key, value in values.items() if key not in self._hidden})
        if state != self._state and (state or self._state):
            self._state = state
            yield StateSnapshotEvent(snapshot=state)

    def _message(self, message: BaseMessage, metadata: Mapping[str, Any]) -> Iterator[BaseEvent]:
        if message.id is not None and message.id in self._complete:
            return
        if isinstance(message, ToolMessage):
            self._complete.add(message.id or "")
            for open_ in [open_ for open_ in self._messages.values() if message.tool_call_id in open_.calls.values()]:
                yield from self._close(open_)
            yield ToolCallResultEvent(
                message_id=message.id or str(new_id()), tool_call_id=message.tool_call_id, content=message.text
            )
        elif isinstance(message, AIMessage):
            identity = message.id or f"{metadata.get('langgraph_checkpoint_ns')}"
            open_message = self._messages.get(identity)
            if open_message is None:
                task = str(metadata.get("langgraph_checkpoint_ns", ""))
                open_message = self._messages[identity] = _OpenMessage(identity, task)
            yield from self._parts(open_message, message)
            if (usage := usage_of(message, metadata, self.usage.get(identity))) is not None:
                self.usage[identity] = usage
            if not isinstance(message, AIMessageChunk) or message.chunk_position == "last":
                yield from self._close(open_message)

    def _parts(self, open_: _OpenMessage, message: AIMessage) -> Iterator[BaseEvent]:
        if isinstance(message.content, str) and not message.additional_kwargs:
            # Most tokens: the normalized blocks cost several times as much.
            if message.content:
                yield from self._text(open_, message.content)
        else:
            for block in message.content_blocks:
                if block["type"] == "text" and block["text"]:
                    yield from self._text(open_, block["text"])
                elif block["type"] == "reasoning" and (thought := block.get("reasoning")):
                    yield from self._thought(open_, thought)
        if isinstance(message, AIMessageChunk):
            for chunk in message.tool_call_chunks:
                key = chunk["id"] if chunk.get("index") is None else chunk["index"]
                yield from self._call(open_, key, chunk["id"], chunk["name"], chunk["args"])
        else:
            for call in message.tool_calls:
                yield from self._call(open_, call["id"], call["id"], call["name"], to_json(call["args"]).decode())

    def _text(self, open_: _OpenMessage, delta: str) -> Iterator[BaseEvent]:
        if open_.text_id is None:
            yield from self._end_part(open_)
            open_.parts += 1
            # A text behind a tool call of the same message is a message of its own in AG-UI.
            open_.text_id = open_.id if open_.parts == 1 else f"{open_.id}/{open_.parts}"
            yield TextMessageStartEvent(message_id=open_.text_id, role="assistant")
        yield TextMessageContentEvent(message_id=open_.text_id, delta=delta)

    def _thought(self, open_: _OpenMessage, delta: str) -> Iterator[BaseEvent]:
        if open_.thought_id is None:
            yield from self._end_part(open_)
            open_.thought_id = str(new_id())
            yield ReasoningStartEvent(message_id=open_.thought_id)
            yield ReasoningMessageStartEvent(message_id=open_.thought_id, role="reasoning")
        yield ReasoningMessageContentEvent(message_id=open_.thought_id, delta=delta)

    def _call(
        self, open_: _OpenMessage, key: object, call_id: str | None, name: str | None, arguments: str | None
    ) -> Iterator[BaseEvent]:
        known = open_.calls.get(key)
        if known is None or (call_id is not None and call_id != known):
            if not name:
                return
            yield from self._end_part(open_)
            known = open_.calls[key] = open_.call_id = call_id or str(new_id())
            yield ToolCallStartEvent(tool_call_id=known, tool_call_name=name, parent_message_id=open_.id)
        if arguments:
            yield ToolCallArgsEvent(tool_call_id=known, delta=arguments)

    def _end_part(self, open_: _OpenMessage) -> Iterator[BaseEvent]:
        if open_.text_id is not None:
            yield TextMessageEndEvent(message_id=open_.text_id)
        if open_.thought_id is not None:
            yield ReasoningMessageEndEvent(message_id=open_.thought_id)
            yield ReasoningEndEvent(message_id=open_.thought_id)
        if open_.call_id is not None:
            yield ToolCallEndEvent(tool_call_id=open_.call_id)
        open_.text_id = open_.thought_id = open_.call_id = None

    def _close(self, open_: _OpenMessage) -> Iterator[BaseEvent]:
        yield from self._end_part(open_)
        del self._messages[open_.id]
        self._complete.add(open_.id)


def state_of(values: Mapping[str, Any]) -> JsonObject:
    """Return the state of a graph as JSON, without its messages and LangGraph's own keys."""
    return {key: _as_json(value) for key, value in values.items() if key != MESSAGES and not key.startswith("__")}


def _as_json(value: object) -> Any:
    """Return a value as JSON; its text if it has no JSON form, such as a list that contains itself."""
    try:
        return to_jsonable_python(value, fallback=str, inf_nan_mode="constants", bytes_mode="base64")
    except (ValueError, RecursionError):
        return clean_text(repr(value))


def usage_of(message: AIMessage, metadata: Mapping[str, Any], before: TokenUsage | None = None) -> TokenUsage | None:
    """Return the tokens of a message, added to those of its earlier parts; None for a part without counts.

    A stream may report the input in its first part and the output in its last.
    """
    found = message.usage_metadata
    if found is None:
        return before
    inputs, outputs = found.get("input_token_details") or {}, found.get("output_token_details") or {}
    named = message.response_metadata.get("model_name") or metadata.get("ls_model_name")
    counts = {
        "input_tokens": found["input_tokens"],
        "output_tokens": found["output_tokens"],
        "cached_tokens": inputs.get("cache_read"),
        "cache_write_tokens": inputs.get("cache_creation"),
        "reasoning_tokens": outputs.get("reasoning"),
    }
    added = {name: max(0, count or 0) + getattr(before, name, 0) for name, count in counts.items()}
    return TokenUsage(str(named) if named else before.model if before else UNKNOWN_MODEL, **added)


class ModelCallSpans(AsyncCallbackHandler):
    """Records a span for each call of a model, a child of the span of the run."""

    def __init__(self, *, conversation_id: str, agent: str) -> None:
        self._conversation_id = conversation_id
        self._agent = agent
        self._calls: dict[UUID, tuple[int, Mapping[str, Any]]] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._calls[run_id] = time.time_ns(), metadata or {}

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is None:
            return
        started, metadata = call
        message = getattr(response.generations[0][0], "message", None) if response.generations else None
        usage = usage_of(message, metadata) if isinstance(message, AIMessage) else None
        counted = usage or TokenUsage(str(metadata.get("ls_model_name") or UNKNOWN_MODEL))
        trace_model_call(counted, started, conversation_id=self._conversation_id, agent=self._agent)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is None:
            return
        started, metadata = call
        model = str(metadata.get("ls_model_name") or UNKNOWN_MODEL)
        attributes = model_attributes(
            model, input_tokens=0, output_tokens=0, conversation_id=self._conversation_id, agent=self._agent
        )
        record_span(f"chat {model}", attributes, started=started, error=f"{type(error).__name__}: {error}")
