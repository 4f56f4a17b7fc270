"""HostedAgent: the protocol between the host and an agent of any framework.

The host owns what is the same for all agents: it begins and leases the run, keeps the frames, ends the run, cancels it,
continues it on another server and lets clients re-attach. An adapter reads the client's input and yields AG-UI events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from ag_ui.core import AgentCapabilities as ProtocolCapabilities
from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    HumanInTheLoopCapabilities,
    IdentityCapabilities,
    Message,
    MultimodalCapabilities,
    MultimodalInputCapabilities,
    ResumeEntry,
    RunAgentInput,
    StateCapabilities,
    Tool,
    ToolCallChunkEvent,
    ToolCallStartEvent,
    ToolsCapabilities,
    TransportCapabilities,
)

from cognizes.engine.agui.frames import PREDICT_STATE, now
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.memory import Memory
from cognizes.engine.models import Event, JsonObject, Run, Session, TokenUsage
from cognizes.engine.models import Message as StoredMessage
from cognizes.engine.pulse.events import SESSION, parse_state_prefix
from cognizes.engine.pulse.sessions import RunFence
from cognizes.engine.runs import Resumption, RunSuspended, WaitKind
from cognizes.engine.runs.waits import Resolution, Wait, check_wait, read_resolution
from cognizes.engine.usage import trace_model_call

PROPERTIES = "cognizes"
"""The key of `forwardedProps` with the properties of a request: `{"onDisconnect": "cancel", "onBusy": "queue"}`."""
ThreadKey = tuple[str, str, str]
"""App name, user id, session id."""


def handler_of(agent: str) -> str:
    """Return the handler of an agent's runs: a server of an agent with this name can continue them."""
    return f"agui/{agent}"


@dataclass(frozen=True)
class AgentCapabilities:
    """What an agent can do. The host refuses or ends what the agent cannot do; it does not guess.

    - `resumes_after_crash`: another server continues a run whose server stopped; otherwise the run fails. The agent's
      code may call `RunContext.wait`.
    - `interrupts`: RUN_FINISHED with an interrupt outcome lets the run wait for a person; otherwise the run fails.
    - `client_tools`: the tools of the input are offered to the model.
    - `streams_tool_arguments`: TOOL_CALL_ARGS arrive in fragments.
    - `multimodal`: user messages may contain images, audio and files.
    - `keeps_own_history`: the agent stores its events and streams its chunks itself. The host stores frames of agents
      that do not.

    `own_tools` are the names of tools that the agent has on the server, as far as they are known.
    """

    resumes_after_crash: bool = False
    interrupts: bool = False
    client_tools: bool = False
    streams_tool_arguments: bool = False
    multimodal: bool = False
    keeps_own_history: bool = False
    own_tools: frozenset[str] = frozenset()

    def offered_tools(self, tools: Iterable[Tool] | None) -> list[Tool]:
        """Return the client's tools that the model is offered; a tool of the agent wins over a namesake.

        Only calls of these wait for a result of the client.
        """
        return [tool for tool in tools or () if self.client_tools and tool.name not in self.own_tools]


@dataclass(frozen=True)
class Turn:
    """The new part of a client's input on a thread. Adapters extend it with what their agent needs.

    - `thread_id`: None for a thread that does not exist yet; it is created with `initial_state` when the run begins.
    - `events` are stored in the transaction that begins the run, or before another attempt continues it.
    - `expected_sequence` is the head of the thread from which the turn was computed; None if any head will do.
      `is_cached`: the events up to it come from a cache, which is not used for threads with branches.
    - `answers_wait`: it answers a run that called `RunContext.wait`; the agent's code is called again in another run.
    """

    thread_id: UUID | None = None
    new_messages: Sequence[Message] = ()
    initial_state: JsonObject = field(default_factory=dict)
    events: Sequence[Event] = ()
    expected_sequence: int | None = None
    is_cached: bool = False
    answers_wait: bool = False

    def begun(self, session: Session, *, is_branched: bool) -> Turn:
        """Return the turn of a run that has begun; `session` contains what its events have changed."""
        return replace(self, thread_id=UUID(session.thread_id))

    def forget(self) -> None:
        """Forget what is known of the thread: it was deleted, or shows other events than before."""

    def answer_to(self, interrupt_id: str) -> ResumeEntry | None:
        """Return the answer of the client to an interrupt, if the turn has one."""
        return None

    async def prepare(self, engine: Engine) -> None:
        """Complete what the agent reads of the thread: the run begins, and its events are stored."""

    async def close(self) -> None:
        """Prepare the next turn on the thread: the run has ended."""


