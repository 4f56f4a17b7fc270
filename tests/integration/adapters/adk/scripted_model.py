"""A model with scripted answers: no network, the same every time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import PrivateAttr

Line = str | types.Part | list[types.Part] | Exception


def call(name: str, **arguments: Any) -> types.Part:
    """A function call."""
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


class ScriptedModel(BaseLlm):
    """Answers line by line, and keeps the requests it got."""

    model: str = "scripted"
    _lines: list[Line] = PrivateAttr(default_factory=list)
    _requests: list[LlmRequest] = PrivateAttr(default_factory=list)

    def __init__(self, *lines: Line) -> None:
        super().__init__(model="scripted")
        self._lines = list(lines)

    @property
    def requests(self) -> list[LlmRequest]:
        """What the model was asked."""
        return self._requests

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The next line; streamed, a fragment before the whole."""
        self._requests.append(llm_request)
        line = self._lines.pop(0)
        if isinstance(line, Exception):
            raise line
        parts = [types.Part(text=line)] if isinstance(line, str) else line if isinstance(line, list) else [line]
        if stream and isinstance(line, str):
            yield _response([types.Part(text=line[: len(line) // 2])], partial=True)
        yield _response(parts)


def _response(parts: list[types.Part], *, partial: bool | None = None) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=parts), partial=partial)
