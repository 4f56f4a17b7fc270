"""Hosts a compiled graph of LangGraph: the checkpointer holds the graph's state, the host the conversation."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, cast

from ag_ui.core import (
    AssistantMessage,
    BaseEvent,
    Interrupt,
    Message,
    ResumeEntry,
    RunAgentInput,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    TextPart,
    UserMessage,
)
from ag_ui.core import ToolMessage as AguiToolMessage
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot
from langgraph.types import Interrupt as GraphInterrupt

from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.adapters.langgraph.checkpoint_saver import OpenCheckpointSaver
from cognizes.engine.adapters.langgraph.store import OpenStore
from cognizes.engine.adapters.langgraph.stream_translation import (
    MESSAGES,
    STREAM_MODES,
    GraphTranslator,
    ModelCallSpans,
    state_of,
)
from cognizes.engine.engine import Engine
from cognizes.engine.hosting.agent import AgentCapabilities, HostedAgent, RunContext
from cognizes.engine.hosting.turns import NO_RESULT, ThreadTurn
from cognizes.engine.telemetry import TELEMETRY


def host_graph(graph: Pregel[Any, Any, Any, Any], *, name: str, engine: Engine) -> HostedAgent:
    """Return a compiled graph as a hosted agent.

    A graph that was compiled without a checkpointer gets ours, and another server continues its runs after a crash. A
    checkpointer of the graph's own is kept; whether it survives a crash is not known, so its runs fail then. A graph
    without a store gets ours.

    A graph whose input has `tools`, `copilotkit` or `ag-ui` gets the tools of the client there (`ClientToolKeys`).
    """
    tool_keys = ClientToolKeys(graph)
    keeps_own = isinstance(graph.checkpointer, BaseCheckpointSaver) and not isinstance(
        graph.checkpointer, OpenCheckpointSaver
    )
    ours: dict[str, Any] = {}
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        ours["checkpointer"] = OpenCheckpointSaver(engine=engine, app_name=name)
    if graph.store is None:
        ours["store"] = OpenStore(engine=engine, app_name=name)
    graph = graph.copy(update=ours)
    description = "A LangGraph graph" + (
        f" with its own checkpointer ({type(graph.checkpointer).__name__}); its runs do not continue after a crash."
        if keeps_own
        else " with checkpoints in PostgreSQL."
    )
    if not tool_keys:
        description += " Its state has no key `tools`, so it cannot get the tools of a client."
    return AguiAgent(
        _GraphSource(graph, name=name, tool_keys=tool_keys).events,
        name=name,
        engine=engine,
        description=description,
        capabilities=AgentCapabilities(
            resumes_after_crash=not keeps_own,
            interrupts=True,
            client_tools=bool(tool_keys),
            streams_tool_arguments=True,
            multimodal=True,
            own_tools=frozenset(_tool_names(graph)),
        ),
    )


class _GraphSource:
    """Runs a graph on the thread of a run and yields AG-UI events."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any], *, name: str, tool_keys: ClientToolKeys) -> None:
        self._graph = graph
        self._name = name
        self._tool_keys = tool_keys
        self._input_keys = frozenset(graph.get_input_jsonschema().get("properties", {}))

    async def events(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        config: RunnableConfig = {
            "configurable": {"thread_id": str(context.thread_id), "user_id": context.session.user_id},
            "metadata": {"run_id": context.run.id},
        }
        if TELEMETRY.is_tracing:
            config["callbacks"] = [ModelCallSpans(conversation_id=str(context.thread_id), agent=self._name)]
        stored = await self._graph.aget_state(config)
        if _is_of_run(stored, context) and not stored.tasks:
            # An earlier attempt finished the graph and crashed before it ended the run. `next` omits tasks whose writes
            # are stored while the checkpoint that contains them is not; `tasks` has them.
            return
        answers = {entry.interrupt_id: entry for entry in run_input.resume or ()}
        answer = answers.get(_breakpoint_id(stored))
        if answer is not None and answer.status == "cancelled":
            return
        if answer is None and context.is_continuation and await self._is_at_breakpoint(stored):
            yield _waiting(run_input, [_breakpoint(stored)])
            return
        given = self._graph_input(stored, run_input, context)
        translator = GraphTranslator(known=_known_ids(stored, run_input, given), hidden=self._tool_keys.names)
        stream = self._graph.astream(given, config, stream_mode=STREAM_MODES, subgraphs=True)
        # Closed here, a cancelled graph ends before its run does.
        async with aclosing(cast("AsyncGenerator[Any, None]", stream)) as parts:
            async for namespace, mode, payload in parts:
                for event in translator.translate(namespace, mode, payload):
                    yield event
                await _record_usage(translator, context)
        for event in translator.finish():
            yield event
        await _record_usage(translator, context)
        if translator.interrupts:
            yield _waiting(run_input, [_question(found) for found in translator.interrupts])
        elif translator.is_at_breakpoint and (paused := await self._graph.aget_state(config)).next:
            yield _waiting(run_input, [_breakpoint(paused)])

    async def _is_at_breakpoint(self, stored: StateSnapshot) -> bool:
        """Return whether the graph stopped before the next nodes or after the last ones (`interrupt_before`, `_after`).

        Without an answer it must not go on, also if its server crashed before the run began to wait.
        """
        if stored.next and _includes(self._graph.interrupt_before_nodes, stored.next):
            return True
        if not stored.next or not self._graph.interrupt_after_nodes or stored.parent_config is None:
            return False
        before = await self._graph.aget_state(stored.parent_config)
        return _includes(self._graph.interrupt_after_nodes, before.next)

    def _graph_input(self, stored: StateSnapshot, run_input: RunAgentInput, context: RunContext) -> Any:
        """Return the answers to interrupts, None to continue after a crash, or the new messages and changed state."""
        tools = self._tool_keys.values(stored, run_input)
        if run_input.resume:
            asked = {found.id for task in stored.tasks for found in task.interrupts}
            answers = {entry.interrupt_id: _answer(entry) for entry in run_input.resume if entry.interrupt_id in asked}
            # Without answers: a breakpoint, or an earlier attempt stored what the answers led to.
            return Command(resume=answers or None, update=tools or None) if answers or tools else None
        if _is_of_run(stored, context):
            return None
        state = run_input.state if isinstance(run_input.state, dict) else {}
        before = state_of(stored.values) if isinstance(stored.values, dict) else {}
        given: dict[str, Any] = {
            key: value
            for key, value in state.items()
            if key in self._input_keys - {MESSAGES} - self._tool_keys.names and before.get(key) != value
        }
        if MESSAGES in self._input_keys:
            given[MESSAGES] = self._new_messages(stored, run_input, context)
        return given | tools

    def _new_messages(self, stored: StateSnapshot, run_input: RunAgentInput, context: RunContext) -> list[BaseMessage]:
        """Return what the graph has not seen: all of the conversation, or the messages after the last one it knows.

        The messages of another branch of the thread are replaced, if the graph merges messages by id.
        """
        known = _graph_messages(stored)
        merge = getattr(self._graph.channels.get(MESSAGES), "operator", None)
        if (
            isinstance(context.turn, ThreadTurn)
            and context.turn.is_branched
            and merge is add_messages
            and known
            and known[-1].id not in {message.id for message in run_input.messages}
        ):
            return [RemoveMessage(REMOVE_ALL_MESSAGES), *map(_to_langchain, run_input.messages)]
        messages = run_input.messages if not known else _unknown_messages(known, run_input.messages, context)
        return list(_with_results(known, [_to_langchain(message) for message in messages]))


class ClientToolKeys:
    """The keys of a graph's state in which LangGraph's AG-UI integrations put the tools of a client.

    `tools` is a list of `{name, description, parameters}`, which `bind_tools` accepts; `copilotkit` has it as
    `actions` and `ag-ui` as `tools`, both with the `context` of the input. Clients do not receive these keys as state.
    """

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        properties = graph.get_input_jsonschema().get("properties", {})
        names = {name for name in ("copilotkit", "ag-ui") if name in properties}
        # A key `tools` that is no list has a meaning of its own.
        if "tools" in properties and _may_be_list(properties["tools"]):
            names.add("tools")
        self.names = frozenset(names)

    def __bool__(self) -> bool:
        return bool(self.names)

    def values(self, stored: StateSnapshot, run_input: RunAgentInput) -> dict[str, Any]:
        """Return the new values of the keys; none if the graph never had a tool or a context of a client."""
        before = stored.values if isinstance(stored.values, dict) else {}
        if not run_input.tools and not run_input.context and not any(before.get(name) for name in self.names):
            return {}
        tools = [tool.model_dump(mode="json", exclude_none=True) for tool in run_input.tools or ()]
        context = [item.model_dump(mode="json") for item in run_input.context or ()]
        given: dict[str, Any] = {}
        for name in self.names:
            kept = before.get(name)
            known = kept if isinstance(kept, dict) else {}
            match name:
                case "tools":
                    given[name] = tools
                case "copilotkit":
                    given[name] = {**known, "actions": tools, "context": context}
                case _:
                    given[name] = {**known, "tools": tools, "context": context}
        return given


def _may_be_list(schema: dict[str, Any]) -> bool:
    kinds = [schema, *schema.get("anyOf", ())]
    return any(kind.get("type") == "array" for kind in kinds) or not {"type", "anyOf", "$ref"} & schema.keys()


def _tool_names(graph: Pregel[Any, Any, Any, Any]) -> Iterator[str]:
    """Yield the names of the tools that the nodes of a graph and its subgraphs execute, as far as they are known."""
    for one in (graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))):
        for node in one.nodes.values() if isinstance(one, Pregel) else ():
            if isinstance(node.bound, ToolNode):
                yield from node.bound.tools_by_name


