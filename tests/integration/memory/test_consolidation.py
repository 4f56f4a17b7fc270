"""Consolidation of sessions into episodes and facts, by rules and by a language model, as durable runs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from cognizes.engine import Engine, EngineError
from cognizes.engine.memory import (
    EpisodeDraft,
    Extraction,
    FactDraft,
    GeminiChat,
    LanguageModelExtractor,
    OpenAiChat,
    RuleExtractor,
    TranscriptTurn,
)
from cognizes.engine.memory.records import MemoryScope
from cognizes.engine.models import RunStatus, Session
from cognizes.engine.runs import Worker
from tests.engine_parts import database_of, url_of

ADA = MemoryScope("shop", "ada")


async def talk(engine: Engine, *texts: str, session_id: str = "s") -> Session:
    session = await engine.sessions.get("shop", "ada", session_id) or await engine.sessions.create(
        "shop", "ada", session_id=session_id
    )
    for text in texts:
        await engine.sessions.append(session, author="user", kind="user_message", text=text)
    return session


async def ended(engine: Engine, thread_id: str, run_id: str) -> Any:
    async with asyncio.timeout(60):
        while (run := await engine.runs.get(thread_id, run_id)).status in (RunStatus.PENDING, RunStatus.RUNNING):
            await asyncio.sleep(0.02)
    return run


async def test_a_session_becomes_episodes_and_facts_with_sources(engine: Engine) -> None:
    session = await talk(engine, "my name is Ada", "I live in Lisbon")
    done = await engine.memory.consolidate(session)
    assert (done.episodes, done.facts, done.last_sequence) == (1, 2, 2)
    fact = await engine.memory.long_term.get(ADA, "profile", "home")
    assert fact is not None
    assert fact.value == "Lisbon"
    (episode,) = await engine.memory.episodic.list_by_session(ADA, "s")
    assert episode.summary == "my name is Ada\nI live in Lisbon"
    (home,) = [one for one in await engine.memory.list("shop", "ada") if one.text == "I live in Lisbon"]
    (source,) = await engine.memory.upkeep.sources("shop", "ada", home.id)
    assert source.sequence_num == 2


async def test_only_new_messages_are_consolidated_and_newer_facts_win(engine: Engine) -> None:
    older = await talk(engine, "I live in Rome", session_id="older")
    newer = await talk(engine, "I live in Lisbon", session_id="newer")
    assert (await engine.memory.consolidate(newer)).facts == 1
    assert (await engine.memory.consolidate(newer)).facts == 0
    # The older session is consolidated later, and its fact is still the older one.
    await engine.memory.consolidate(older)
    fact = await engine.memory.long_term.get(ADA, "profile", "home")
    assert fact is not None
    assert fact.value == "Lisbon"
    await talk(engine, "I moved to Porto", session_id="newer")
    assert (await engine.memory.consolidate(newer)).last_sequence == 2
    versions = await engine.memory.long_term.history(ADA, "profile", "home")
    assert [version.value for version in versions] == ["Porto", "Lisbon", "Rome"]


async def test_a_repeated_consolidation_stores_the_same(engine: Engine) -> None:
    session = await talk(engine, "I live in Lisbon")
    await engine.memory.consolidate(session)
    before = await database_of(engine).pool.fetch("SELECT id, revision FROM memories ORDER BY id")
    # As after a crash between the last fact and the record of the progress.
    await database_of(engine).pool.execute("DELETE FROM memory_consolidations")
    await engine.memory.consolidate(session)
    assert await database_of(engine).pool.fetch("SELECT id, revision FROM memories ORDER BY id") == before
    assert len(await engine.memory.long_term.history(ADA, "profile", "home")) == 1


async def test_two_consolidations_at_the_same_time_form_the_same_batches(engine: Engine) -> None:
    """The second one begins while the first one waits for its model, and more messages have come."""
    session = await talk(engine, "my name is Ada")
    reached, released = asyncio.Event(), asyncio.Event()

    class Slow(RuleExtractor):
        async def extract(self, transcript: Sequence[TranscriptTurn]) -> Extraction:
            if not reached.is_set():
                reached.set()
                await released.wait()
            return await super().extract(transcript)

    engine.memory.consolidation.extractor = Slow()
    first = asyncio.create_task(engine.memory.consolidate(session))
    await reached.wait()
    await talk(engine, "I live in Lisbon")
    await engine.memory.consolidate(session)
    released.set()
    await first
    episodes = await engine.memory.episodic.list_by_session(ADA, "s")
    assert sorted(one.summary for one in episodes) == ["I live in Lisbon", "my name is Ada"]


async def test_a_session_with_a_waiting_consolidation_gets_no_second_one(engine: Engine) -> None:
    session, other = await talk(engine, "my name is Ada"), await talk(engine, "hello", session_id="other")
    first = await engine.consolidations.enqueue(session)
    assert (await engine.consolidations.enqueue(session)).id == first.id
    ids = {first.id, (await engine.consolidations.enqueue(other)).id}
    ids.add((await engine.consolidations.enqueue(session, agent_id="helper")).id)
    assert len(ids) == 3
    async with Worker(engine, engine.consolidations.handlers):
        assert (await ended(engine, first.thread_id, first.id)).status == RunStatus.COMPLETED
    assert (await engine.consolidations.enqueue(session)).id != first.id


async def test_a_consolidation_that_is_repeated_leaves_later_messages_to_another_one(engine: Engine) -> None:
    session = await talk(engine, "my name is Ada")
    first = await engine.consolidations.enqueue(session)
    [claimed] = await engine.runs.claim([first.handler or ""])
    await engine.runs.release(claimed)
    await talk(engine, "I live in Lisbon")
    second = await engine.consolidations.enqueue(session)
    assert second.id != first.id
    assert (await engine.consolidations.enqueue(session)).id == second.id


async def test_a_batch_is_bounded_by_characters(engine: Engine) -> None:
    session = await talk(engine, *["word " * 2000] * 5, "x" * 50_000, "short")
    consolidation, after, sizes = engine.memory.consolidation, 0, []
    while (batch := await consolidation.next_batch(session, after=after)) is not None:
        sizes.append(len(batch.turns))
        after = batch.last_sequence
    assert sizes == [2, 2, 1, 1, 1]


async def test_a_fact_that_cannot_be_stored_is_left_out(engine: Engine) -> None:
    session = await talk(engine, "hello")
    deep: Any = []
    for _ in range(2000):
        deep = [deep]

    class Odd:
        async def extract(self, transcript: Sequence[TranscriptTurn]) -> Extraction:
            return Extraction([], [FactDraft("", "deep", deep, [0]), FactDraft("", "good", 1, [0])])

    engine.memory.consolidation.extractor = Odd()
    assert (await engine.memory.consolidate(session)).facts == 1
    assert [fact.key for fact in await engine.memory.long_term.list_by_agent(ADA)] == ["good"]


async def test_a_durable_run_consolidates_once(engine: Engine) -> None:
    session = await talk(engine, "I live in Lisbon")
    run = await engine.consolidations.enqueue(session)
    assert run.thread_id != session.thread_id
    async with Worker(engine, engine.consolidations.handlers):
        done = await ended(engine, run.thread_id, run.id)
        again = await engine.consolidations.enqueue(session)
        assert (await ended(engine, again.thread_id, again.id)).result["facts"] == 0
    assert done.status == RunStatus.COMPLETED
    assert done.result == {"episodes": 1, "facts": 1, "last_sequence": 1}
    # A consolidation is no episode itself.
    assert [one.session_id for one in await engine.memory.episodic.list_by_agent(ADA)] == ["s"]
    assert await database_of(engine).pool.fetchval("SELECT count(*) FROM agent_episodes_due") == 0


class CountingExtractor:
    def __init__(self, *, episodes: bool = False) -> None:
        self.calls = 0
        self._episodes = episodes

    async def extract(self, transcript: Sequence[TranscriptTurn]) -> Extraction:
        self.calls += 1
        episodes = [EpisodeDraft(transcript[0].text, [0])] if self._episodes else []
        return Extraction(episodes=episodes, facts=[FactDraft("profile", "calls", self.calls, [0])])


async def test_the_extractor_is_not_asked_again_after_a_crash(engine: Engine) -> None:
    session = await talk(engine, "hello")
    extractor = engine.memory.consolidation.extractor = CountingExtractor()
    run = await engine.consolidations.enqueue(session, max_attempts=3)
    store, failures = engine.memory.consolidation.store, 0

    async def fail_once(*arguments: Any, **named: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise EngineError("the process dies here")
        return await store(*arguments, **named)

    engine.memory.consolidation.store = fail_once  # type: ignore[method-assign]
    async with Worker(engine, engine.consolidations.handlers):
        done = await ended(engine, run.thread_id, run.id)
    assert (done.status, failures, extractor.calls) == (RunStatus.COMPLETED, 2, 1)


class HangingExtractor:
    async def extract(self, transcript: Sequence[TranscriptTurn]) -> Extraction:
        await asyncio.sleep(3600)
        return Extraction()


async def test_an_extractor_that_never_returns_fails_the_run(engine: Engine) -> None:
    session = await talk(engine, "I live in Lisbon")
    engine.memory.consolidation.extractor = HangingExtractor()
    engine.memory.consolidation.extraction_seconds = 0.05
    with pytest.raises(EngineError, match=r"the extractor did not answer within 0\.05 s"):
        await engine.memory.consolidate(session)
    run = await engine.consolidations.enqueue(session, max_attempts=1)
    async with Worker(engine, engine.consolidations.handlers):
        done = await ended(engine, run.thread_id, run.id)
    assert done.status == RunStatus.FAILED
    assert "did not answer" in str(done.error)


async def test_an_attempt_after_a_crash_stores_no_episode_twice(engine: Engine) -> None:
    """The process dies when the episode is stored and its progress is not; a message is added before the next one."""
    session = await talk(engine, "I live in Lisbon")
    extractor = engine.memory.consolidation.extractor = CountingExtractor(episodes=True)
    run = await engine.consolidations.enqueue(session, max_attempts=3)
    store, attempts = engine.memory.consolidation.store, 0

    async def die_once(*arguments: Any, **named: Any) -> Any:
        nonlocal attempts
        attempts += 1
        stored = await store(*arguments, **named)
        if attempts == 1:
            await database_of(engine).pool.execute("DELETE FROM memory_consolidations")
            await talk(engine, "and I like tea")
            raise EngineError("the process dies here")
        return stored

    engine.memory.consolidation.store = die_once  # type: ignore[method-assign]
    async with Worker(engine, engine.consolidations.handlers):
        assert (await ended(engine, run.thread_id, run.id)).result["last_sequence"] == 1
        assert len(await engine.memory.episodic.list_by_session(ADA, "s")) == 1
        later = await engine.consolidations.enqueue(session)
        assert (await ended(engine, later.thread_id, later.id)).result["last_sequence"] == 2
    assert extractor.calls == 2


_KILLED = """
import asyncio, os, signal, sys
from cognizes.engine import Engine
from cognizes.engine.memory import EpisodeDraft, Extraction

