"""Plugins of hosted ADK agents: invocations, streamed ids and arguments, client calls, attachments, model names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from typing_extensions import override

from cognizes.engine.adapters.adk.run_input import ClientTool
from cognizes.engine.adapters.adk.session_service import OpenSessionService
from cognizes.engine.agui.call_arguments import ArgumentsWriter, arranged
from cognizes.engine.artifacts.attachments import attachment_id_of
from cognizes.engine.engine import Engine
from cognizes.engine.hosting.inputs import PromptAttachments
from cognizes.engine.hosting.turns import NO_RESULT
from cognizes.engine.models import Session
from cognizes.engine.timeline.event_reading import CLIENT_CALLS

_GENERATED = "adk-"
"""Prefix of the ids that ADK makes for calls to which the model gave none."""


run_invocations: ContextVar[set[str]] = ContextVar("run_invocations")
"""The ids of the invocations of the run that the current task executes, which forgets them at its end."""


class RunInvocations(BasePlugin):
    """Notes the invocations of a run when they begin: its own, and those of agents that it calls as tools.

    ADK does not report cancelled invocations, and one that is cancelled early has yielded no event.
    """

    def __init__(self) -> None:
        super().__init__(name="cognizes_run_invocations")

    @override
    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        # A tool may call another agent in a thread that has not inherited the context.
        if (invocations := run_invocations.get(None)) is not None:
            invocations.add(invocation_context.invocation_id)


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
                renamed = _complete(whole, event.get_function_calls())
                if waiting := event.long_running_tool_ids:
                    event.long_running_tool_ids = {renamed.get(one, one) for one in waiting}
        elif (unfinished := self._streaming.get(place)) and unfinished.id == event.id:
            event.id = Event.new_id()

    def forget(self, invocation_id: str) -> None:
        """Forget the unfinished messages of an invocation that has ended."""
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


def _complete(message: _Message, calls: list[types.FunctionCall]) -> dict[str, str]:
    """Give whole calls the ids and the order of arguments that were streamed; return the new ids by the old ones."""
    known = {call.id for call in calls}
    renamed: dict[str, str] = {}
    for call in calls:
        streamed = next((one for one in message.calls if one.id == call.id), None)
        if streamed is None and _is_generated(call):
            streamed = next((one for one in message.calls if one.id not in known and one.name == call.name), None)
        if streamed is not None:
            message.calls.remove(streamed)
            renamed[call.id or ""] = streamed.id
            call.id = streamed.id
            call.args = arranged(call.args, streamed.writer.value)
    return renamed


def _is_generated(call: types.FunctionCall) -> bool:
    return (call.id or _GENERATED).startswith(_GENERATED)


class ClientCalls(BasePlugin):
    """Notes in events with long-running calls which of them the tools of the client answer, and ends the run there.

    - An end user may bring the results of these only. Names do not tell: a toolset may have a tool of the same name.
    - The tools of the agent that are called beside them are executed; the model is called when it gets all results.
    - A call that the user ignored gets a result in the request of the model: models refuse a call without one.
    """

    def __init__(self) -> None:
        super().__init__(name="cognizes_client_calls")
        self._offered: dict[tuple[str, str], set[str]] = {}
        self._called: set[tuple[str, str]] = set()

    @override
    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Remember the tools of the client that the model may call, and complete the results of the request."""
        llm_request.contents = list(_with_results(llm_request.contents))
        names = {name for name, tool in llm_request.tools_dict.items() if isinstance(tool, ClientTool)}
        if names:
            self._offered[callback_context.invocation_id, callback_context.agent_name] = names

    @override
    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        place = (invocation_context.invocation_id, event.author)
        if place in self._called and event.get_function_responses():
            # ADK's mark of an event after which the agent does not call its model.
            event.actions.skip_summarization = True
        if event.partial or not event.long_running_tool_ids:
            return
        names = self._offered.get(place, set())
        ids = [call.id for call in event.get_function_calls() if call.name in names]
        event.custom_metadata = {**(event.custom_metadata or {}), CLIENT_CALLS: ids}
        if ids:
            self._called.add(place)

    def forget(self, invocation_id: str) -> None:
        """Forget the tools of an invocation that has ended."""
        for key in [key for key in self._offered if key[0] == invocation_id]:
            del self._offered[key]
        self._called = {key for key in self._called if key[0] != invocation_id}


