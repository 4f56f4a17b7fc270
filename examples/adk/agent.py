"""A Google ADK agent with a scripted model, no key: `cognizes serve --agent examples.adk.agent:app`."""

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types


class ScriptedModel(BaseLlm):
    """Stands for the model of a provider, which you would use here."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        part = (llm_request.contents[-1].parts or [types.Part()])[0]
        if part.function_response is None:
            call = types.Part.from_function_call(name="look_up", args={"city": part.text or ""})
            yield LlmResponse(content=types.ModelContent([call]))
            return
        words = [f"{word} " for word in str((part.function_response.response or {}).get("result")).split()]
        for word in words if stream else []:
            yield LlmResponse(content=types.ModelContent(word), partial=True)
        yield LlmResponse(content=types.ModelContent("".join(words)))


def look_up(city: str) -> str:
    """Return the weather of a city."""
    return f"It is sunny in {city}."


agent = LlmAgent(name="adk_weather", model=ScriptedModel(model="scripted"), tools=[look_up])
# A resumable app continues on another server after kill -9.
app = App(name="adk_weather", root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True))
