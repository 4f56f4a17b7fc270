"""The demo agent, which needs no key and no network.

It thinks aloud, calls two tools that write session, user and app state, and answers token by token. When the user wants
to delete something it asks for confirmation first. A Gemini model can drive the same agent: set `GOOGLE_API_KEY` and
`COGNIZES_DEMO_MODEL`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.apps.app import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from cognizes.engine.settings import Settings

DEMO = "demo"
_INSTRUCTION = """You show what the Cognizes Engine can do. On every message call read_clock and note_topic once, then
answer in two or three friendly sentences. Call delete_note only when the user asks to delete something."""
_TOKEN = re.compile(r"\s*\S+\s*")


def read_clock(tool_context: ToolContext) -> dict[str, Any]:
    """Tells the time (UTC), and remembers in the session when it was asked."""
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    tool_context.state["last_asked_at"] = moment
    return {"time": moment}


def note_topic(topic: str, tool_context: ToolContext) -> dict[str, Any]:
    """Notes what the user talks about: in the session, for the user, and for all users.

    Args:
        topic: What the message is about, in a few words.
    """
    state = tool_context.state
    state["turns"] = state.get("turns", 0) + 1
    state["user:topics"] = [*state.get("user:topics", []), topic][-20:]
    state["app:messages"] = state.get("app:messages", 0) + 1
    return {"noted": topic, "turns": state["turns"]}


def delete_note(name: str, tool_context: ToolContext) -> dict[str, Any]:
    """Deletes a note; a person must confirm it.

    Args:
        name: The note to delete.
    """
    tool_context.state["deleted"] = [*tool_context.state.get("deleted", []), name]
    return {"deleted": name}


class ScriptedModel(BaseLlm):
    """A model that follows a script: the demo needs no network and always answers the same."""

    model: str = "scripted"
    seconds_a_token: float = 0.03

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield a thought and tool calls for a user message, an answer for tool results."""
        parts = _next_parts(llm_request.contents)
        if stream:
            for part in parts:
                for token in _TOKEN.findall(part.text or ""):
                    await asyncio.sleep(self.seconds_a_token)
                    yield _response([types.Part(text=token, thought=part.thought)], partial=True)
        yield _response(parts)


def make_demo_agent(model: str | BaseLlm) -> LlmAgent:
    return LlmAgent(
        name=DEMO,
        description="Streams text, thinks, calls tools, writes state; asks before it deletes.",
        model=model,
        instruction=_INSTRUCTION,
        tools=[read_clock, note_topic, FunctionTool(delete_note, require_confirmation=True)],
    )


def _next_parts(contents: list[types.Content]) -> list[types.Part]:
    latest = contents[-1].parts or [] if contents else []
    responses = [part.function_response for part in latest if part.function_response]
    said = " ".join(part.text for part in latest if part.text).strip()
    if responses:
        return [types.Part(text=_answer(responses, said=_last_said(contents)))]
    if deletion := re.search(r"\b(?:delete|remove)\b\s*(?:the\s+|my\s+)?(.*)", said, re.IGNORECASE):
        name = deletion[1].strip(" .!?\"'") or "everything"
        return [_thought(f"Deleting {name} cannot be undone. I ask first."), _call("delete_note", name=name)]
    topic = " ".join(said.split()[:6]) or "nothing in particular"
    return [
        _thought("I look at the clock and note the topic, then I answer."),
        _call("read_clock"),
        _call("note_topic", topic=topic),
    ]


def _answer(responses: list[types.FunctionResponse], *, said: str) -> str:
    results = {response.name: response.response or {} for response in responses}
    if (deletion := results.get("delete_note")) is not None:
        name = deletion.get("deleted")
        return f"Done: {name} is deleted." if name else "Nothing was deleted: you did not confirm it."
    moment, turns = results.get("read_clock", {}).get("time"), results.get("note_topic", {}).get("turns")
    return (
        f"You said “{said}”. It is {moment}, and this is turn {turns} of our conversation. "
        "Every word of this answer arrived as a chunk of one stream; reload the page in the middle of it and nothing "
        "is lost. Tell me to delete something and I will ask you first."
    )


def _last_said(contents: list[types.Content]) -> str:
    for content in reversed(contents):
        texts = [part.text for part in content.parts or [] if part.text]
        if content.role == "user" and texts:
            return " ".join(texts)
    return ""


def _thought(text: str) -> types.Part:
    return types.Part(text=text, thought=True)


def _call(tool: str, **arguments: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=tool, args=arguments))


def _response(parts: list[types.Part], *, partial: bool | None = None) -> LlmResponse:
    words = sum(len((part.text or "").split()) for part in parts)
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0, candidates_token_count=words)
    return LlmResponse(
        content=types.Content(role="model", parts=parts), partial=partial, usage_metadata=None if partial else usage
    )


def run_demo_once() -> None:
    """Let the demo agent answer once, in memory and on an event loop of its own."""
    asyncio.run(_run_once())


async def _run_once() -> None:
    service = InMemorySessionService()
    app = App(name="warm_up", root_agent=make_demo_agent(ScriptedModel(seconds_a_token=0)))
    runner = Runner(app=app, session_service=service)
    session = await service.create_session(app_name="warm_up", user_id="warm_up")
    async for _ in runner.run_async(
        user_id="warm_up",
        session_id=session.id,
        new_message=types.UserContent("Hello"),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    ):
        pass
    await runner.close()


def make_demo_app(settings: Settings) -> App:
    has_key = bool(os.environ.get("GOOGLE_API_KEY"))
    script = ScriptedModel(seconds_a_token=settings.demo_token_seconds)
    agent = make_demo_agent(settings.demo_model if has_key and settings.demo_model else script)
    return App(name=agent.name, root_agent=agent)