@dataclass
class RunContext:
    """What the host gives to an agent for one run.

    The agent's task is cancelled when the run is cancelled or the server stops. `is_released` is true when the run
    continues elsewhere: another server has it or will have it, so this one must not store an end of it. `stopping` is
    set with the cancellation, for code that runs in tasks or threads of its own. `suspended_by` is the wait for which
    the host suspends the run.
    """

    engine: Engine
    run: Run
    session: Session
    fence: RunFence
    turn: Turn
    is_released: bool = field(default=False)
    capabilities: AgentCapabilities = field(default_factory=AgentCapabilities)
    stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    has_recorded_usage: bool = field(default=False, init=False)
    suspended_by: Wait | None = field(default=None, init=False)
    _ended_waits: set[str] = field(default_factory=set, init=False)

    @property
    def thread_id(self) -> UUID:
        return self.fence.thread_id

    @property
    def run_id(self) -> str:
        return self.run.id

    @property
    def state(self) -> JsonObject:
        """Return the state of the session, with `user:` and `app:` keys. Frames of the run change it."""
        return self.session.state

    @property
    def is_continuation(self) -> bool:
        """Return whether the agent's code executed a part before: its server stopped, or its wait is over."""
        return self.fence.attempt > 1 or self.turn.answers_wait

    async def messages(self) -> list[StoredMessage]:
        """Return the messages of the session as they are stored now."""
        return await self.engine.sessions.messages(self.session)

    @property
    def memory(self) -> Memory:
        return self.engine.memory

    async def record_usage(self, usage: TokenUsage, *, usage_id: str, started: int | None = None) -> bool:
        """Count the tokens of one call of a model, once per id. They count also if the run fails or is cancelled.

        The host counts the `usage` of RUN_FINISHED for agents that do not call this. With `started` (`time.time_ns()`)
        the call, which has just ended, is also a span of the trace.
        """
        self.has_recorded_usage = True
        if started is not None:
            conversation_id = str(self.thread_id)
            trace_model_call(usage, started, conversation_id=conversation_id, agent=self.session.app_name)
        return await self.engine.usage.record(self.thread_id, usage, usage_id=usage_id, run_id=self.run.id)

    async def wait(
        self, *, kind: str, correlation_key: str, reason: str | None = None, expires_at: datetime | None = None
    ) -> Any:
        """Wait durably, and return the payload of what ended the wait: a signal, a timer, or the answer of a person.

        The payload of a wait that is over is returned at once. Otherwise the call does not return: the host stores what
        the agent has yielded, the run waits, and clients receive an interrupt with the key as id. After the wait a
        server of the agent calls `run` again from its beginning, with `is_continuation`. Every wait of a run has a key
        of its own, the same in each call. After `expires_at` a timer fires, with None as payload; any other wait fails
        the run. A person who dismisses the question (`resume` with status `cancelled`) answers None.

        `InvalidInputError` for an agent that does not declare `resumes_after_crash`, or that keeps its own history: it
        asks a person by RUN_FINISHED with an interrupt.
        """
        if not self.capabilities.resumes_after_crash or self.capabilities.keeps_own_history:
            raise InvalidInputError(
                "the agent cannot wait, because the host cannot call its code again: declare "
                "AgentCapabilities(resumes_after_crash=True), or yield RUN_FINISHED with an interrupt"
            )
        wait = check_wait(kind=kind, correlation_key=correlation_key, reason=reason, expires_at=expires_at)
        if wait.kind is WaitKind.MESSAGE:
            raise InvalidInputError("a hosted agent gets the next message as its next input; end the run instead")
        if "," in correlation_key:
            raise InvalidInputError(f"the correlation_key {correlation_key!r:.80} must not contain a comma")
        if correlation_key in self._ended_waits:
            raise InvalidInputError(
                f"the run has waited for {correlation_key!r} before; give every wait a key of its own"
            )
        if await self._resolution(wait) is None and not await self._take_answer(wait):
            # Of waits in several tasks the first suspends the run; the others begin when the code is called again.
            self.suspended_by = self.suspended_by or wait
            raise RunSuspended(correlation_key)
        await self.engine.runs.store_wait(self.fence, wait, memory_snapshot=None, suspend=False)
        # A sender with more rights may have replaced the signal.
        ended = await self._resolution(wait)
        assert ended is not None  # noqa: S101 - the wait is marked as ended
        self._ended_waits.add(correlation_key)
        return ended.payload

    async def _resolution(self, wait: Wait) -> Resolution | None:
        return await self.engine.runs.until_available(
            lambda: read_resolution(self.engine._database, self.thread_id, self.run_id, wait)
        )

    async def _take_answer(self, wait: Wait) -> bool:
        """Store the answer with which the next input began this run as the signal that ends the wait, if there is one.

        The run that asked has ended. A later run of the same conversation gets the signals of this one.
        """
        answer = self.turn.answer_to(wait.correlation_key) if wait.kind is WaitKind.HUMAN else None
        if answer is None:
            return False
        await self.engine.runs.signal(
            self.run_id,
            thread_id=self.thread_id,
            correlation_key=wait.correlation_key,
            payload=answer.payload if answer.status == "resolved" else None,
            may_answer=[WaitKind.HUMAN],
        )
        return True


