"""An agent whose model thinks, calls a tool and then says a thousand tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

TOKENS = 1000
ANSWER = "".join(f"token {number} " for number in range(TOKENS))


def _response(part: types.Part, *, partial: bool | None = None) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[part]), partial=partial)


class TalkingModel(BaseLlm):
    """Says the same in every turn; asked to `fail`, it raises."""

    model: str = "talking"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        latest = llm_request.contents[-1].parts or []
        if any("fail" in (part.text or "") for part in latest):
            raise RuntimeError("the model is broken")
        if not any(part.function_response for part in latest):
            yield _response(types.Part(text="so much to say", thought=True))
            yield _response(types.Part(function_call=types.FunctionCall(name="search", args={"word": "x"})))
            return
        for number in range(TOKENS):
            yield _response(types.Part(text=f"token {number} "), partial=True)
        yield _response(types.Part(text=ANSWER))


def search(word: str) -> dict[str, str]:
    """Find a word."""
    return {"found": word}


talker = LlmAgent(name="talker", model=TalkingModel(), tools=[search])
