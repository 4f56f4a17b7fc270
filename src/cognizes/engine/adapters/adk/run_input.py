"""Reads a client's input for ADK: messages, results of client tools, answers to questions, and the client's tools."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from ag_ui.core import (
    AssistantMessage,
    Message,
    ResumeEntry,
    RunAgentInput,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from typing_extensions import override

from cognizes.engine.agui.translator import CONFIRMATION
from cognizes.engine.errors import InvalidInputError, PermissionDeniedError
from cognizes.engine.hosting.inputs import marked, messages_before, quoted
from cognizes.engine.hosting.turns import check_answers
from cognizes.engine.models import JsonObject
from cognizes.engine.timeline.event_reading import CLIENT_CALLS, CLIENT_HISTORY, REQUEST_PREFIX


@dataclass
class OpenCalls:
    """The long-running calls of a session without a result: their names by id.

    `of_agent` are the ids of those that are known to be calls of the agent's own tools, `of_client` the events of those
    that are known to be calls of the client's.
    """

    questions: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    of_agent: set[str] = field(default_factory=set)
    of_client: dict[str, Event] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> OpenCalls:
        calls = cls()
        for event in events:
            if event.author == "user":
                calls._close(event)
            marked_calls = (event.custom_metadata or {}).get(CLIENT_CALLS)
            for call in event.get_function_calls():
                if call.id and call.name and call.id in (event.long_running_tool_ids or ()):
                    if isinstance(marked_calls, list) and call.id in marked_calls:
                        calls.of_client[call.id] = event
                    elif isinstance(marked_calls, list):
                        calls.of_agent.add(call.id)
                    kind = calls.questions if call.name.startswith(REQUEST_PREFIX) else calls.tools
                    kind[call.id] = call.name
        return calls

    def _close(self, event: Event) -> None:
        for response in event.get_function_responses():
            self.questions.pop(response.id or "", None)
            self.tools.pop(response.id or "", None)
            self.of_client.pop(response.id or "", None)
        if any(part.text for part in (event.content and event.content.parts) or ()):
            # A text instead of an answer abandons the questions. The result of a tool may still come.
            self.questions.clear()
            self.of_client.clear()


@dataclass(frozen=True)
class UserTurn:
    """The new part of an input. `earlier` messages precede `content`, which the agent answers.

    `history` are the events of an earlier conversation that the client brings into a new session. `waiting_event` is
    the event of calls that wait for further results of the client: the agent answers when it has all of them. `pending`
    are the ids of all calls that wait after this turn.
    """

    content: types.Content
    message_id: str | None
    earlier: list[tuple[str, types.Content]]
    new_messages: list[Message]
    history: list[Event] = field(default_factory=list)
    waiting_event: Event | None = None
    pending: list[str] = field(default_factory=list)


def read_turn(
    run_input: RunAgentInput,
    events: Sequence[Event],
    *,
    reserved: Set[str] | None = None,
    agent: str = "",
    is_end_user: bool = True,
) -> UserTurn:
    """Return the user's turn in a session that has these events; `InvalidInputError` when there is nothing to answer.

    `PermissionDeniedError` for the result of a call of the agent's own tools, some of which are `reserved` by name;
    with None the caller brings any result. A session without events also takes the history of the client, as messages
    of `agent`.
    """
    if taken := [tool.name for tool in run_input.tools or () if tool.name.startswith(REQUEST_PREFIX)]:
        raise InvalidInputError(f"ADK asks people by functions with names such as {taken[0]!r:.80}; rename the tool")
    turn = _read_new(run_input, events, reserved)
    # Also a session whose first input was interrupted while its history was stored.
    if not all((event.custom_metadata or {}).get(CLIENT_HISTORY) for event in events):
        return turn
    earlier = messages_before(run_input.messages, turn.new_messages, stored={event.id for event in events})
    history = list(_history(earlier, agent=agent, is_end_user=is_end_user))
    brought = marked(earlier, is_end_user=is_end_user)
    return replace(turn, history=history, new_messages=[*brought, *turn.new_messages])


def _read_new(run_input: RunAgentInput, events: Sequence[Event], reserved: Set[str] | None) -> UserTurn:
    calls = OpenCalls.of(events)
    new = [
        message
        for message in _new_messages(run_input.messages, {event.id for event in events})
        # Observers must not receive a result that answers no open call: the client made it up.
        if not isinstance(message, ToolMessage) or message.tool_call_id in calls.tools
    ]
    said = [(message.id, _content(message)) for message in new if isinstance(message, UserMessage)]
    results = [message for message in new if isinstance(message, ToolMessage)]
    claimed = {
        calls.tools[message.tool_call_id]
        for message in results
        if reserved is not None
        and (message.tool_call_id in calls.of_agent or calls.tools[message.tool_call_id] in reserved)
    }
    if claimed:
        raise PermissionDeniedError(
            f"the result of the tool {', '.join(sorted(claimed))} comes from a key that is bound to no user"
        )
    resume = run_input.resume or []
    check_answers(resume, calls.questions)
    answers = [_answer(entry, calls.questions[entry.interrupt_id]) for entry in resume]
    answers += [_tool_result(message, calls.tools[message.tool_call_id]) for message in results]
    if answers:
        message_id = results[0].id if results and not run_input.resume else None
        given = {message.tool_call_id for message in results}
        answered = {calls.of_client[one].id for one in given if one in calls.of_client}
        rest = [event for one, event in calls.of_client.items() if one not in given and event.id in answered]
        return UserTurn(
            types.Content(role="user", parts=answers),
            message_id,
            said,
            new,
            waiting_event=rest[0] if rest and not said and not run_input.resume else None,
            pending=[] if said else [one for one in calls.tools if one not in given],
        )
    if said:
        message_id, content = said.pop()
        return UserTurn(content, message_id, said, new)
    again = run_input.messages[-1] if run_input.messages else None
    if isinstance(again, UserMessage):
        # The client asks again. The log is never rewritten, so the question is stored twice.
        return UserTurn(_content(again), None, [], [])
    raise InvalidInputError("there is nothing to answer: the input has no new user message, tool result or resume")


def _history(messages: Sequence[Message], *, agent: str, is_end_user: bool) -> Iterator[Event]:
    """Yield the events of a client's history: in their roles, or quoted by the user if an end user brings them."""
    names = {
        call.id: call.function.name
        for message in messages
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls or ()
    }
    for message in messages:
        author, role = "user", "user"
        mark: JsonObject | bool = message.model_dump(mode="json", by_alias=True)
        if isinstance(message, UserMessage):
            mark, parts = True, _content(message).parts or []
        elif isinstance(message, AssistantMessage) and not is_end_user:
            author, role = agent, "model"
            parts = [types.Part(text=message.content)] if message.content else []
            parts += [_call(call) for call in message.tool_calls or ()]
        elif isinstance(message, ToolMessage) and not is_end_user and message.tool_call_id in names:
            author, parts = agent, [_tool_result(message, names[message.tool_call_id])]
        else:
            # ADK's history has no system messages, and no results without a call.
            parts = [types.Part(text=quoted(message))]
        yield Event(
            id=message.id,
            author=author,
            content=types.Content(role=role, parts=parts),
            custom_metadata={CLIENT_HISTORY: mark},
        )


