"""Hosts an agent of Pydantic AI. Pydantic AI itself translates its events into AG-UI; the host stores them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast, get_args, get_origin

from ag_ui.core import BaseEvent, RunAgentInput
from pydantic_ai import RunContext as PydanticRunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.ui import StateDeps
from pydantic_ai.ui.ag_ui import AGUIAdapter
from pydantic_ai.usage import RequestUsage

from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.hosting import AgentCapabilities, HostedAgent, RunContext
from cognizes.engine.models import TokenUsage
from cognizes.engine.telemetry import is_tracing
from cognizes.engine.usage import trace_model_call

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
        adapter: AGUIAdapter[Deps, object] = AGUIAdapter(agent=agent, run_input=run_input, include_usage=True)
        stream = cast(
            "AsyncGenerator[BaseEvent, None]",
            adapter.run_stream(deps=make(context), model=_traced_model(agent, context)),
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


def _traced_model(agent: AbstractAgent[Any, object], context: RunContext) -> Model | None:
    """Return the model of an agent with a span for each call; None for the model as it is.

    An agent whose own instrumentation is on has these spans already.
    """
    model = agent.model
    if not is_tracing() or getattr(agent, "instrument", None) or not isinstance(model, Model):
        return None
    return _TracedModel(model, conversation_id=str(context.thread_id), agent=context.session.app_name)


class _TracedModel(WrapperModel):
    """Records a span for each call of a model. Pydantic AI's own spans would repeat those of the host."""

    def __init__(self, wrapped: Model, *, conversation_id: str, agent: str) -> None:
        super().__init__(wrapped)
        self._conversation_id = conversation_id
        self._agent = agent

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        started = time.time_ns()
        response = await super().request(messages, model_settings, model_request_parameters)
        self._trace(response.model_name, response.usage, started)
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
            yield response
            self._trace(response.model_name, response.usage, started)

    def _trace(self, model: str | None, usage: RequestUsage, started: int) -> None:
        counted = TokenUsage(
            model or self.model_name, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens
        )
        trace_model_call(counted, started, conversation_id=self._conversation_id, agent=self._agent)


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