def _with_results(contents: Sequence[types.Content]) -> Iterator[types.Content]:
    """Yield contents with a result for every call that has none. ADK places results behind their calls."""
    contents = list(contents)
    for place, content in enumerate(contents):
        yield content
        calls = [part.function_call for part in content.parts or () if part.function_call]
        if not calls or place + 1 == len(contents):
            continue
        following = contents[place + 1]
        given = [part.function_response for part in following.parts or () if part.function_response]
        later = {
            part.function_response.id
            for other in contents[place + 2 :]
            for part in other.parts or ()
            if part.function_response and part.function_response.id
        }
        missing = [_no_result(call) for call in calls if not _take(given, call) and call.id not in later]
        if not missing:
            continue
        if any(part.function_response for part in following.parts or ()):
            contents[place + 1] = types.Content(role=following.role, parts=[*(following.parts or ()), *missing])
        else:
            yield types.Content(role="user", parts=missing)


def _take(given: list[types.FunctionResponse], call: types.FunctionCall) -> bool:
    """Remove the result of a call; return whether there is one. ADK leaves ids out that models did not give."""
    found = next((one for one in given if one.id == call.id and one.name == call.name), None)
    if found is not None:
        given.remove(found)
    return found is not None


def _no_result(call: types.FunctionCall) -> types.Part:
    response = types.FunctionResponse(id=call.id, name=call.name, response={"error": NO_RESULT})
    return types.Part(function_response=response)


class AttachmentPlugin(BasePlugin):
    """Replaces references to attachments in the requests of a hosted agent by their bytes; events keep the reference.

    Together they have at most `COGNIZES_MAX_ARTIFACT_BYTES`, the newest first; others become a text that names them.
    """

    def __init__(self, open_engine: Callable[[], Awaitable[Engine]]) -> None:
        super().__init__(name="cognizes_attachments")
        self._open_engine = open_engine

    @override
    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Replace the references of all contents, the newest content first."""
        if not any(_attachment_of(part) for content in llm_request.contents for part in content.parts or ()):
            return
        engine = await self._open_engine()
        of_adk = callback_context.session
        session = Session(of_adk.id, of_adk.app_name, of_adk.user_id)
        attachments = PromptAttachments(engine, session, room=engine.settings.max_artifact_bytes)
        for place in range(len(llm_request.contents) - 1, -1, -1):
            content = llm_request.contents[place]
            parts: list[types.Part] = []
            for part in content.parts or ():
                if (attachment_id := _attachment_of(part)) is None:
                    parts.append(part)
                    continue
                read = await attachments.read(attachment_id)
                if isinstance(read, str):
                    parts.append(types.Part(text=read))
                    continue
                found, data = read
                parts.append(types.Part(inline_data=types.Blob(data=data, mime_type=found.mime_type)))
            # The parts of a content are those of the stored event: a copy gets the bytes.
            llm_request.contents[place] = types.Content(role=content.role, parts=parts)


def _attachment_of(part: types.Part) -> str | None:
    uri = part.file_data.file_uri if part.file_data else None
    return attachment_id_of(uri) if uri else None


class ModelNames(BasePlugin):
    """Tells the session service which model an agent calls, because not every model reports its name."""

    def __init__(self, service: OpenSessionService) -> None:
        super().__init__(name="cognizes_model_names")
        self._service = service

    @override
    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        if llm_request.model:
            invocation_id, author = callback_context.invocation_id, callback_context.agent_name
            self._service.note_model(invocation_id, author, llm_request.model)
