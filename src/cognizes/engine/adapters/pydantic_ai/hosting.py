"""Hosts an agent of Pydantic AI. Pydantic AI itself translates its events into AG-UI; the host stores them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast, get_args, get_origin

from ag_ui.core import BaseEvent, DeveloperMessage, RunAgentInput, SystemMessage
from pydantic_ai import RunContext as PydanticRunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.ui import StateDeps, StateHandler
from pydantic_ai.ui.ag_ui import AGUIAdapter
from pydantic_ai.usage import RequestUsage

from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.hosting import AgentCapabilities, HostedAgent, RunContext
from cognizes.engine.models import TokenUsage, new_id
from cognizes.engine.telemetry import TELEMETRY

Deps = TypeVar("Deps")


def host_agent(
    agent: AbstractAgent[Deps, object],
    *,
    name: str,
    engine: Engine,
    make_deps: Callable[[RunContext], Deps] | None = None,
) -> HostedAgent:
    """Return an agent of Pydantic AI for the host.

    The thread is its history. Tools that need an approval interrupt the run; the client's tools are offered to the
    model. A run whose server stops fails, and its partial answer is kept.

    `make_deps` returns the dependencies of a run. Without it, dependencies of the type `StateDeps[Model]` hold the
    session's state; `SetupError` for any other type of dependencies.
    """
    make = make_deps or _default_deps(agent, name)

    async def events(run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
        deps = make(context)
        # Pydantic AI drops system messages of a client. Those of the thread are not a client's: they are instructions.
        system = [message for message in run_input.messages if isinstance(message, SystemMessage | DeveloperMessage)]
        given = run_input.model_copy(
            update={
                "messages": [message for message in run_input.messages if message not in system],
                # It warns of a state that the dependencies do not take.
                "state": run_input.state if isinstance(deps, StateHandler) else {},
            }
        )
        adapter: AGUIAdapter[Deps, object] = AGUIAdapter(agent=agent, run_input=given, include_usage=True)
        stream = cast(
            "AsyncGenerator[BaseEvent, None]",
            adapter.run_stream(
                deps=deps,
                model=_counted_model(agent, context),
                instructions=[str(message.content) for message in system] or None,
            ),
        )
        async with aclosing(stream) as yielded:
            async for event in yielded:
                yield event

    description = getattr(agent, "description", None)
    return AguiAgent(
        events,
        name=name,
        description=description if isinstance(description, str) else f"Pydantic AI agent {name}",
        capabilities=AgentCapabilities(
            interrupts=True,
            client_tools=True,
            streams_tool_arguments=True,
            multimodal=True,
            own_tools=frozenset(
                tool for toolset in agent.toolsets if isinstance(toolset, FunctionToolset) for tool in toolset.tools
            ),
        ),
        engine=engine,
    )


def _counted_model(agent: AbstractAgent[Any, object], context: RunContext) -> Model | None:
    """Return the model of an agent that counts the tokens of each call; None for an agent without a model."""
    return None if agent.model is None else _CountedModel(infer_model(agent.model), context, agent=agent)


class _CountedModel(WrapperModel):
    """Counts the tokens of each call of a model when the call ends, also if the run fails or is cancelled later.

    A call is a span of the trace, too, unless the agent's own instrumentation is on, which has such spans. The spans of
    Pydantic AI around a run would repeat those of the host.
    """

    def __init__(self, wrapped: Model, context: RunContext, *, agent: AbstractAgent[Any, object]) -> None:
        super().__init__(wrapped)
        self._context = context
        self._is_traced = TELEMETRY.is_tracing and not getattr(agent, "instrument", None)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        started = time.time_ns()
        response = await super().request(messages, model_settings, model_request_parameters)
        await self._count(response.model_name, response.usage, started)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: PydanticRunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        started = time.time_ns()
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as response:
            try:
                yield response
            finally:
                # Also of a call that is cancelled: the tokens that the model has reported until then.
                await self._count(response.model_name, response.usage, started)

    async def _count(self, model: str | None, usage: RequestUsage, started: int) -> None:
        counted = TokenUsage(
            model or self.model_name,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            reasoning_tokens=usage.details.get("reasoning_tokens", 0),
        )
        await self._context.record_usage(
            counted, usage_id=f"{self._context.run.id}/{new_id()}", started=started if self._is_traced else None
        )


def _default_deps(agent: AbstractAgent[Any, object], name: str) -> Callable[[RunContext], Any]:
    kind = agent.deps_type
    if kind in (type(None), None, object):
        return lambda _: None
    if get_origin(kind) is StateDeps:
        (model,) = get_args(kind)
        return lambda _: StateDeps(model())
    raise SetupError(
        f"the agent {name!r} needs dependencies of the type {getattr(kind, '__name__', kind)}; use StateDeps[Model], "
        "or host it with cognizes.engine.adapters.pydantic_ai.host_agent(agent, make_deps=...)"
    )