class Facts(list):
    def __iter__(self):
        # The episode is stored; facts and progress are not.
        os.kill(os.getpid(), signal.SIGKILL)

class Extractor:
    async def extract(self, transcript):
        return Extraction(episodes=[EpisodeDraft(transcript[0].text, [0])], facts=Facts())

async def main():
    async with Engine.open(sys.argv[1], memory_background=False) as engine:
        engine.memory.consolidation.extractor = Extractor()
        await engine.memory.consolidate(await engine.sessions.get("shop", "ada", "s"))

asyncio.run(main())
"""


async def test_a_killed_consolidation_is_repeated_without_duplicates(engine: Engine) -> None:
    """kill -9 after the episode; a message is added before the repetition, which covers it with a batch of its own."""
    session = await talk(engine, "I live in Lisbon")
    for _ in range(2):
        killed = await asyncio.create_subprocess_exec(sys.executable, "-c", _KILLED, url_of(engine))
        async with asyncio.timeout(60):
            assert await killed.wait() == -signal.SIGKILL
        assert len(await engine.memory.episodic.list_by_session(ADA, "s")) == 1
        await talk(engine, "and I like tea")
    engine.memory.consolidation.extractor = CountingExtractor(episodes=True)
    assert (await engine.memory.consolidate(session)).last_sequence == 3
    stored = await engine.memory.episodic.list_by_session(ADA, "s")
    assert sorted(one.summary for one in stored) == ["I live in Lisbon", "and I like tea"]
    covered = [
        (await engine.memory.upkeep.sources("shop", "ada", one.id))[0].sequence_num
        for one in await engine.memory.list("shop", "ada")
        if one.kind == "episodic"
    ]
    assert sorted(number or 0 for number in covered) == [1, 2]
    assert (await engine.memory.consolidate(session)).episodes == 0


async def test_a_deleted_session_is_no_error(engine: Engine) -> None:
    session = await talk(engine, "I live in Lisbon")
    run = await engine.consolidations.enqueue(session)
    await engine.sessions.delete(session)
    async with Worker(engine, engine.consolidations.handlers):
        assert (await ended(engine, run.thread_id, run.id)).result == {"deleted": True}
    assert await engine.memory.list("shop", "ada") == []


TRANSCRIPT = [TranscriptTurn(0, "e", "user", "ada", "I moved to Porto", datetime(2026, 11, 1, tzinfo=UTC))]
FOUND = {
    "episodes": [{"summary": "Ada moved.", "turns": [0]}],
    "facts": [{"key": "home", "value": "Porto", "turns": [0]}],
}


class ModelServer:
    """An HTTP server that answers as the APIs of language models do."""

    def __init__(self, answer: Any, status: int = 200) -> None:
        self._answer = answer
        self._status = status
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    async def __aenter__(self) -> ModelServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in asked[1:] if line)}
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append((asked[0].split(" ")[1], headers, body))
        answer = json.dumps(self._answer).encode()
        writer.write(
            f"HTTP/1.1 {self._status} OK\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(answer)
        await writer.drain()
        writer.close()


class TestLanguageModels:
    async def test_openai(self) -> None:
        answer = {"choices": [{"message": {"content": f"```json\n{json.dumps(FOUND)}\n```"}}]}
        async with ModelServer(answer) as server:
            model = LanguageModelExtractor(OpenAiChat(model="m", url=server.url, api_key="secret"))
            found = await model.extract(TRANSCRIPT)
        assert (found.episodes[0].summary, found.facts[0].value) == ("Ada moved.", "Porto")
        ((path, headers, body),) = server.requests
        assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer secret")
        assert "I moved to Porto" in body["messages"][1]["content"]

    async def test_gemini(self) -> None:
        answer = {"candidates": [{"content": {"parts": [{"text": json.dumps(FOUND)}]}}]}
        async with ModelServer(answer) as server:
            model = LanguageModelExtractor(GeminiChat(model="m", url=server.url, api_key="secret"))
            found = await model.extract(TRANSCRIPT)
        assert found.facts[0].key == "home"
        ((path, headers, body),) = server.requests
        assert (path, headers["x-goog-api-key"]) == ("/v1/models/m:generateContent", "secret")
        assert "I moved to Porto" in body["contents"][0]["parts"][0]["text"]

    async def test_thoughts_and_parts_of_an_answer(self) -> None:
        text = json.dumps(FOUND)
        parts = [{"text": "She moved {there}.", "thought": True}, {"text": text[:20]}, {"text": text[20:]}]
        async with ModelServer({"candidates": [{"content": {"parts": parts}}]}) as server:
            found = await LanguageModelExtractor(GeminiChat(model="m", url=server.url)).extract(TRANSCRIPT)
        assert found.facts[0].value == "Porto"
        said = f"<think>An object such as {{}}?</think>\n{text}"
        async with ModelServer({"choices": [{"message": {"content": said}}]}) as server:
            found = await LanguageModelExtractor(OpenAiChat(model="m", url=server.url)).extract(TRANSCRIPT)
        assert found.facts[0].value == "Porto"

    async def test_a_setting_chooses_the_model(self, database_url: str) -> None:
        answer = {"choices": [{"message": {"content": json.dumps(FOUND)}}]}
        async with ModelServer(answer) as server:
            options = {"extractor": "openai", "extraction_url": server.url, "extraction_model": "m"}
            async with Engine.open(database_url, **options) as engine:
                done = await engine.memory.consolidate(await talk(engine, "I moved to Porto"))
                assert (done.episodes, done.facts) == (1, 1)
                fact = await engine.memory.long_term.get(ADA, "", "home")
                assert fact is not None
                assert fact.value == "Porto"

    @pytest.mark.parametrize(
        ("answer", "status"),
        [
            ({"error": "quota"}, 429),
            ({"choices": []}, 200),
            ({"choices": [{"message": {"content": "no object"}}]}, 200),
            ({"choices": [{"message": {"content": '{"facts": 1}'}}]}, 200),
        ],
    )
    async def test_an_answer_that_cannot_be_used_is_an_error(self, answer: Any, status: int) -> None:
        async with ModelServer(answer, status) as server:
            with pytest.raises(EngineError):
                await LanguageModelExtractor(OpenAiChat(model="m", url=server.url)).extract(TRANSCRIPT)
        with pytest.raises(EngineError, match="cannot be reached"):
            await LanguageModelExtractor(OpenAiChat(model="m", url=server.url)).extract(TRANSCRIPT)