async def _record_usage(translator: GraphTranslator, context: RunContext) -> None:
    # The id of a message is the id of the model call: a graph that continues does not call the model for it again.
    for message_id, usage in translator.take_usage().items():
        await context.record_usage(usage, usage_id=message_id)


def _known_ids(stored: StateSnapshot, run_input: RunAgentInput, given: Any) -> set[str]:
    """Return the ids of the messages before this run, and of those that it gets."""
    new = given.get(MESSAGES, ()) if isinstance(given, dict) else ()
    of_graph = {message.id for message in (*_graph_messages(stored), *new) if message.id}
    return of_graph | {message.id for message in run_input.messages}


def _graph_messages(stored: StateSnapshot) -> list[BaseMessage]:
    messages = stored.values.get(MESSAGES) if isinstance(stored.values, dict) else None
    return [message for message in messages or () if isinstance(message, BaseMessage)]


def _is_of_run(stored: StateSnapshot, context: RunContext) -> bool:
    return (stored.metadata or {}).get("run_id") == context.run.id


def _unknown_messages(
    known: Sequence[BaseMessage], messages: Sequence[Message], context: RunContext
) -> Sequence[Message]:
    """Return the texts of users and the results of clients that the graph lacks; the last text if there are none."""
    ids = {message.id for message in known}
    last = max((place for place, message in enumerate(messages) if message.id in ids), default=None)
    if last is None:
        # The graph replaced its whole history, such as by a summary.
        return context.turn.new_messages
    called = {call["id"] for message in known if isinstance(message, AIMessage) for call in message.tool_calls}
    answered = {
        message.tool_call_id for message in known if isinstance(message, ToolMessage) and not _is_stand_in(message)
    }
    new = [
        message
        for message in messages[last + 1 :]
        if isinstance(message, UserMessage)
        or (
            isinstance(message, AguiToolMessage)
            and message.content != NO_RESULT
            and message.tool_call_id in called - answered
        )
    ]
    if new:
        return new
    asked = max((place for place, message in enumerate(messages) if isinstance(message, AssistantMessage)), default=-1)
    return [message for message in messages[asked + 1 :] if isinstance(message, UserMessage)]