class HostedAgent(Protocol):
    """An agent that a host serves under its name. The name is also the app of its threads."""

    @property
    def name(self) -> str:
        """Return the name in paths and listings."""
        ...

    @property
    def description(self) -> str:
        """Return one sentence for listings."""
        ...

    @property
    def capabilities(self) -> AgentCapabilities:
        """Return what the agent can do."""
        ...

    async def read_turn(
        self, run_input: RunAgentInput, user_id: str, *, is_end_user: bool, thread_id: UUID | None = None
    ) -> Turn:
        """Return the new part of an input.

        Without a `thread_id`, the agent may compute the turn of a new thread: if the thread exists, or its head is not
        the expected one, the host asks again with its id. `InvalidInputError` when there is nothing to answer,
        `PermissionDeniedError` when an end user brings results of tools that run on the server. No run has begun yet.
        """
        ...

    async def read_continuation(
        self, run: Run, run_input: RunAgentInput, session: Session, *, resumption: Resumption | None
    ) -> Turn | None:
        """Return the turn with which another attempt continues a run; None when the agent cannot continue it.

        `resumption` is the end of the wait, when a signal ended it. `InvalidInputError` when its payload does not
        answer the questions of the run.
        """
        ...

    def run(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        """Yield the AG-UI events of a run.

        The host sends RUN_STARTED and the state before, and holds back RUN_FINISHED and RUN_ERROR until the end of the
        run is stored. A generator that ends without them has succeeded; an exception fails the run.
        """
        ...

    async def close(self) -> None:
        """Release the resources of the agent."""
        ...


def client_state_delta(client_state: Any, state: JsonObject) -> JsonObject:
    """Return what a client has changed in the session's own state.

    A client cannot remove keys, because one that has just connected holds none. It cannot write state of the user or of
    the app, because its copy may be older than what others wrote.
    """
    if not isinstance(client_state, dict):
        return {}
    return {
        key: value
        for key, value in client_state.items()
        if parse_state_prefix(key)[0] == SESSION and (key not in state or state[key] != value)
    }


_LIMITS = {
    "resumes_after_crash": "A run whose server is killed fails; its answer until then is kept.",
    "interrupts": "It cannot ask a person and wait for the answer.",
    "client_tools": "It cannot call tools of the client.",
    "streams_tool_arguments": "The arguments of a tool call arrive as a whole.",
    "multimodal": "It reads text only.",
}


def limits_of(agent: HostedAgent) -> list[str]:
    """Return what an agent cannot do, in sentences."""
    return [sentence for name, sentence in _LIMITS.items() if not getattr(agent.capabilities, name)]


def describe_agent(agent: HostedAgent) -> JsonObject:
    """Return an agent for listings."""
    can = agent.capabilities
    return {
        "name": agent.name,
        "description": agent.description,
        "capabilities": {
            "resumesAfterCrash": can.resumes_after_crash,
            "interrupts": can.interrupts,
            "clientTools": can.client_tools,
            "streamsToolArguments": can.streams_tool_arguments,
            "multimodal": can.multimodal,
        },
        "limits": limits_of(agent),
    }


def protocol_capabilities(agent: HostedAgent) -> ProtocolCapabilities:
    """Return the capabilities of an agent in the form of AG-UI 1.0."""
    can = agent.capabilities
    media = MultimodalInputCapabilities(
        image=can.multimodal, audio=can.multimodal, video=can.multimodal, pdf=can.multimodal, file=can.multimodal
    )
    described = describe_agent(agent)
    return ProtocolCapabilities(
        identity=IdentityCapabilities(name=agent.name, description=agent.description),
        transport=TransportCapabilities(
            streaming=True, websocket=False, http_binary=False, push_notifications=False, resumable=True
        ),
        tools=ToolsCapabilities(supported=True, client_provided=can.client_tools),
        state=StateCapabilities(snapshots=True, deltas=True, memory=True, persistent_state=True),
        multimodal=MultimodalCapabilities(input=media),
        human_in_the_loop=HumanInTheLoopCapabilities(supported=can.interrupts, interrupts=can.interrupts),
        custom={PROPERTIES: {**described["capabilities"], "limits": described["limits"]}},
    )


# Predictive state updates: clients show a key of the state while a tool's arguments still arrive. The CUSTOM frame
# `PredictState` precedes the first call of a tool in a run. It names the key of the state and the argument whose
# streamed text predicts it. The state itself changes when the tool writes it.


@dataclass(frozen=True)
class PredictedState:
    """A key of the state that an argument of a tool predicts; without an argument, all arguments together do."""

    state_key: str
    tool: str
    argument: str | None = None

    def document(self) -> JsonObject:
        """Return the mapping in the form that AG-UI clients read."""
        mapping: JsonObject = {"state_key": self.state_key, "tool": self.tool}
        return mapping if self.argument is None else mapping | {"tool_argument": self.argument}


@dataclass(frozen=True)
class ServedAgent:
    """An agent of any framework with options for its server: `cognizes serve --agent module:served`.

    served = ServedAgent(root_agent, predicted_state=[PredictedState("draft", tool="write", argument="text")])
    """

    agent: object
    predicted_state: Sequence[PredictedState] = ()


class PredictingAgent:
    """A hosted agent whose tool calls predict state. Everything else is the agent's own."""

    def __init__(self, agent: HostedAgent, predicted_state: Sequence[PredictedState]) -> None:
        self._agent = agent
        self._by_tool: dict[str, list[JsonObject]] = {}
        for prediction in predicted_state:
            self._by_tool.setdefault(prediction.tool, []).append(prediction.document())

    @property
    def name(self) -> str:
        return self._agent.name

    @property
    def description(self) -> str:
        return self._agent.description

    @property
    def capabilities(self) -> AgentCapabilities:
        return self._agent.capabilities

    async def read_turn(
        self, run_input: RunAgentInput, user_id: str, *, is_end_user: bool, thread_id: UUID | None = None
    ) -> Turn:
        return await self._agent.read_turn(run_input, user_id, is_end_user=is_end_user, thread_id=thread_id)

    async def read_continuation(
        self, run: Run, run_input: RunAgentInput, session: Session, *, resumption: Resumption | None
    ) -> Turn | None:
        return await self._agent.read_continuation(run, run_input, session, resumption=resumption)

    async def run(self, run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        """Yield the events of the agent, with a prediction before the first call of each tool that predicts state."""
        predicted: set[str] = set()
        async with aclosing(self._agent.run(run_input, context)) as frames:
            async for frame in frames:
                if isinstance(frame, ToolCallStartEvent | ToolCallChunkEvent):
                    tool = frame.tool_call_name or ""
                    if tool in self._by_tool and tool not in predicted:
                        predicted.add(tool)
                        yield CustomEvent(name=PREDICT_STATE, value=self._by_tool[tool], timestamp=now())
                yield frame

    async def close(self) -> None:
        await self._agent.close()
