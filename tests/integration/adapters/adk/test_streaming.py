"""What ADK streams is read live from any process, under the id that the whole event is stored under."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from pydantic import ConfigDict, Field

from cognizes.engine import Engine, RunStatus, Session
from cognizes.engine.adapters.adk import EngineStreamPlugin, OpenSessionService
from cognizes.engine.streams.chunks import ChunkPage, StreamStatus

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HELLO = types.Content(role="user", parts=[types.Part(text="hi")])


class FragmentModel(BaseLlm):
    """Say "one two three" in fragments; wait before the last one, then send it or raise an error."""

    model: str = "fragments"
    model_config = ConfigDict(arbitrary_types_allowed=True)
    may_finish: asyncio.Event = Field(default_factory=asyncio.Event)
    breaks: bool = False

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield _response([types.Part(text="let me see", thought=True)], partial=True)
        yield _response([types.Part(text="one ")], partial=True)
        yield _response([types.Part(text="two ")], partial=True)
        await self.may_finish.wait()
        if self.breaks:
            raise RuntimeError("the model is out of order")
        # The last word comes with the whole only.
        yield _response([types.Part(text="let me see", thought=True), types.Part(text="one two three")])


def _response(parts: list[types.Part], *, partial: bool | None = None) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=parts), partial=partial)


async def talk(service: OpenSessionService, model: BaseLlm) -> list[Any]:
    runner = Runner(
        app_name="shop",
        agent=LlmAgent(name="clerk", model=model),
        session_service=service,
        plugins=[EngineStreamPlugin()],
    )
    config = RunConfig(streaming_mode=StreamingMode.SSE)
    try:
        events = runner.run_async(user_id="ada", session_id="s", new_message=HELLO, run_config=config)
        return [event async for event in events]
    finally:
        await runner.close()


async def streamed(engine: Engine, session: Session, count: int) -> tuple[str, ChunkPage]:
    """The message that is being streamed, when so much of it can be read."""
    async with asyncio.timeout(60):
        while True:
            for head in await engine.streams.heads([session.thread_id]):
                page = await engine.streams.read(session.thread_id, head.message_id)
                if len(page.chunks) >= count:
                    return head.message_id, page
            await asyncio.sleep(0.01)


@pytest.fixture
async def session(ours: OpenSessionService) -> Session:
    await ours.create_session(app_name="shop", user_id="ada", session_id="s")
    found = await (await ours.engine()).sessions.get("shop", "ada", "s")
    assert found is not None
    return found


async def test_fragments_are_chunks_of_the_message_that_is_stored(
    ours: OpenSessionService, session: Session, database_url: str
) -> None:
    model = FragmentModel()
    async with Engine.open(database_url) as elsewhere:
        talking = asyncio.create_task(talk(ours, model))
        message_id, page = await streamed(elsewhere, session, 2)
        assert [chunk.delta for chunk in page.chunks] == ["one ", "two "]
        assert page.status is StreamStatus.STREAMING
        thought = await elsewhere.feed.read_chunks(session.thread_id, f"{message_id}/thought", wait=60)
        assert [chunk.delta for chunk in thought.chunks] == ["let me see"]
        model.may_finish.set()
        events = await talking
        page = await elsewhere.streams.read(session.thread_id, message_id)
        assert [chunk.delta for chunk in page.chunks] == ["one ", "two ", "three"]
        assert page.status is StreamStatus.COMPLETED
        assert await elsewhere.streams.heads([session.thread_id], with_thoughts=True) == []
        kinds = [event.event_type for event in await elsewhere.sessions.events(session)]
        assert kinds == ["user_message", "run_started", "assistant_message", "run_finished"]
        (stored,) = [row for row in await elsewhere.sessions.messages(session) if row.role == "assistant"]
        assert (stored.id, stored.content) == (message_id, "one two three")
    assert events[-1].id == message_id
    adk_session = await ours.get_session(app_name="shop", user_id="ada", session_id="s")
    assert adk_session is not None
    assert adk_session.events[-1].id == message_id


async def test_a_model_that_breaks_leaves_an_interrupted_message(
    ours: OpenSessionService, session: Session, database_url: str
) -> None:
    model = FragmentModel()
    model.breaks = True
    async with Engine.open(database_url) as elsewhere:
        talking = asyncio.create_task(talk(ours, model))
        message_id, _ = await streamed(elsewhere, session, 2)
        model.may_finish.set()
        with pytest.raises(RuntimeError, match="out of order"):
            await talking
        (event,) = [event for event in await elsewhere.sessions.events(session) if event.id == message_id]
        assert event.content == {"text": "one two ", "message_id": message_id, "interrupted": True}
        (run,) = await elsewhere.runs.list(session.thread_id)
        assert (run.status, event.run_id) == (RunStatus.FAILED, run.id)
        (thought,) = [event for event in await elsewhere.sessions.events(session) if event.event_type == "thought"]
        assert (thought.content["thought"], thought.content["interrupted"]) == ("let me see", True)
        assert (thought.sequence_num or 0) < (event.sequence_num or 0)
    adk_session = await ours.get_session(app_name="shop", user_id="ada", session_id="s")
    assert adk_session is not None
    assert [part.text for part in adk_session.events[-1].content.parts] == ["one two "]


async def test_a_cancelled_invocation_leaves_an_interrupted_message(
    ours: OpenSessionService, session: Session, database_url: str
) -> None:
    async with Engine.open(database_url) as elsewhere:
        talking = asyncio.create_task(talk(ours, FragmentModel()))
        message_id, _ = await streamed(elsewhere, session, 2)
        talking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talking
        async with asyncio.timeout(60):
            while (await elsewhere.streams.read(session.thread_id, message_id)).status is StreamStatus.STREAMING:
                await asyncio.sleep(0.01)
        page = await elsewhere.streams.read(session.thread_id, message_id)
        assert (page.status, [chunk.delta for chunk in page.chunks]) == (StreamStatus.INTERRUPTED, ["one ", "two "])
