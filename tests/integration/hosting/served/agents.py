"""Agents to be hosted by a server under test: each does one thing, the same every time."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from cognizes.engine.hosting import PredictedState, ServedAgent
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
    """Breaks off in the middle of a sentence; asked to `report`, it reports an error instead of raising one."""

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


class EditorModel(BaseLlm):
    """Streams the arguments of `write_document`, stops halfway at a gate, and says what it wrote."""

    model: str = "editor"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        latest = _latest(llm_request)
        if any(part.function_response for part in latest):
            yield _response(types.Part(text="It is written."))
            return
        yield _response(types.Part(text="I write. "), partial=True)
        yield _response(_call_fragment(name="write_document"), partial=True)
        for number, word in enumerate(DOCUMENT.split(" ")):
            if number == 4:
                await pass_gate(str(latest))
                if "break" in str(latest):
                    raise RuntimeError("the pen broke")
            text = word if number == 0 else f" {word}"
            yield _response(_call_fragment(_argument("$.document", string_value=text)), partial=True)
        yield _response(_call_fragment(_argument("$.meta.pages", number_value=3)), partial=True)
        yield _response(_call_fragment(_argument("$.meta.tags[0]", string_value='a "tag"')), partial=True)
        arguments = {"meta": {"tags": ['a "tag"'], "pages": 3.0}, "document": DOCUMENT}
        call = types.FunctionCall(name="write_document", args=arguments)
        yield _response(types.Part(text="I write. "), types.Part(function_call=call))


DOCUMENT = "Once upon a time there was an “editor” that wrote\nword by word."


def _call_fragment(*arguments: types.PartialArg, name: str | None = None) -> types.Part:
    return types.Part(
        function_call=types.FunctionCall(name=name, partial_args=list(arguments) or None, will_continue=True)
    )


def _argument(path: str, **value: Any) -> types.PartialArg:
    return types.PartialArg(json_path=path, will_continue=True, **value)


def write_document(document: str, meta: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
    """Write the document into the state."""
    tool_context.state["document"] = document
    return {"written": len(document)}


class MirrorModel(BaseLlm):
    """Answers with what it got, as JSON: the instruction, and the role and parts of every content."""

    model: str = "mirror"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = [[content.role, *map(_shown, content.parts or ())] for content in llm_request.contents]
        instruction = llm_request.config.system_instruction
        yield _response(types.Part(text=json.dumps({"instruction": str(instruction), "contents": contents})))


def _shown(part: types.Part) -> str:
    if part.inline_data:
        return f"{part.inline_data.mime_type}:{len(part.inline_data.data or b'')}"
    if part.file_data:
        return f"{part.file_data.mime_type}:{part.file_data.file_uri}"
    if part.function_call:
        return f"call:{part.function_call.name}"
    return f"result:{part.function_response.name}" if part.function_response else str(part.text)


def mirrored_state(context: ReadonlyContext) -> str:
    """Instruct the model with what the client sent: its context, and the key `mood` of its state."""
    return json.dumps({"context": context.state.get("temp:agui_context"), "mood": context.state.get("mood")})


slow = LlmAgent(name="slow", model=SlowModel())
failing = LlmAgent(name="failing", model=FailingModel())
team = LlmAgent(
    name="team", model=TransferringModel(), sub_agents=[LlmAgent(name="poet", model=PoetModel(), description="Poems.")]
)
editor = ServedAgent(
    LlmAgent(name="editor", model=EditorModel(), tools=[write_document]),
    predicted_state=[PredictedState("document", tool="write_document", argument="document")],
)
mirror = LlmAgent(name="mirror", model=MirrorModel(), instruction=mirrored_state)
painter = LlmAgent(name="painter", model=ColourModel(), tools=[forget])
with warnings.catch_warnings():
    # ADK calls it experimental.
    warnings.simplefilter("ignore", UserWarning)
    steady = App(
        name="steady",
        root_agent=LlmAgent(name="steady", model=SteadyModel(), tools=[note]),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
