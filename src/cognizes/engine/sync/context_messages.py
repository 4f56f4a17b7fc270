"""Messages as seed 003 shows them: parts, tool calls, a tool's result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from cognizes.engine.database.documents import load_json, unescape_text
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.streams.delta_stream import StreamHead, StreamStatus
from cognizes.engine.timeline.event_reading import Call, Question, Result, read_parts

Parts = list[JsonObject]


@dataclass(frozen=True)
class ContextMessage:
    """A message. One that is being streamed has no content here: its chunks are pulled, from the first one on, so that
    there is one way to its text. `final_sequence` is the number of its last chunk when it was streamed."""

    id: str
    role: str
    content: Parts
    tool_calls: list[JsonObject] | None
    tool_result: JsonObject | None
    message_type: str
    status: StreamStatus
    sequence_num: int | None
    final_sequence: int | None
    created_at: datetime | None

    @property
    def is_finished(self) -> bool:
        """Whether it will never change."""
        return self.status is not StreamStatus.STREAMING


def message_from_row(row: asyncpg.Record) -> ContextMessage:
    """A stored message, or a tool call or result that has no text."""
    text = row["content"]
    content: Parts = [] if text is None else [{"type": "text", "text": unescape_text(text)}]
    calls: list[JsonObject] = []
    result: JsonObject | None = None
    if row["document"] is not None:
        event = Event(row["event_id"], "", "", row["author"], row["event_type"], load_json(row["document"]))
        own_parts = event.content.get("content")
        if isinstance(own_parts, list) and all(isinstance(part, dict) for part in own_parts):
            content = own_parts
        calls, result = _tools(event)
    is_call = row["event_type"] in ("act", "tool_call")
    return ContextMessage(
        id=row["event_id"] if row["id"] is None else row["id"],
        role=row["role"] or ("assistant" if is_call else "tool"),
        content=content,
        tool_calls=calls or None,
        tool_result=result,
        message_type="tool_result" if result else "tool_call" if calls else "text",
        status=StreamStatus(row["status"] or StreamStatus.COMPLETED),
        sequence_num=row["sequence_num"],
        final_sequence=row["final_sequence"],
        created_at=row["created_at"],
    )


def name_tools(messages: Iterable[ContextMessage]) -> None:
    """Give results that do not know their tool its name, where the call is among these messages."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["name"] for call in message.tool_calls or () if call["name"]}
        if message.tool_result is not None and message.tool_result["tool_name"] is None:
            message.tool_result["tool_name"] = names.get(message.tool_result["tool_call_id"])


def message_from_head(head: StreamHead) -> ContextMessage:
    """A message that is being streamed."""
    return ContextMessage(
        id=head.message_id,
        role=head.role,
        content=[],
        tool_calls=None,
        tool_result=None,
        message_type="text",
        status=head.status,
        sequence_num=None,
        final_sequence=None,
        created_at=None,
    )


def _tools(event: Event) -> tuple[list[JsonObject], JsonObject | None]:
    calls: list[JsonObject] = []
    result: JsonObject | None = None
    for part in read_parts(event):
        if isinstance(part, Call | Question):
            calls.append({"id": part.id, "name": part.name, "arguments": part.arguments})
        elif isinstance(part, Result) and result is None:
            result = {
                "tool_call_id": part.call_id,
                "tool_name": part.name or None,
                "content": part.content,
                "is_error": part.is_error,
            }
    return calls, result
