"""The agent of `hosted.py`, on both sides: its model answers with as many tokens as the message names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


class TokenModel(BaseLlm):
    """Yields tokens as fast as they are taken. Each comes in a turn of the event loop, as from a network."""

    model: str = "tokens"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = llm_request.contents[-1].parts or []
        tokens = [f"word{number} " for number in range(int(parts[0].text or "1"))]
        for token in tokens:
            await asyncio.sleep(0)
            yield _response(token, partial=True)
        yield _response("".join(tokens), partial=False)


def _response(text: str, *, partial: bool) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]), partial=partial)


agent = LlmAgent(name="writer", description="Writes words.", model=TokenModel(), instruction="Write.")
