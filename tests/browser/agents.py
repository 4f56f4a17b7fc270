"""An agent that stops in the middle of a sentence until it is told to go on: for reloads and stop buttons."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

FIRST_HALF = "I think before I go on"
SECOND_HALF = ", and now I have gone on to the end."


class PatientModel(BaseLlm):
    """Says half of it, waits for a file that is named like what the user said, and says the rest."""

    model: str = "patient"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        gate = Path(os.environ["PATIENT_GATES"]) / _said(llm_request)
        for letter in FIRST_HALF:
            yield _response(letter, partial=True)
        while not gate.exists():
            await asyncio.sleep(0.02)
        yield _response(FIRST_HALF + SECOND_HALF)


def _said(llm_request: LlmRequest) -> str:
    return next(part.text for part in llm_request.contents[-1].parts or [] if part.text)


def _response(text: str, *, partial: bool | None = None) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]), partial=partial)


patient = LlmAgent(name="patient", model=PatientModel(), description="Waits in the middle of its answer.")