def _call(call: ToolCall) -> types.Part:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = {"arguments": call.function.arguments}
    args = arguments if isinstance(arguments, dict) else {"arguments": arguments}
    return types.Part(function_call=types.FunctionCall(id=call.id, name=call.function.name, args=args))


def _new_messages(messages: Sequence[Message], known_ids: set[str]) -> list[Message]:
    """Return the messages behind the last one that is stored or not written by the client."""
    new: list[Message] = []
    for message in reversed(messages):
        if message.id in known_ids or not isinstance(message, UserMessage | ToolMessage):
            break
        new.append(message)
    return new[::-1]


def _answer(entry: ResumeEntry, name: str) -> types.Part:
    payload = entry.payload
    response: JsonObject
    if name == CONFIRMATION:
        response = {"confirmed": False} if entry.status == "cancelled" else _confirmation(entry)
    elif isinstance(payload, dict):
        response = payload
    elif entry.status == "cancelled":
        response = {"result": payload, "status": entry.status}
    else:
        # ADK unwraps this form: a workflow gets the payload itself.
        response = {"result": payload}
    return types.Part(function_response=types.FunctionResponse(id=entry.interrupt_id, name=name, response=response))


def _confirmation(entry: ResumeEntry) -> JsonObject:
    payload = {"confirmed": entry.payload} if isinstance(entry.payload, bool) else entry.payload
    if not isinstance(payload, dict) or not isinstance(payload.get("confirmed"), bool):
        raise InvalidInputError(
            f"the answer to interrupt {entry.interrupt_id} must say whether it is confirmed: "
            '{"confirmed": true} or {"confirmed": false}'
        )
    return {key: payload[key] for key in ("confirmed", "payload") if key in payload}


