"""An agent of the OpenAI Agents SDK with a scripted model, no key.

`cognizes serve --agent examples.openai_agents.agent:openai_weather`, or as a script with a session in PostgreSQL:
`python -m examples.openai_agents.agent`.
"""

import asyncio

from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message
from openai.types.responses import ResponseFunctionToolCall

from cognizes.engine.adapters.openai_agents import OpenSession


@function_tool
def look_up(city: str) -> str:
    """Return the weather of a city."""
    return f"It is sunny in {city}."


def call(number: int) -> ResponseFunctionToolCall:
    arguments = '{"city": "Rome"}'
    return ResponseFunctionToolCall(type="function_call", call_id=f"c{number}", name="look_up", arguments=arguments)


# Stands for the model of a provider: in each turn it calls the tool, then answers.
model = ScriptedModel([step for n in range(100) for step in ([call(n)], [assistant_message("It is sunny in Rome.")])])
openai_weather = Agent(name="openai_weather", model=model, tools=[look_up])


async def main() -> None:
    async with OpenSession("conversation-1", app_name="shop", user_id="ada") as session:
        await Runner.run(openai_weather, "The weather in Rome?", session=session)
        print(len(await session.get_items()), "items")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
