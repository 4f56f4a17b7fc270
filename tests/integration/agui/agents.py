"""Agents to be hosted by a server under test: each does one thing, the same every time."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from tests.integration.agui.gates import gates_directory, pass_gate

SLOW_WORDS = 40
HELD_AT = 20
SLOW_TEXT = " ".join(f"word{number}" for number in range(SLOW_WORDS))


def _response(*parts: types.Part, partial: bool | None = None) -> LlmResponse:
    usage = None if partial else types.GenerateContentResponseUsageMetadata(prompt_token_count=1)
    return LlmResponse(content=types.Content(role="model", parts=list(parts)), partial=partial, usage_metadata=usage)


def _latest(request: LlmRequest) -> list[types.Part]:
    return request.contents[-1].parts or []


class SlowModel(BaseLlm):
    """Says many words, one at a time; at a gate it stops halfway."""

    model: str = "slow"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for number in range(SLOW_WORDS):
            if number == HELD_AT:
                await pass_gate(str(_latest(llm_request)))
            await asyncio.sleep(0.002)
            yield _response(types.Part(text=("" if number == 0 else " ") + f"word{number}"), partial=True)
        yield _response(types.Part(text=SLOW_TEXT))


class FailingModel(BaseLlm):
    """Breaks off in the middle of a sentence; told to `report`, it reports an error instead of raising one."""

    model: str = "failing"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield _response(types.Part(text="I was about to "), partial=True)
        if "report" in str(_latest(llm_request)):
            yield LlmResponse(error_code="SAFETY", error_message="the answer was blocked")
            return
        raise RuntimeError("the model is out of order")


class TransferringModel(BaseLlm):
    """The root hands over to the poet."""

    model: str = "transferring"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield _response(
            types.Part(function_call=types.FunctionCall(name="transfer_to_agent", args={"agent_name": "poet"}))
        )


class PoetModel(BaseLlm):
    """A short poem."""

    model: str = "poet"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield _response(types.Part(text="A rose "), partial=True)
        yield _response(types.Part(text="A rose is a rose."))


class ColourModel(BaseLlm):
    """Calls the client's tool `pick_colour`, then says what came of it."""

    model: str = "colour"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        responses = [part.function_response for part in _latest(llm_request) if part.function_response]
        if responses:
            yield _response(types.Part(text=f"You picked {(responses[0].response or {}).get('result')}."))
        else:
            yield _response(types.Part(function_call=types.FunctionCall(name="pick_colour", args={"of": "the sky"})))


def forget(tool_context: ToolContext) -> dict[str, Any]:
    """A tool that is never called."""
    return {}


class SteadyModel(BaseLlm):
    """Calls its tool, says half a sentence, and finishes it when the gate is open."""

    model: str = "steady"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        parts = [part for content in llm_request.contents for part in content.parts or []]
        said = next(part.text for part in parts if part.text and "hold " in part.text)
        if not any(part.function_response for part in parts):
            mark = {"name": said.removeprefix("hold ")}
            yield _response(types.Part(function_call=types.FunctionCall(name="note", args=mark)))
            return
        yield _response(types.Part(text="I noted "), partial=True)
        yield _response(types.Part(text="it, "), partial=True)
        await pass_gate(said)
        yield _response(types.Part(text="I noted it, and am done."))


def note(name: str) -> dict[str, Any]:
    """Leaves a mark for every call."""
    with (gates_directory() / f"{name}.calls").open("a") as marks:
        marks.write("called\n")
    return {"noted": True}


slow = LlmAgent(name="slow", model=SlowModel())
failing = LlmAgent(name="failing", model=FailingModel())
team = LlmAgent(
    name="team", model=TransferringModel(), sub_agents=[LlmAgent(name="poet", model=PoetModel(), description="Poems.")]
)
painter = LlmAgent(name="painter", model=ColourModel(), tools=[forget])
with warnings.catch_warnings():
    # ADK calls it experimental.
    warnings.simplefilter("ignore", UserWarning)
    steady = App(
        name="steady",
        root_agent=LlmAgent(name="steady", model=SteadyModel(), tools=[note]),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