def _tool_result(message: ToolMessage, name: str) -> types.Part:
    text = (
        message.content
        if isinstance(message.content, str)
        else "".join(part.text for part in message.content if part.type == "text")
    )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    response = value if isinstance(value, dict) else {"result": value}
    if message.error:
        response = {"error": message.error}
    return types.Part(function_response=types.FunctionResponse(id=message.tool_call_id, name=name, response=response))


def _content(message: UserMessage) -> types.Content:
    if isinstance(message.content, str):
        return types.Content(role="user", parts=[types.Part(text=message.content)])
    return types.Content(role="user", parts=[_part(part) for part in message.content])


def _part(part: Any) -> types.Part:
    if part.type == "text":
        return types.Part(text=part.text)
    source = part.source
    if source.type == "data":
        try:
            data = base64.b64decode(source.value, validate=True)
        except binascii.Error as error:
            raise InvalidInputError(f"the {part.type} of a message is not base64: {error}") from error
        return types.Part(inline_data=types.Blob(data=data, mime_type=source.mime_type))
    return types.Part(file_data=types.FileData(file_uri=source.value, mime_type=source.mime_type))


def message_parts(messages: Iterable[Message]) -> dict[str, list[JsonObject]]:
    """Return the parts of messages with media as their client sent them, without their data, by message id."""
    found: dict[str, list[JsonObject]] = {}
    for message in messages:
        if isinstance(message, UserMessage) and isinstance(message.content, list):
            parts = [part.model_dump(mode="json", by_alias=True) for part in message.content]
            for part in parts:
                part.get("source", {}).pop("value", None)
                part.pop("text", None)
            found[message.id] = parts
    return found


class ClientTool(BaseTool):
    """A tool that runs in the client: the model may call it, and the client's next input brings the result."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(name=tool.name, description=tool.description, is_long_running=True)
        self._parameters = tool.parameters

    @override
    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Offer the tool unless the agent has one of this name, which may come from a toolset."""
        if self.name not in llm_request.tools_dict:
            await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)

    @override
    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._parameters or {"type": "object"}
        )

    @override
    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Return no result: the run ends, and the client's next input brings it."""
        return None


def with_client_tools(app: App, tools: Sequence[Tool]) -> App:
    """Return the app with the client's tools added to its root agent; a tool of the agent wins over a namesake."""
    agent = app.root_agent
    if not tools or not isinstance(agent, LlmAgent):
        return app
    own = _tool_names(agent)
    added = [ClientTool(tool) for tool in tools if tool.name not in own]
    return app.model_copy(update={"root_agent": agent.clone(update={"tools": [*agent.tools, *added]})})


def server_tools(app: App) -> frozenset[str]:
    """Return the names of the tools that the agents of an app have on the server."""
    names: set[str] = set()
    waiting = [app.root_agent]
    while waiting:
        agent = waiting.pop()
        names |= _tool_names(agent)
        waiting += getattr(agent, "sub_agents", ())
    return frozenset(names)


def _tool_names(agent: Any) -> set[str]:
    return {getattr(tool, "name", getattr(tool, "__name__", "")) for tool in getattr(agent, "tools", ())}
