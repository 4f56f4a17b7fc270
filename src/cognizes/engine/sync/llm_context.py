"""Build the input of a model from a conversation: the newest messages that fit, tool calls with their results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from cognizes.engine.database import Database
from cognizes.engine.database.documents import dump_json
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import Event, JsonObject
from cognizes.engine.pulse.events import message_role, read_event_page
from cognizes.engine.pulse.session_store import thread_uuid
from cognizes.engine.timeline.event_reading import Call, Result, Text, is_partial, read_parts, unconfirmed_calls
from cognizes.engine.timeline.timeline import END_OF_THREAD

_KINDS = [
    "user_message", "assistant_message", "system_message", "message", "act", "tool_call", "observe", "tool_result",
]  # fmt: skip
_PAGE = 100
_FRAMING_TOKENS = 4


@dataclass(frozen=True)
class LlmContext:
    """Messages in the format of chat models, oldest first, and an estimate of their tokens."""

    messages: list[JsonObject]
    estimated_tokens: int
    is_truncated: bool


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: one per four ASCII characters, one per other character."""
    plain = sum(map(str.isascii, text)) if not text.isascii() else len(text)
    return math.ceil(plain / 4) + len(text) - plain


@dataclass
class _Unit:
    """The unit of truncation: a message, or tool calls with all their results."""

    messages: list[JsonObject] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(_FRAMING_TOKENS + estimate_tokens(_text(message)) for message in self.messages)


async def read_llm_context(
    database: Database, thread_id: str | UUID, *, max_tokens: int, branch: str | None = None
) -> LlmContext:
    """Return the newest messages of a branch within `max_tokens`, from at most `COGNIZES_PAGE_BYTES` of events.

    Calls without results and results without calls are omitted, because models refuse both.
    """
    thread = thread_uuid(thread_id)
    if max_tokens < 1:
        raise InvalidInputError(f"invalid max_tokens {max_tokens}; it must be at least 1")
    newest_first: list[Event] = []
    before = END_OF_THREAD
    room = database.page_bytes
    size = 0
    next_check = max_tokens
    while True:
        page = await read_event_page(
            database, "read_timeline_before", thread, branch, 0, before, _KINDS, limit=_PAGE, max_bytes=room
        )
        newest_first += page.events
        size += page.size
        room -= page.size
        has_ended = not page.has_more or not page.events
        before = newest_first[-1].sequence_num or 0 if newest_first else before
        if not has_ended and room > 0 and size < next_check:
            # A token has at least one byte: these events cannot exceed the limit yet.
            continue
        units = list(_units(reversed(newest_first)))
        # The first part of the oldest unit may be on the next page.
        if has_ended or room <= 0 or sum(unit.tokens for unit in units[1:]) > max_tokens:
            break
        next_check = 2 * size
    if not newest_first and not await database.fetch_value("thread_exists", thread):
        raise NotFoundError(f"there is no context {thread_id}")
    return _fit(units, max_tokens, is_all=has_ended)


def _fit(units: list[_Unit], max_tokens: int, *, is_all: bool) -> LlmContext:
    kept: list[_Unit] = []
    tokens = 0
    for unit in reversed(units):
        if tokens + unit.tokens > max_tokens:
            break
        tokens += unit.tokens
        kept.append(unit)
    messages = [message for unit in reversed(kept) for message in unit.messages]
    return LlmContext(messages, tokens, is_truncated=len(kept) < len(units) or not is_all)


def _units(events: Iterator[Event]) -> Iterator[_Unit]:
    """Group messages into units. Messages between calls and their results follow the unit of the calls."""
    open_calls: _OpenCalls | None = None
    for event in events:
        if is_partial(event):
            continue
        for message in _messages(event):
            if message.get("tool_calls"):
                if open_calls is not None and open_calls.merge(message):
                    continue
                if open_calls is not None:
                    yield from open_calls.units()
                open_calls = _OpenCalls(message)
            elif message["role"] == "tool":
                if open_calls is not None:
                    open_calls.add_result(message)
            elif open_calls is not None and not open_calls.is_answered:
                open_calls.following.append(message)
            else:
                if open_calls is not None:
                    yield from open_calls.units()
                    open_calls = None
                yield _Unit([message])
    if open_calls is not None:
        yield from open_calls.units()


class _OpenCalls:
    def __init__(self, message: JsonObject) -> None:
        self._message = message
        self._results: dict[str, JsonObject] = {}
        self._calls = [call["id"] for call in message["tool_calls"]]
        self.following: list[JsonObject] = []

    @property
    def is_answered(self) -> bool:
        return len(self._results) == len(self._calls)

    def merge(self, message: JsonObject) -> bool:
        """Add parallel calls that were stored as separate events; return False if they are not parallel."""
        if self.is_answered or self.following or message["content"]:
            return False
        self._message = self._message | {"tool_calls": self._message["tool_calls"] + message["tool_calls"]}
        self._calls += [call["id"] for call in message["tool_calls"]]
        return True

    def add_result(self, result: JsonObject) -> None:
        if result["tool_call_id"] in self._calls:
            self._results[result["tool_call_id"]] = result

    def units(self) -> Iterator[_Unit]:
        answered = [call for call in self._message["tool_calls"] if call["id"] in self._results]
        if answered:
            yield _Unit([self._message | {"tool_calls": answered}, *(self._results[call["id"]] for call in answered)])
        elif self._message["content"]:
            yield _Unit([{key: value for key, value in self._message.items() if key != "tool_calls"}])
        for message in self.following:
            yield _Unit([message])


def _messages(event: Event) -> Iterator[JsonObject]:
    """Return the messages of an event: one with text and calls, and one per result."""
    text = ""
    calls: list[JsonObject] = []
    unconfirmed = unconfirmed_calls(event)
    for part in read_parts(event):
        if isinstance(part, Text) and not part.is_thought:
            text += part.text
        elif isinstance(part, Call):
            function = {"name": part.name, "arguments": dump_json(part.arguments)}
            calls.append({"id": part.id, "type": "function", "function": function})
        elif isinstance(part, Result) and part.call_id not in unconfirmed:
            content = part.content if isinstance(part.content, str) else dump_json(part.content)
            yield {"role": "tool", "tool_call_id": part.call_id, "content": content}
    if calls:
        yield {"role": "assistant", "content": text or None, "tool_calls": calls}
    elif text:
        yield {"role": _role(event), "content": text}


def _role(event: Event) -> str:
    if "adk" in event.content:
        return "user" if event.author == "user" else "assistant"
    return message_role(event) or "assistant"


def _text(message: JsonObject) -> str:
    calls = "".join(call["function"]["name"] + call["function"]["arguments"] for call in message.get("tool_calls", ()))
    return (message["content"] or "") + calls
