"""Hosted agents of Pydantic AI: what of the thread and the session their model gets."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from uuid import uuid4

from ag_ui.core import RunAgentInput, RunErrorEvent, UserMessage
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cognizes.engine import Engine
from cognizes.engine.adapters.pydantic_ai.hosting import host_agent
from cognizes.engine.hosting import AgentHost


async def test_system_messages_of_the_thread_are_instructions_and_state_warns_of_nothing(engine: Engine) -> None:
    given: list[tuple[str, str]] = []

    async def model(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        given.append((str(messages), info.instructions or ""))
        yield "hello"

    agent = Agent(FunctionModel(stream_function=model), system_prompt="You are polite.")
    host = AgentHost(engine, [host_agent(agent, name="polite", engine=engine)])
    session = await engine.sessions.create("polite", "ada", state={"language": "en"})
    await engine.sessions.append(session, author="system", kind="system_message", text="Answer in Latin.")
    run_input = RunAgentInput(
        thread_id=session.id, run_id=str(uuid4()), state={}, messages=[UserMessage(id="u", content="hi")], tools=[],
        context=[], forwarded_props={},
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = await host.run("polite", "ada", run_input)
        frames = [frame async for _, frame in host.watch(run)]
    assert not isinstance(frames[-1], RunErrorEvent), frames[-1]
    [(messages, instructions)] = given
    assert "You are polite." in messages
    assert "Answer in Latin." in instructions
    await host.close(seconds=0)
