"""An ADK app whose tool takes half a minute: long enough to reload the page, or to kill the server."""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types


async def pack_order(order: str) -> dict[str, str]:
    """Packs an order, slowly."""
    await asyncio.sleep(float(os.environ.get("PACKING_SECONDS", "30")))
    return {"packed": order}


class ScriptedModel(BaseLlm):
    """Stands for your model, without a key: it calls the tool, then it answers word by word."""

    model: str = "scripted"

    async def generate_content_async(self, llm_request, stream=False):
        part = llm_request.contents[-1].parts[-1]
        if part.function_response is None:
            call = types.FunctionCall(name="pack_order", args={"order": part.text})
            yield LlmResponse(content=types.Content(role="model", parts=[types.Part(function_call=call)]))
            return
        packed = part.function_response.response["packed"]
        words = f"Done. I packed: {packed}. Anything else?".split(" ")
        for word in words:
            await asyncio.sleep(0.2)
            text = types.Content(role="model", parts=[types.Part(text=word + " ")])
            yield LlmResponse(content=text, partial=True)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=" ".join(words))]))


shop = LlmAgent(name="shop", model=ScriptedModel(), tools=[pack_order])  # your agent: model="gemini-2.5-flash"
app = App(name="shop", root_agent=shop, resumability_config=ResumabilityConfig(is_resumable=True))