def _with_results(known: Sequence[BaseMessage], new: Sequence[BaseMessage]) -> Iterator[BaseMessage]:
    """Yield new messages such that every call of the graph has one result, because models refuse one without.

    A call of a client tool that the client leaves unanswered gets a result that says so. A result that arrives later
    replaces it: it has the same id.
    """
    results = {message.tool_call_id: message.id for message in known if isinstance(message, ToolMessage)}
    answered = results.keys() | {message.tool_call_id for message in new if isinstance(message, ToolMessage)}
    for message in known:
        for call in message.tool_calls if isinstance(message, AIMessage) else ():
            if call["id"] and call["id"] not in answered:
                yield ToolMessage(NO_RESULT, id=_result_id(call["id"]), tool_call_id=call["id"])
    for message in new:
        if isinstance(message, ToolMessage) and results.get(message.tool_call_id) == _result_id(message.tool_call_id):
            yield message.model_copy(update={"id": _result_id(message.tool_call_id)})
        else:
            yield message


def _is_stand_in(message: ToolMessage) -> bool:
    return message.id == _result_id(message.tool_call_id)


def _result_id(call_id: str) -> str:
    return f"{call_id}/result"


def _to_langchain(message: Message) -> BaseMessage:
    content = _text(message.content)
    match message:
        case UserMessage():
            return HumanMessage(_blocks(message) if isinstance(message.content, list) else content, id=message.id)
        case AssistantMessage():
            calls = [
                {"id": call.id, "name": call.function.name, "args": _arguments(call.function.arguments)}
                for call in message.tool_calls or ()
            ]
            return AIMessage(content, id=message.id, tool_calls=calls)
        case AguiToolMessage():
            return ToolMessage(content, id=message.id, tool_call_id=message.tool_call_id)
        case _:
            return SystemMessage(content, id=message.id)


