"""Agents for the browser tests: one stops within a sentence, two fail at first, one asks two questions at once."""

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
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

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


class FickleModel(BaseLlm):
    """Fails until a file that is named like what the user said exists."""

    model: str = "fickle"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        if not (Path(os.environ["PATIENT_GATES"]) / _said(llm_request)).exists():
            raise RuntimeError("the provider is down")
        yield _response("The provider is back.")


fickle = LlmAgent(name="fickle", model=FickleModel(), description="Fails at first.")


async def answer(state: MessagesState) -> dict[str, object]:
    """Fail until a file that is named like the last message exists."""
    if not (Path(os.environ["PATIENT_GATES"]) / str(state["messages"][-1].content)).exists():
        raise RuntimeError("the provider is down")
    return {"messages": [AIMessage("The provider is back.")]}


fickle_graph = (
    StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END)
).compile(name="fickle_graph")


class ClerkState(MessagesState):
    refund: object
    note: object


async def ask_refund(_: ClerkState) -> dict[str, object]:
    return {"refund": interrupt({"order": 4711, "amount": "300 EUR"})}


async def ask_note(_: ClerkState) -> dict[str, object]:
    return {"note": interrupt("Which note goes onto the invoice?")}


async def close(state: ClerkState) -> dict[str, object]:
    return {"messages": [AIMessage(f"refund: {state['refund']!r}, note: {state['note']!r}")]}


_builder = StateGraph(ClerkState)
_builder.add_node("ask_refund", ask_refund)
_builder.add_node("ask_note", ask_note)
_builder.add_node("close", close)
_builder.add_edge(START, "ask_refund")
_builder.add_edge(START, "ask_note")
_builder.add_edge(["ask_refund", "ask_note"], "close")
_builder.add_edge("close", END)
clerk = _builder.compile(name="clerk")
