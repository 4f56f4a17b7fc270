"""The cache of conversations is bounded by the stored size of their events: texts, inline media, results of tools."""

from __future__ import annotations

from functools import partial
from uuid import UUID, uuid4

import pytest

from cognizes.engine import Engine
from cognizes.engine.hosting.turns import Conversation, ConversationCache, ThreadTurn
from cognizes.engine.models import Event, JsonObject

_BYTES = 200_000
_IMAGE: JsonObject = {
    "content": [{"type": "image", "source": {"type": "data", "value": "A" * _BYTES, "mimeType": "image/png"}}]
}
_RESULT: JsonObject = {"tool_call_id": "c", "observation": {"rows": ["x" * 1000 for _ in range(_BYTES // 1000)]}}


def _event(kind: str, content: JsonObject) -> Event:
    return Event(id=str(uuid4()), thread_id="", invocation_id="", author="user", event_type=kind, content=content)


@pytest.mark.parametrize(("kind", "content"), [("user_message", _IMAGE), ("observe", _RESULT)], ids=["image", "result"])
async def test_images_and_results_count(engine: Engine, kind: str, content: JsonObject) -> None:
    cache, threads = ConversationCache(size=5 * _BYTES), [str(uuid4()) for _ in range(8)]
    for thread in threads:
        session = await engine.sessions.create("shop", "ada", session_id=thread)
        await engine.sessions.append_event(session, _event(kind, content))
        conversation = Conversation(UUID(session.thread_id))
        await conversation.read_on(engine)
        cache.put(("shop", "ada", thread), conversation)
    assert [cache.get(("shop", "ada", thread)) is not None for thread in threads] == [False] * 4 + [True] * 4


async def test_the_input_of_a_turn_counts(engine: Engine) -> None:
    """A conversation that is in the cache grows with each turn."""
    cache, threads = ConversationCache(size=5 * _BYTES), [str(uuid4()) for _ in range(8)]
    for thread in threads:
        key = ("shop", "ada", thread)
        session = await engine.sessions.create("shop", "ada", session_id=thread)
        conversation = Conversation()
        cache.put(key, conversation)
        sent = _event("user_message", _IMAGE)
        turn = ThreadTurn(
            events=[sent], expected_sequence=0, conversation=conversation, put=partial(cache.put, key)
        )  # fmt: skip
        turn.begun(session, is_branched=False)
    assert sum(cache.get(("shop", "ada", thread)) is not None for thread in threads) == 4


def test_a_conversation_of_more_than_a_quarter_is_left_out() -> None:
    cache = ConversationCache(size=5 * _BYTES)
    small, large = Conversation(), Conversation()
    cache.put(("shop", "ada", "small"), small)
    cache.put(("shop", "ada", "large"), large)
    large.add([_event("user_message", {"text": "hi"})], stored_bytes=2 * _BYTES)
    cache.put(("shop", "ada", "large"), large)
    assert cache.get(("shop", "ada", "large")) is None
    assert cache.get(("shop", "ada", "small")) is small
