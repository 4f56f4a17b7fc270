"""Agents of a server with keys: one asks a manager before it refunds, the other reads a session of another app.

The answer of the manager is the result of a long-running tool of the server.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from ag_ui.core import BaseEvent, RunAgentInput, TextMessageContentEvent, TextMessageEndEvent, TextMessageStartEvent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

from cognizes.engine.hosting import RunContext


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


async def curious(run_input: RunAgentInput, context: RunContext) -> AsyncGenerator[BaseEvent, None]:
    """Say what it finds of a session of the app `other`."""
    found = await context.engine.sessions.get("other", "ada", "s")
    yield TextMessageStartEvent(message_id="m", role="assistant")
    yield TextMessageContentEvent(message_id="m", delta=f"found {found}")
    yield TextMessageEndEvent(message_id="m")
