"""An agent of Pydantic AI with a scripted model, no key.

`cognizes serve --agent examples.pydantic_ai.agent:pydantic_weather`, or as a script with a conversation in PostgreSQL:
`python -m examples.pydantic_ai.agent`.
"""

import asyncio

from pydantic_ai import Agent, Conversation, DeferredToolRequests
from pydantic_ai.models.test import TestModel

from cognizes.engine.adapters.pydantic_ai import OpenConversationStore

# TestModel stands for the model of a provider: it calls each tool once, then answers with this text.
pydantic_weather = Agent(
    TestModel(custom_output_text="It is sunny in Rome."),
    name="pydantic_weather",
    output_type=[str, DeferredToolRequests],
)


@pydantic_weather.tool_plain(requires_approval=True)
def look_up(city: str) -> str:
    """Return the weather of a city. The run waits until the user approves the call."""
    return f"It is sunny in {city}."


async def main() -> None:
    agent = Agent(TestModel(call_tools=[], custom_output_text="Good morning!"))
    async with OpenConversationStore(app_name="shop") as store:
        conversation = await store.load("42", scope="ada") or Conversation(conversation_id="42")
        await store.save(await agent.run("Hello", conversation=conversation), scope="ada")
        print(len((await store.load_entries("42")) or []), "messages")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main())
