"""Hosts an agent of the OpenAI Agents SDK: translates the events of `Runner.run_streamed` into AG-UI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    ContentPart,
    DataSource,
    Interrupt,
    Message,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    ResumeEntry,
    RunAgentInput,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TextPart,
    Tool,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
    UrlSource,
    UserMessage,
)
from agents import Agent, FunctionTool, Handoff, RunContextWrapper, Runner, RunState, TResponseInputItem
from agents.items import ToolApprovalItem
from agents.stream_events import AgentUpdatedStreamEvent, RawResponsesStreamEvent, RunItemStreamEvent, StreamEvent
from agents.tool_context import ToolContext
from openai.types.responses import ResponseInputFileParam, ResponseInputMessageContentListParam

from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.adapters.conversations import new_event
from cognizes.engine.adapters.openai_agents.items import as_text, item_text
from cognizes.engine.engine import Engine
from cognizes.engine.errors import RunFailedError
from cognizes.engine.hosting import AgentCapabilities, HostedAgent, RunContext
from cognizes.engine.hosting.turns import NO_RESULT
from cognizes.engine.models import UNKNOWN_MODEL, JsonObject, TokenUsage, new_id

CHECKPOINT = "agent_checkpoint"
"""The kind of the event with the state of a run that asks for approvals. No view shows it."""
_APPROVAL = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
_REASONING_DELTAS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


def host_agent(agent: Agent[Any], *, name: str, engine: Engine) -> HostedAgent:
    """Return an agent of the OpenAI Agents SDK for the host.

    The thread is its history. Handoffs are steps. A tool that needs an approval lets the run wait; the answer continues
    from the `RunState` that the thread keeps. The tools of the client are offered to this agent, not to those it hands
    over to. A run whose server stops fails, and its partial answer is kept.
    """
    capabilities = AgentCapabilities(
        interrupts=True,
        client_tools=True,
        streams_tool_arguments=True,
        multimodal=True,
        own_tools=frozenset(_tool_names(agent)),
    )

    async def events(run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        offered = with_client_tools(agent, run_input.tools or ())
        frames = _Frames(agent.name)
        if run_input.resume:
            state = await _answered_state(offered, run_input, context)
            frames.know_calls(state.get_interruptions())
            result = Runner.run_streamed(offered, state)
        else:
            result = Runner.run_streamed(offered, _items(run_input.messages), context=context)
        started = time.time_ns()
        try:
            async for event in result.stream_events():
                for frame in frames.translate(event):
                    yield frame
                if isinstance(event, RawResponsesStreamEvent):
                    if event.data.type == "response.created":
                        started = time.time_ns()
                    elif event.data.type == "response.completed":
                        await _record_usage(event.data.response, context, started)
                        started = time.time_ns()
        finally:
            result.cancel()
            if result.run_loop_task is not None:
                # A cancelled run ends after the tools that it executes.
                await asyncio.wait([result.run_loop_task])
        for frame in frames.finish():
            yield frame
        client_tools = {tool.name for tool in run_input.tools or ()}
        if asked := [item for item in result.interruptions if item.tool_name not in client_tools]:
            yield await _ask(asked, result.to_state(), run_input, context)

    description = agent.handoff_description or f"OpenAI agent {agent.name}"
    return AguiAgent(events, name=name, description=description, capabilities=capabilities, engine=engine)


def _tool_names(agent: Agent[Any]) -> set[str]:
    """Return the names of the tools and handoffs of an agent and of those that it hands over to, as far as known.

    The tools of MCP servers are known while a run executes only.
    """
    names: set[str] = set()
    seen: list[Agent[Any]] = []
    found: list[Any] = [agent]
    while found:
        one = found.pop()
        if isinstance(one, Handoff):
            names.add(one.tool_name)
            one = one._agent_ref() if one._agent_ref is not None else None
        if not isinstance(one, Agent) or any(one is known for known in seen):
            continue
        seen.append(one)
        names |= {tool.name for tool in one.tools} | {Handoff.default_tool_name(one)}
        found += one.handoffs
    return names


async def _ask(
    asked: Sequence[ToolApprovalItem], state: RunState[Any, Any], run_input: RunAgentInput, context: RunContext
) -> RunFinishedEvent:
    """Store the state of a run that asks for approvals, and return its questions."""
    checkpoint = new_event(
        CHECKPOINT,
        author=context.session.app_name,
        content={"openai_run_state": state.to_json(context_serializer=lambda _: {})},
    )
    checkpoint.thread_id, checkpoint.run_id = str(context.thread_id), context.run.id
    await context.engine.sessions.append_to_thread(context.thread_id, checkpoint)
    questions = [
        Interrupt(
            id=f"{checkpoint.id}/{_call_id(item)}",
            reason="tool_call",
            tool_call_id=_call_id(item),
            message=f"Approve {item.tool_name}({item.arguments or ''})?",
            response_schema=_APPROVAL,
        )
        for item in asked
    ]
    outcome = RunFinishedInterruptOutcome(interrupts=questions)
    return RunFinishedEvent(thread_id=run_input.thread_id, run_id=run_input.run_id, outcome=outcome)


async def _answered_state(
    agent: Agent[Any], run_input: RunAgentInput, context: RunContext
) -> RunState[Any, Agent[Any]]:
    """Return the stored state of a run that asked, with the answers; `RunFailedError` for an answer that is none."""
    answers: dict[str, ResumeEntry] = {}
    for entry in run_input.resume or ():
        checkpoint_id, _, call_id = entry.interrupt_id.partition("/")
        answers[call_id] = entry
    stored = await context.engine.sessions.log.find(context.thread_id, checkpoint_id)
    if stored is None or stored.event_type != CHECKPOINT or stored.author != context.session.app_name:
        raise RunFailedError(f"the state of the run that asked ({checkpoint_id!r:.80}) is not in the thread")
    state = await RunState.from_json(
        agent, stored.content["openai_run_state"], context_override=RunContextWrapper(context)
    )
    results = {
        message.tool_call_id: message
        for message in run_input.messages
        if isinstance(message, ToolMessage) and message.content != NO_RESULT
    }
    for item in state.get_interruptions():
        if answer := answers.get(_call_id(item)):
            _apply(answer, state, item)
        elif result := results.get(_call_id(item)):
            # A tool of the client in the same turn: its result is what the model gets.
            state.reject(item, rejection_message=_plain(result.content))
    return state


def _apply(entry: ResumeEntry, state: RunState[Any, Any], item: ToolApprovalItem) -> None:
    given = {"approved": entry.payload} if isinstance(entry.payload, bool) else entry.payload
    if entry.status == "cancelled":
        state.reject(item)
    elif not isinstance(given, dict) or not isinstance(given.get("approved"), bool):
        raise RunFailedError(
            f'the answer to {entry.interrupt_id} must be {{"approved": true or false, "reason": text}}'
        )
    elif given["approved"]:
        state.approve(item)
    else:
        reason = given.get("reason")
        state.reject(item, rejection_message=reason if isinstance(reason, str) and reason else None)


def _call_id(item: ToolApprovalItem) -> str:
    raw = item.raw_item
    found = raw.get("call_id") or raw.get("id") if isinstance(raw, dict) else None
    return str(found or getattr(raw, "call_id", None) or getattr(raw, "id", ""))


def with_client_tools(agent: Agent[Any], tools: Collection[Tool]) -> Agent[Any]:
    """Return an agent that is also offered the tools of a client.

    Each needs an approval, so its call ends the run without a result; the client's next input brings the result.
    """
    if not tools:
        return agent
    added = [
        FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=tool.parameters or {"type": "object", "properties": {}},
            on_invoke_tool=_refuse,
            strict_json_schema=False,
            needs_approval=True,
        )
        for tool in tools
    ]
    return agent.clone(tools=[*agent.tools, *added])


async def _refuse(context: ToolContext[Any], _: str) -> str:
    raise RunFailedError(f"the tool {context.tool_name!r} runs in the client")


async def _record_usage(response: Any, context: RunContext, started: int) -> None:
    """Count the tokens of a response of the model."""
    if (usage := response.usage) is None:
        return
    inputs, outputs = usage.input_tokens_details, usage.output_tokens_details
    counted = TokenUsage(
        response.model or UNKNOWN_MODEL,
        input_tokens=usage.input_tokens or 0,
        output_tokens=usage.output_tokens or 0,
        cached_tokens=(inputs.cached_tokens if inputs else 0) or 0,
        cache_write_tokens=getattr(inputs, "cache_write_tokens", 0) or 0,
        reasoning_tokens=(outputs.reasoning_tokens if outputs else 0) or 0,
    )
    # Models of other providers give every response the same id.
    usage_id = f"{context.run.id}/{new_id()}"
    await context.record_usage(counted, usage_id=usage_id, started=started)


def _items(messages: Sequence[Message]) -> list[TResponseInputItem]:
    return [item for message in messages for item in _items_of(message)]


def _items_of(message: Message) -> Iterator[TResponseInputItem]:
    if isinstance(message, ToolMessage):
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": _plain(message.content)}
    elif isinstance(message, AssistantMessage):
        if text := _plain(message.content):
            yield {"role": "assistant", "content": text}
        for call in message.tool_calls or ():
            function = call.function
            yield {
                "type": "function_call",
                "call_id": call.id,
                "name": function.name,
                "arguments": function.arguments or "{}",
            }
    elif isinstance(message, UserMessage):
        content = message.content
        yield {"role": "user", "content": content if isinstance(content, str) else _inputs(content)}
    elif message.role in ("system", "developer"):
        yield {"role": "system", "content": _plain(message.content)}


def _inputs(parts: Sequence[ContentPart]) -> ResponseInputMessageContentListParam:
    """Return the parts of a message in the form of the Responses API. It takes no video: that becomes a text."""
    inputs: ResponseInputMessageContentListParam = []
    for part in parts:
        if isinstance(part, TextPart):
            inputs.append({"type": "input_text", "text": part.text})
        elif part.source.type == "file":
            inputs.append({"type": "input_file", "file_id": part.source.value})
        elif part.type == "image":
            inputs.append({"type": "input_image", "detail": "auto", "image_url": _url(part.source)})
        elif part.type == "document" and part.source.type == "data":
            name = part.metadata.get("name") if isinstance(part.metadata, dict) else None
            inputs.append({"type": "input_file", "filename": str(name or "file"), "file_data": _url(part.source)})
        elif part.type == "document":
            inputs.append({"type": "input_file", "file_url": part.source.value})
        elif part.type == "audio" and part.source.type == "data":
            kind = "mp3" if "mp" in part.source.mime_type else "wav"
            audio = {"type": "input_audio", "input_audio": {"data": part.source.value, "format": kind}}
            inputs.append(cast("ResponseInputFileParam", audio))
        else:
            inputs.append({"type": "input_text", "text": f"[{part.type} that the model cannot read]"})
    return inputs


def _url(source: DataSource | UrlSource) -> str:
    return source.value if isinstance(source, UrlSource) else f"data:{source.mime_type};base64,{source.value}"


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "".join(text for part in content if isinstance(text := getattr(part, "text", None), str))
    return content if isinstance(content, str) else ""


@dataclass
class _OpenItem:
    """An output item of the model that is being streamed. `kind` is `message`, `call` or `reasoning`."""

    kind: str
    id: str
    has_content: bool = False


class _Frames:
    """Translates the stream of one run. Items that the model did not stream are sent whole."""

    def __init__(self, agent_name: str) -> None:
        self._step = agent_name
        self._has_step = False
        self._open: dict[int, _OpenItem] = {}
        self._calls: set[str] = set()
        self._streamed_messages = 0
        self._streamed_thoughts = 0

    def know_calls(self, items: Iterable[ToolApprovalItem]) -> None:
        """Note the calls that an earlier run made, and whose results this one brings."""
        self._calls |= {_call_id(item) for item in items}

    def translate(self, event: StreamEvent) -> Iterator[BaseEvent]:
        match event:
            case RawResponsesStreamEvent(data=data):
                yield from self._raw(data)
            case RunItemStreamEvent(name=name, item=item):
                yield from self._item(name, item)
            case AgentUpdatedStreamEvent(new_agent=agent):
                if self._has_step:
                    yield StepFinishedEvent(step_name=self._step)
                self._step, self._has_step = agent.name, True
                yield StepStartedEvent(step_name=self._step)

    def finish(self) -> Iterator[BaseEvent]:
        yield from self._close_all()
        if self._has_step:
            self._has_step = False
            yield StepFinishedEvent(step_name=self._step)

    def _raw(self, data: Any) -> Iterator[BaseEvent]:
        match data.type:
            case "response.created":
                yield from self._close_all()
            case "response.output_item.added":
                yield from self._begin(data.output_index, data.item)
            case "response.output_text.delta" | "response.refusal.delta":
                yield from self._delta(data.output_index, "message", data.delta)
            case kind if kind in _REASONING_DELTAS:
                yield from self._delta(data.output_index, "reasoning", data.delta)
            case "response.function_call_arguments.delta":
                yield from self._delta(data.output_index, "call", data.delta)
            case "response.output_item.done":
                if (item := self._open.get(data.output_index)) is not None and not item.has_content:
                    yield from self._delta(data.output_index, item.kind, _whole(data.item))
                yield from self._end(data.output_index)
            case _:
                pass

    def _begin(self, index: int, item: Any) -> Iterator[BaseEvent]:
        yield from self._end(index)
        if item.type == "function_call":
            self._calls.add(item.call_id)
            self._open[index] = _OpenItem("call", item.call_id)
            yield ToolCallStartEvent(tool_call_id=item.call_id, tool_call_name=item.name)
        elif item.type in ("message", "reasoning"):
            self._open[index] = _OpenItem(item.type, str(new_id()))

    def _delta(self, index: int, kind: str, delta: str) -> Iterator[BaseEvent]:
        item = self._open.get(index)
        if not delta:
            return
        if item is None or item.kind != kind:
            if kind == "call":
                return
            yield from self._end(index)
            item = self._open[index] = _OpenItem(kind, str(new_id()))
        if kind == "call":
            item.has_content = True
            yield ToolCallArgsEvent(tool_call_id=item.id, delta=delta)
            return
        if not item.has_content:
            item.has_content = True
            if kind == "message":
                self._streamed_messages += 1
                yield TextMessageStartEvent(message_id=item.id, role="assistant")
            else:
                self._streamed_thoughts += 1
                yield ReasoningStartEvent(message_id=item.id)
                yield ReasoningMessageStartEvent(message_id=item.id, role="reasoning")
        if kind == "message":
            yield TextMessageContentEvent(message_id=item.id, delta=delta)
        else:
            yield ReasoningMessageContentEvent(message_id=item.id, delta=delta)

    def _end(self, index: int) -> Iterator[BaseEvent]:
        item = self._open.pop(index, None)
        if item is None:
            return
        if item.kind == "call":
            yield ToolCallEndEvent(tool_call_id=item.id)
        elif item.has_content and item.kind == "message":
            yield TextMessageEndEvent(message_id=item.id)
        elif item.has_content:
            yield ReasoningMessageEndEvent(message_id=item.id)
            yield ReasoningEndEvent(message_id=item.id)

    def _close_all(self) -> Iterator[BaseEvent]:
        for index in list(self._open):
            yield from self._end(index)

    def _item(self, name: str, item: Any) -> Iterator[BaseEvent]:
        raw: JsonObject = item.to_input_item()
        if name == "message_output_created":
            if self._streamed_messages:
                self._streamed_messages -= 1
            else:
                yield from self._send("message", item_text(raw.get("content")) or "")
        elif name == "reasoning_item_created":
            if self._streamed_thoughts:
                self._streamed_thoughts -= 1
            else:
                yield from self._send("reasoning", item_text(raw.get("summary")) or "")
        elif name in ("tool_called", "handoff_requested"):
            yield from self._call(raw)
        elif name in ("tool_output", "handoff_occured"):
            call_id = raw.get("call_id")
            if isinstance(call_id, str) and call_id in self._calls:
                yield from self._close_all()
                output = raw.get("output")
                yield ToolCallResultEvent(
                    message_id=str(new_id()), tool_call_id=call_id, content=item_text(output) or as_text(output)
                )

    def _send(self, kind: str, text: str) -> Iterator[BaseEvent]:
        yield from self._delta(-1, kind, text)
        yield from self._end(-1)
        if kind == "message" and text:
            self._streamed_messages -= 1
        elif text:
            self._streamed_thoughts -= 1

    def _call(self, raw: JsonObject) -> Iterator[BaseEvent]:
        call_id, name = raw.get("call_id"), raw.get("name")
        if raw.get("type") != "function_call" or not isinstance(call_id, str) or call_id in self._calls:
            return
        self._calls.add(call_id)
        yield ToolCallStartEvent(tool_call_id=call_id, tool_call_name=str(name))
        if arguments := raw.get("arguments"):
            yield ToolCallArgsEvent(tool_call_id=call_id, delta=str(arguments))
        yield ToolCallEndEvent(tool_call_id=call_id)


def _whole(item: Any) -> str:
    """Return the content of an item whose parts were not streamed."""
    if item.type == "function_call":
        return str(item.arguments)
    parts = item.content if item.type == "message" else item.summary
    return "".join(text for part in parts or () if isinstance(text := getattr(part, "text", None), str))
