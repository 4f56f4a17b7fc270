"""Upkeep: duplicates, history of facts, importance, recency, expiry, and the events that memories came from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from pydantic import ValidationError

from cognizes.engine import Engine, InvalidInputError, Settings
from cognizes.engine.api.main import create_app
from cognizes.engine.database.maintenance import jobs
from cognizes.engine.memory.records import EventSource, MemoryScope, Remembered
from cognizes.engine.memory.vectors import EmbeddingQueue
from tests.engine_parts import database_of
from tests.integration.memory.test_embedding_queue import FussyEmbedder

ADA = MemoryScope("shop", "ada")
MORNING = datetime(2026, 11, 1, 8, tzinfo=UTC)
LONG = "the espresso machine in the kitchen of the second floor was repaired by the technician of the Nord company"


async def texts(engine: Engine, query: str) -> list[str]:
    return [hit.text for hit in await engine.memory.recall(query, app="shop", user="ada", k=50)]


class TestDuplicates:
    async def test_equal_and_near_notes_are_merged_and_keep_their_sources(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        for text in ("green tea", "green tea"):
            await engine.sessions.append(session, author="user", kind="user_message", text=text)
        await engine.memory.remember_session(session)
        await engine.memory.remember(
            ADA,
            [
                Remembered("1", LONG),
                Remembered("2", LONG.replace("technician", "mechanic"), importance=0.9),
                Remembered("3", LONG.replace("was", "was not")),
                Remembered("4", LONG, namespace="other"),
            ],
        )
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada", similarity=0.8) == 1
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada", similarity=0.8) == 0
        assert set(await texts(engine, "espresso machine")) == {LONG, LONG.replace("was", "was not")}
        assert {record.source_id for record in await engine.memory.list("shop", "ada")} >= {"1", "3", "4"}
        (kept,) = [one for one in await engine.memory.list("shop", "ada") if one.source_id == "1"]
        assert kept.importance == pytest.approx(0.9)
        # Messages are merged only on request.
        assert len(await texts(engine, "green tea")) == 2
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada", kinds=["turn"]) == 1
        (hit,) = await engine.memory.recall("green tea", app="shop", user="ada")
        sources = await engine.memory.upkeep.sources("shop", "ada", hit.memory.id)
        assert [source.sequence_num for source in sources] == [1, 2]
        assert {source.thread_id for source in sources} == {session.thread_id}
        assert await engine.memory.upkeep.sources("shop", "bob", hit.memory.id) == []

    async def test_a_duplicate_returns_when_its_original_is_deleted_with_its_session(self, engine: Engine) -> None:
        for name in ("first", "second"):
            session = await engine.sessions.create("shop", "ada", session_id=name)
            await engine.sessions.append(session, author="user", kind="user_message", text="green tea")
            await engine.memory.remember_session(session)
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada", kinds=["turn"]) == 1
        await engine.sessions.delete(await engine.sessions.get("shop", "ada", "first"))  # type: ignore[arg-type]
        (hit,) = await engine.memory.recall("green tea", app="shop", user="ada")
        assert hit.memory.session_id == "second"

    async def test_a_changed_duplicate_returns(self, engine: Engine) -> None:
        await engine.memory.remember(ADA, [Remembered("1", "green tea"), Remembered("2", "green tea")])
        await engine.memory.upkeep.merge_duplicates("shop", "ada")
        assert await engine.memory.remember(ADA, [Remembered("2", "green tea")]) == 0
        assert len(await texts(engine, "tea")) == 1
        assert await engine.memory.remember(ADA, [Remembered("2", "black tea")]) == 1
        assert set(await texts(engine, "tea")) == {"green tea", "black tea"}

    async def test_forgetting_a_memory_forgets_its_duplicates(self, engine: Engine) -> None:
        turns = [Remembered(str(n), "green tea", session_id="s", position=n) for n in range(3)]
        await engine.memory.remember_turns(ADA, turns)
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada", kinds=["turn"]) == 2
        (hit,) = await engine.memory.recall("green tea", app="shop", user="ada")
        assert await engine.memory.forget("shop", "ada", hit.memory.id)
        assert await engine.memory.remember_turns(ADA, turns) == 0
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memories") == 0

    async def test_the_expiry_of_an_original_keeps_its_duplicate(self, engine: Engine) -> None:
        old = datetime.now(UTC) - timedelta(days=100)
        await engine.memory.remember(ADA, [Remembered("1", "green tea", created_at=old), Remembered("2", "green tea")])
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada") == 1
        assert await database_of(engine).fetch_value("expire_memories", '{"note": 90}', 100) == 1
        (hit,) = await engine.memory.recall("green tea", app="shop", user="ada")
        assert hit.memory.source_id == "2"

    async def test_an_expired_memory_is_the_original_of_none(self, engine: Engine) -> None:
        past = datetime.now(UTC) - timedelta(seconds=1)
        await engine.memory.remember(ADA, [Remembered("1", "green tea", expires_at=past), Remembered("2", "green tea")])
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada") == 0
        assert await texts(engine, "green tea") == ["green tea"]
        assert await database_of(engine).fetch_value("expire_memories", "{}", 100) == 1
        assert await texts(engine, "green tea") == ["green tea"]

    async def test_a_duplicate_returns_when_its_original_changes(self, engine: Engine) -> None:
        await engine.memory.remember(ADA, [Remembered("1", "green tea"), Remembered("2", "green tea")])
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada") == 1
        await engine.memory.remember(ADA, [Remembered("1", "black tea")])
        assert set(await texts(engine, "tea")) == {"green tea", "black tea"}

    async def test_equal_texts_with_other_tags_or_metadata_are_not_merged(self, engine: Engine) -> None:
        items = [Remembered("1", "tea", tags=["a"]), Remembered("2", "tea", tags=["b"]), Remembered("3", "tea")]
        await engine.memory.remember(ADA, [*items, Remembered("4", "tea", metadata={"cup": 1})])
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada") == 0

    async def test_long_texts_are_merged_only_if_they_are_equal(self, engine: Engine) -> None:
        long = "word " * 900
        items = [Remembered("1", f"{long}red"), Remembered("2", f"{long}blue"), Remembered("3", f"{long}red")]
        await engine.memory.remember(ADA, items)
        assert await engine.memory.upkeep.merge_duplicates("shop", "ada") == 1

    async def test_a_duplicate_has_no_vector_and_gets_one_when_it_returns(self, database_url: str) -> None:
        async with Engine.open(database_url, memory_background=False) as engine:
            queue, pool = engine.memory.queue, database_of(engine).pool
            assert queue is not None
            await engine.memory.remember(ADA, [Remembered("1", "green tea"), Remembered("2", "green tea")])
            assert await queue.work() == 2
            await engine.memory.upkeep.merge_duplicates("shop", "ada")
            await queue.queue_all()
            assert await queue.work() == 0
            await pool.execute("DELETE FROM memories WHERE source_id = '1'")
            assert await queue.work() == 1
            assert await pool.fetchval("SELECT count(*) FROM memory_vectors") == 1

    async def test_invalid_arguments(self, engine: Engine) -> None:
        with pytest.raises(InvalidInputError, match="similarity"):
            await engine.memory.upkeep.merge_duplicates("shop", "ada", similarity=0)
        with pytest.raises(InvalidInputError, match="kind"):
            await engine.memory.upkeep.merge_duplicates("shop", "ada", kinds=["thought"])


HOUR = timedelta(hours=1)


class TestFacts:
    async def values(self, engine: Engine) -> list[tuple[str, float, float | None]]:
        """The values of a key with the hours of their validity, oldest first."""
        return [
            (one.value, (one.valid_from - MORNING) / HOUR, one.valid_until and (one.valid_until - MORNING) / HOUR)
            for one in reversed(await engine.memory.long_term.history(ADA, "profile", "home"))
        ]

    @pytest.mark.parametrize(
        ("statements", "expected"),
        [
            ([("Rome", 0), ("Lisbon", 2), ("Lisbon", 3)], [("Rome", 0, 2), ("Lisbon", 2, None)]),
            ([("Rome", 0), ("Lisbon", 2), ("Lisbon", 1)], [("Rome", 0, 1), ("Lisbon", 1, None)]),
            (
                [("Rome", 0), ("Lisbon", 2), ("Lisbon", -1)],
                [("Lisbon", -1, 0), ("Rome", 0, 2), ("Lisbon", 2, None)],
            ),
            ([("Lisbon", 2), ("Lisbon", 4), ("Rome", 3)], [("Lisbon", 2, 3), ("Rome", 3, 4), ("Lisbon", 4, None)]),
            ([("Lisbon", 2), ("Rome", 0), ("Rome", 0), ("Rome", 1)], [("Rome", 0, 2), ("Lisbon", 2, None)]),
            ([("Rome", 0), ("Lisbon", 2), ("Lisbon", 2)], [("Rome", 0, 2), ("Lisbon", 2, None)]),
        ],
    )
    async def test_statements_in_any_order_leave_no_gap(
        self, engine: Engine, statements: list[tuple[str, int]], expected: list[tuple[str, int, int | None]]
    ) -> None:
        for value, hour in statements:
            await engine.memory.long_term.set(ADA, "profile", "home", value, at=MORNING + hour * HOUR)
        assert await self.values(engine) == expected
        for value, start, end in expected:
            known = await engine.memory.long_term.get(ADA, "profile", "home", as_of=MORNING + (start + 0.5) * HOUR)
            assert known is not None
            assert known.value == value
            assert end is None or end > start

    async def test_a_future_value_that_is_replaced_before_leaves_no_history(self, engine: Engine) -> None:
        facts = engine.memory.long_term
        await facts.set(ADA, "profile", "home", "Rome", at=datetime.now(UTC) + timedelta(days=1))
        await facts.set(ADA, "profile", "home", "Lisbon")
        (version,) = await facts.history(ADA, "profile", "home")
        assert version.value == "Lisbon"

    async def test_notes_and_shared_notes_have_sources(self, engine: Engine) -> None:
        note = Remembered("1", "tea", sources=[EventSource("s", "e1")])
        everywhere = {"user": ADA, "app": MemoryScope.app_wide("shop")}
        for visibility, scope in everywhere.items():
            await engine.memory.remember(scope, [note])
            # What an item does not give stays.
            await engine.memory.remember(scope, [Remembered("1", "tea", tags=["hot"])])
            where = {"session_id": "s", "event_id": "e1", "visibility": visibility}
            (found,) = await engine.memory.upkeep.memories_of_event("shop", "ada", **where)
            assert (found.visibility, found.tags) == (visibility, ["hot"])
            (source,) = await engine.memory.upkeep.sources("shop", "ada", found.id, visibility=visibility)
            assert (source.session_id, source.event_id) == ("s", "e1")
        with pytest.raises(InvalidInputError, match="created_at"):
            await engine.memory.remember(ADA, [Remembered("2", "tea", created_at=datetime(2026, 1, 1))])  # noqa: DTZ001

    async def test_a_confirmed_fact_does_not_expire_and_keeps_all_sources(self, engine: Engine) -> None:
        facts, old = engine.memory.long_term, datetime.now(UTC) - timedelta(days=100)
        await facts.set(ADA, "profile", "home", "Rome", at=old, sources=[EventSource("s", "1")])
        await facts.set(ADA, "profile", "home", "Rome", sources=[EventSource("s", "2"), EventSource("s", "1")])
        assert await database_of(engine).fetch_value("expire_memories", '{"long_term": 90}', 100) == 0
        (version,) = await facts.history(ADA, "profile", "home")
        assert version.valid_from == old
        assert version.sources == [EventSource("s", "1"), EventSource("s", "2")]
        (stored,) = await engine.memory.list("shop", "ada")
        assert len(await engine.memory.upkeep.sources("shop", "ada", stored.id)) == 2

    async def test_a_newer_fact_supersedes_the_older_and_both_are_readable(self, engine: Engine) -> None:
        facts = engine.memory.long_term
        await facts.set(ADA, "profile", "home", "Rome", at=MORNING)
        current = await facts.set(ADA, "profile", "home", "Lisbon", at=MORNING + timedelta(hours=2))
        assert current.value == "Lisbon"
        # The same value again is no new version.
        await facts.set(ADA, "profile", "home", "Lisbon", at=MORNING + timedelta(hours=3))
        before = await facts.get(ADA, "profile", "home", as_of=MORNING + timedelta(hours=1))
        assert before is not None
        assert before.value == "Rome"
        assert await facts.get(ADA, "profile", "home", as_of=MORNING - timedelta(hours=1)) is None
        assert [version.value for version in await facts.history(ADA, "profile", "home")] == ["Lisbon", "Rome"]
        assert await texts(engine, "home") == ["home: Lisbon"]
        assert await texts(engine, "Rome") == []

    async def test_an_older_fact_that_arrives_late_does_not_supersede(self, engine: Engine) -> None:
        facts = engine.memory.long_term
        times = {"Rome": 0, "Lisbon": 4, "Porto": 2}
        for city, hours in times.items():
            await facts.set(ADA, "profile", "home", city, at=MORNING + timedelta(hours=hours))
        versions = await facts.history(ADA, "profile", "home")
        assert [(version.value, version.valid_until) for version in versions] == [
            ("Lisbon", None),
            ("Porto", MORNING + timedelta(hours=4)),
            ("Rome", MORNING + timedelta(hours=2)),
        ]
        assert await texts(engine, "home") == ["home: Lisbon"]

    async def test_deleting_a_fact_deletes_its_history(self, engine: Engine) -> None:
        facts = engine.memory.long_term
        for city in ("Rome", "Lisbon"):
            await facts.set(ADA, "profile", "home", city)
        assert await facts.delete(ADA, "profile", "home")
        assert await facts.history(ADA, "profile", "home") == []
        for city in ("Rome", "Lisbon"):
            await facts.set(ADA, "profile", "home", city)
        (hit,) = await engine.memory.recall("home", app="shop", user="ada")
        assert await engine.memory.forget("shop", "ada", hit.memory.id)
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM agent_long_term_history") == 0

    async def test_history_is_optional_and_pruned(self, database_url: str) -> None:
        async with Engine.open(database_url, fact_history_kept_days=0) as engine:
            for city in ("Rome", "Lisbon"):
                await engine.memory.long_term.set(ADA, "profile", "home", city)
            assert [one.value for one in await engine.memory.long_term.history(ADA, "profile", "home")] == ["Lisbon"]
            assert "prune_fact_history" not in {job.name for job in jobs(engine.settings)}
        async with Engine.open(database_url) as engine:
            for city, days in (("Porto", 500), ("Braga", 400), ("Faro", 1)):
                at = datetime.now(UTC) - timedelta(days=days)
                await engine.memory.long_term.set(ADA, "profile", "town", city, at=at)
            pruned = await database_of(engine).fetch_value("prune_fact_history", timedelta(days=365), 10)
            assert pruned == 1
            assert [one.value for one in await engine.memory.long_term.history(ADA, "profile", "town")] == [
                "Faro",
                "Braga",
            ]


class TestRanking:
    async def test_importance_raises_a_score(self, engine: Engine) -> None:
        await engine.memory.remember(
            ADA, [Remembered("1", "tea at four", importance=1.0), Remembered("2", "tea at five")]
        )
        first, second = await engine.memory.recall("tea", app="shop", user="ada")
        assert first.memory.source_id == "1"
        assert first.scores["importance"] > 0
        assert "importance" not in second.scores

    async def test_recency_halves_with_each_half_life_and_is_off_by_default(self, engine: Engine) -> None:
        now = datetime.now(UTC)
        ages = {"new": 0, "old": 30, "older": 60}
        await engine.memory.remember(
            ADA, [Remembered(name, "tea", created_at=now - timedelta(days=days)) for name, days in ages.items()]
        )
        hits = await engine.memory.recall("tea", app="shop", user="ada", half_life=timedelta(days=30))
        assert [hit.memory.source_id for hit in hits] == ["new", "old", "older"]
        parts = [hit.scores["recency"] for hit in hits]
        assert parts[1] / parts[0] == pytest.approx(0.5, abs=0.01)
        assert parts[2] / parts[0] == pytest.approx(0.25, abs=0.01)
        for hit in await engine.memory.recall("tea", app="shop", user="ada"):
            assert "recency" not in hit.scores
        with pytest.raises(InvalidInputError, match="half_life"):
            await engine.memory.recall("tea", app="shop", user="ada", half_life=timedelta())


class TestExpiry:
    async def test_expired_memories_take_no_place_of_valid_ones(self, database_url: str) -> None:
        async with Engine.open(database_url, memory_background=False) as engine:
            past = datetime.now(UTC) - timedelta(seconds=1)
            expired = [Remembered(str(number), "my automobile is broken", expires_at=past) for number in range(250)]
            await engine.memory.remember(ADA, [*expired, Remembered("valid", "the vehicle is defective")])
            assert engine.memory.queue is not None
            while await engine.memory.queue.work():
                pass
            assert await texts(engine, "car damaged") == ["the vehicle is defective"]

    async def test_tags_alone_do_not_clear_the_expiry(self, engine: Engine) -> None:
        later = datetime.now(UTC) + timedelta(days=1)
        await engine.memory.remember(ADA, [Remembered("1", "tea", expires_at=later)])
        await engine.memory.remember(ADA, [Remembered("1", "tea", tags=["hot"])])
        (stored,) = await engine.memory.list("shop", "ada")
        assert (stored.expires_at, stored.tags) == (later, ["hot"])

    async def test_a_note_moves_to_a_new_namespace_position_and_time(self, database_url: str) -> None:
        async with Engine.open(database_url, memory_background=False) as engine:
            await self.move_a_note(engine)

    async def move_a_note(self, engine: Engine) -> None:
        await engine.memory.remember(ADA, [Remembered("1", "tea", namespace="old", created_at=MORNING)])
        assert await engine.memory.remember(ADA, [Remembered("1", "tea", namespace="new")]) == 1
        (stored,) = await engine.memory.list("shop", "ada")
        assert (stored.namespace, stored.created_at) == ("new", MORNING)
        later = MORNING + timedelta(days=1)
        queue = EmbeddingQueue(database_of(engine), FussyEmbedder())
        assert await queue.work() == 1
        assert await engine.memory.remember(ADA, [Remembered("1", "tea", namespace="new", created_at=later)]) == 1
        # The text is the same, and so is its vector.
        assert await queue.work() == 0
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memory_vectors") == 1
        (stored,) = await engine.memory.list("shop", "ada")
        assert stored.created_at == later

    async def test_an_expired_memory_is_not_recalled_and_then_deleted(self, engine: Engine) -> None:
        past = datetime.now(UTC) - timedelta(seconds=1)
        turn = Remembered("1", "tea today", session_id="s", position=1, expires_at=past)
        await engine.memory.remember_turns(ADA, [turn])
        await engine.memory.remember(ADA, [Remembered("2", "tea forever")])
        assert await texts(engine, "tea") == ["tea forever"]
        assert [record.text for record in await engine.memory.list("shop", "ada")] == ["tea forever"]
        assert await database_of(engine).fetch_value("expire_memories", "{}", 100) == 1
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memories") == 1
        assert await engine.memory.remember_turns(ADA, [turn]) == 0

    async def test_a_policy_deletes_old_memories_of_a_kind(self, engine: Engine) -> None:
        old = datetime.now(UTC) - timedelta(days=100)
        await engine.memory.remember(ADA, [Remembered("old", "old tea", created_at=old), Remembered("new", "new tea")])
        await engine.memory.remember_turns(ADA, [Remembered("turn", "tea said", created_at=old)])
        await engine.memory.long_term.set(ADA, "n", "k", "tea fact", at=old)
        assert await database_of(engine).fetch_value("expire_memories", '{"note": 90, "long_term": 99}', 100) == 2
        assert set(await texts(engine, "tea")) == {"new tea", "tea said"}
        assert await engine.memory.long_term.get(ADA, "n", "k") is None

    def test_the_policy_is_a_setting(self) -> None:
        (job,) = [job for job in jobs(Settings(memories_kept_days="turn=90,note=365")) if job.name == "expire_memories"]
        assert job.arguments[0] == '{"turn": 90.0, "note": 365.0}'
        with pytest.raises(ValidationError, match="kind of memory"):
            Settings(memories_kept_days="turns=90")


class TestSources:
    async def test_from_a_fact_to_its_events_and_back(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        event = await engine.sessions.append(session, author="user", kind="user_message", text="I live in Lisbon")
        await engine.memory.remember_session(session)
        source = EventSource(session.id, event.id)
        await engine.memory.long_term.set(ADA, "profile", "home", "Lisbon", sources=[source])
        names = {"session_id": session.id, "event_id": event.id}
        found = await engine.memory.upkeep.memories_of_event("shop", "ada", **names)
        assert {record.kind for record in found} == {"turn", "long_term"}
        for record in found:
            (back,) = await engine.memory.upkeep.sources("shop", "ada", record.id)
            assert back == EventSource(session.id, event.id, session.thread_id, 1)
        assert await engine.memory.upkeep.memories_of_event("shop", "bob", **names) == []
        # A new value has its own sources.
        await engine.memory.long_term.set(ADA, "profile", "home", "Porto")
        found = await engine.memory.upkeep.memories_of_event("shop", "ada", **names)
        assert {record.kind for record in found} == {"turn"}

    async def test_an_episode_of_a_run_names_its_question_and_answer(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        await engine.sessions.append(session, author="user", kind="user_message", text="where is my order?")
        async with engine.runs.start(session) as run:
            await run.append(kind="assistant_message", text="it left on Monday")
        await engine.memory.remember_run(session.thread_id, run.id)
        (episode,) = [one for one in await engine.memory.list("shop", "ada") if one.kind == "episodic"]
        sources = await engine.memory.upkeep.sources("shop", "ada", episode.id)
        events = {event.id: event for event in await engine.sessions.log.read(session.thread_id)}
        assert [events[source.event_id].content.get("text") for source in sources] == [
            "where is my order?",
            "it left on Monday",
        ]


async def test_upkeep_over_rest(engine: Engine) -> None:
    owner = {"app_name": "shop", "user_id": "ada"}
    session = await engine.sessions.create("shop", "ada")
    event = await engine.sessions.append(session, author="user", kind="user_message", text="I live in Lisbon")
    await engine.memory.remember_session(session)
    transport = httpx.ASGITransport(app=create_app(engine=engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for city in ("Rome", "Lisbon"):
            await client.put("/memory/long-term", json={**owner, "namespace": "n", "key": "home", "value": city})
        history = await client.get("/memory/long-term/history", params={**owner, "namespace": "n", "key": "home"})
        assert [version["value"] for version in history.json()["versions"]] == ["Lisbon", "Rome"]
        moment = history.json()["versions"][1]["valid_from"]
        entry = await client.get(
            "/memory/long-term/entry", params={**owner, "namespace": "n", "key": "home", "as_of": moment}
        )
        assert entry.json()["value"] == "Rome"
        names = {"session_id": session.id, "event_id": event.id}
        (memory,) = (await client.get("/memory/of-event", params={**owner, **names})).json()["memories"]
        sources = await client.get(f"/memory/{memory['id']}/sources", params=owner)
        assert sources.json()["sources"][0]["sequence_num"] == 1
        assert (await client.post("/memory/duplicates", json=owner)).json() == {"merged": 0}
        enqueued = await client.post("/memory/consolidations", json={**owner, "session_id": session.id})
        assert enqueued.status_code == 202
        assert (await client.post("/memory/consolidations", json={**owner, "session_id": "x"})).status_code == 404