def _blocks(message: UserMessage) -> list[str | dict[str, Any]]:
    """Return the parts of a message as content blocks of LangChain."""
    blocks: list[str | dict[str, Any]] = []
    for part in message.content:
        if isinstance(part, TextPart):
            blocks.append({"type": "text", "text": part.text})
        elif not isinstance(part, str) and part.source.type != "file":
            block: dict[str, Any] = {"type": "file" if part.type == "document" else part.type}
            block["base64" if part.source.type == "data" else "url"] = part.source.value
            if part.source.mime_type:
                block["mime_type"] = part.source.mime_type
            blocks.append(block)
    return blocks


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part.text for part in content if getattr(part, "type", None) == "text")


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"arguments": text}
    return found if isinstance(found, dict) else {"arguments": found}


def _question(found: GraphInterrupt) -> Interrupt:
    value = found.value
    message = value if isinstance(value, str) else None
    schema = found.response_schema
    return Interrupt(
        id=found.id,
        reason="interrupt",
        message=message,
        response_schema=schema if isinstance(schema, dict) else None,
        metadata=None if message else state_of({"value": value}),
    )


def _answer(entry: ResumeEntry) -> Any:
    """Return what `interrupt()` returns: the payload, or `{"status": "cancelled"}` for a declined question."""
    return {"status": "cancelled"} if entry.status == "cancelled" and entry.payload is None else entry.payload


def _breakpoint_id(stored: StateSnapshot) -> str:
    return f"breakpoint-{stored.config['configurable'].get('checkpoint_id')}"


def _breakpoint(stored: StateSnapshot) -> Interrupt:
    """Return the question of a graph that stops at a static breakpoint; any answer but a cancellation continues it."""
    names = sorted(set(stored.next))
    return Interrupt(
        id=_breakpoint_id(stored),
        reason="breakpoint",
        message=f"The graph stopped before {', '.join(names)}. Continue?",
        metadata={"next": names},
    )


def _includes(nodes: Sequence[str] | str, names: Sequence[str]) -> bool:
    return nodes == "*" or any(name in nodes for name in names)


def _waiting(run_input: RunAgentInput, interrupts: list[Interrupt]) -> RunFinishedEvent:
    return RunFinishedEvent(
        thread_id=run_input.thread_id,
        run_id=run_input.run_id,
        outcome=RunFinishedInterruptOutcome(interrupts=interrupts),
    )
