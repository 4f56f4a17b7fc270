"""Spans of the model calls of a graph, by the callbacks of LangChain, and the tokens that a message reports."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult

from cognizes.engine.models import UNKNOWN_MODEL, TokenUsage
from cognizes.engine.telemetry import model_attributes, record_span
from cognizes.engine.usage import trace_model_call


def usage_of(message: AIMessage, metadata: Mapping[str, Any], before: TokenUsage | None = None) -> TokenUsage | None:
    """Return the tokens of a message, added to those of its earlier parts; None for a part without counts.

    A stream may report the input in its first part and the output in its last.
    """
    found = message.usage_metadata
    if found is None:
        return before
    inputs, outputs = found.get("input_token_details") or {}, found.get("output_token_details") or {}
    named = message.response_metadata.get("model_name") or metadata.get("ls_model_name")
    counts = {
        "input_tokens": found["input_tokens"],
        "output_tokens": found["output_tokens"],
        "cached_tokens": inputs.get("cache_read"),
        "cache_write_tokens": inputs.get("cache_creation"),
        "reasoning_tokens": outputs.get("reasoning"),
    }
    added = {name: max(0, count or 0) + getattr(before, name, 0) for name, count in counts.items()}
    return TokenUsage(str(named) if named else before.model if before else UNKNOWN_MODEL, **added)


class ModelCallSpans(AsyncCallbackHandler):
    """Records a span for each call of a model, a child of the span of the run."""

    def __init__(self, *, conversation_id: str, agent: str) -> None:
        self._conversation_id = conversation_id
        self._agent = agent
        self._calls: dict[UUID, tuple[int, Mapping[str, Any]]] = {}

    async def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self._calls[run_id] = time.time_ns(), metadata or {}

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is None:
            return
        started, metadata = call
        message = getattr(response.generations[0][0], "message", None) if response.generations else None
        usage = usage_of(message, metadata) if isinstance(message, AIMessage) else None
        counted = usage or TokenUsage(str(metadata.get("ls_model_name") or UNKNOWN_MODEL))
        trace_model_call(counted, started, conversation_id=self._conversation_id, agent=self._agent)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if (call := self._calls.pop(run_id, None)) is None:
            return
        started, metadata = call
        model = str(metadata.get("ls_model_name") or UNKNOWN_MODEL)
        attributes = model_attributes(
            model, input_tokens=0, output_tokens=0, conversation_id=self._conversation_id, agent=self._agent
        )
        record_span(f"chat {model}", attributes, started=started, error=f"{type(error).__name__}: {error}")
