"""StreamedIds: an ADK plugin that stores messages and tool calls as they were streamed to clients."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from typing_extensions import override

from cognizes.engine.agui.call_arguments import ArgumentsWriter, arranged

_GENERATED = "adk-"
"""Prefix of the ids that ADK makes for calls to which the model gave none."""


@dataclass
class _Call:
    id: str
    name: str
    writer: ArgumentsWriter = field(default_factory=ArgumentsWriter)
    is_open: bool = True


@dataclass
class _Message:
    id: str
    calls: list[_Call] = field(default_factory=list)


class StreamedIds(BasePlugin):
    """Stores a message under the id it was streamed with, and its tool calls with the streamed ids and arguments.

    ADK may give every fragment of a turn its own id and the whole event another one, and the same for calls. Clients
    received the first id, so the whole event gets that one. An event without content, such as an error, is not the
    whole of a message. The arguments of a streamed call keep the order in which clients received them.
    """

    def __init__(self) -> None:
        super().__init__(name="cognizes_streamed_ids")
        self._streaming: dict[tuple[str, str, str], _Message] = {}

    @override
    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Remember the ids of the first fragments, and give them to the whole event."""
        place = (invocation_context.invocation_id, event.author, event.branch or "")
        if event.partial:
            message = self._streaming.setdefault(place, _Message(event.id))
            for call in event.get_function_calls():
                if call.partial_args or call.will_continue:
                    _follow(message, call)
        elif event.content and event.content.parts:
            if whole := self._streaming.pop(place, None):
                event.id = whole.id
                _complete(whole, event.get_function_calls())
        elif (unfinished := self._streaming.get(place)) and unfinished.id == event.id:
            event.id = Event.new_id()

    def forget(self, invocation_id: str) -> None:
        """Forget the unfinished messages of an invocation that ended. ADK does not report cancelled invocations."""
        for place in [place for place in self._streaming if place[0] == invocation_id]:
            del self._streaming[place]


def _follow(message: _Message, fragment: types.FunctionCall) -> None:
    """Add a fragment to its call, and give it the id of the first fragment."""
    call = next((call for call in message.calls if call.id == fragment.id), None)
    latest = message.calls[-1] if message.calls else None
    if call is None and latest and latest.is_open and _is_generated(fragment):
        call = latest if fragment.name in (None, "", latest.name) else None
    if call is None:
        call = _Call(fragment.id or "", fragment.name or "")
        message.calls.append(call)
    fragment.id = call.id
    call.is_open = bool(fragment.will_continue)
    call.writer.write([part.model_dump(exclude_none=True) for part in fragment.partial_args or ()])


def _complete(message: _Message, calls: list[types.FunctionCall]) -> None:
    """Give whole calls the ids and the order of arguments that were streamed."""
    known = {call.id for call in calls}
    for call in calls:
        streamed = next((one for one in message.calls if one.id == call.id), None)
        if streamed is None and _is_generated(call):
            streamed = next((one for one in message.calls if one.id not in known and one.name == call.name), None)
        if streamed is not None:
            message.calls.remove(streamed)
            call.id = streamed.id
            call.args = arranged(call.args, streamed.writer.value)


def _is_generated(call: types.FunctionCall) -> bool:
    return (call.id or _GENERATED).startswith(_GENERATED)
