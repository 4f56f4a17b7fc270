"""An agent that asks a manager before it refunds: the answer is the result of a long-running tool of the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types


class CautiousModel(BaseLlm):
    """Calls the tool that the user names, and repeats what the tool answered."""

    model: str = "cautious"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        (part, *_) = llm_request.contents[-1].parts or []
        if part.function_response:
            said = types.Part(text=f"the answer is {part.function_response.response}")
        else:
            said = types.Part(function_call=types.FunctionCall(name=part.text or "", args={}))
        yield LlmResponse(content=types.Content(role="model", parts=[said]))


def ask_manager() -> dict[str, str]:
    """Ask a manager, who answers later."""
    return {"status": "pending"}


cautious = LlmAgent(name="cautious", model=CautiousModel(), tools=[LongRunningFunctionTool(ask_manager)])
