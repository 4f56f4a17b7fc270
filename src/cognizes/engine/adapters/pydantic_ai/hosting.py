"""Hosts an agent of Pydantic AI. Pydantic AI itself translates its events into AG-UI; the host stores them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast, get_args, get_origin

from ag_ui.core import BaseEvent, RunAgentInput
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.ui import StateDeps
from pydantic_ai.ui.ag_ui import AGUIAdapter

from cognizes.engine.adapters.agui import AguiAgent
from cognizes.engine.engine import Engine
from cognizes.engine.errors import SetupError
from cognizes.engine.hosting import AgentCapabilities, HostedAgent, RunContext

Deps = TypeVar("Deps")
_CAPABILITIES = AgentCapabilities(interrupts=True, client_tools=True, streams_tool_arguments=True, multimodal=True)


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
        stream = cast("AsyncGenerator[BaseEvent, None]", adapter.run_stream(deps=make(context)))
        async with aclosing(stream) as yielded:
            async for event in yielded:
                yield event

    description = getattr(agent, "description", None)
    return AguiAgent(
        events,
        name=name,
        description=description if isinstance(description, str) else f"Pydantic AI agent {name}",
        capabilities=_CAPABILITIES,
        engine=engine,
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
