"""Recall on a real PostgreSQL, with the real local embedder."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cognizes.engine import Engine, InvalidInputError, LimitExceededError
from cognizes.engine.database import Database
from cognizes.engine.memory.episodic import EpisodicEntry
from cognizes.engine.memory.filters import Filters
from cognizes.engine.memory.recall import Recall
from cognizes.engine.memory.records import Hit, MemoryScope, Remembered
from cognizes.engine.memory.vectors import VectorIndex
from tests.engine_parts import database_of

ADA = MemoryScope("shop", "ada")
BOB = MemoryScope("shop", "bob")
OTHER_APP = MemoryScope("bank", "ada")


async def embedded(engine: Engine) -> None:
    """Wait until the embedding queue is empty."""
    assert engine.memory.queue is not None
    deadline = asyncio.get_running_loop().time() + 60
    while (await engine.memory.queue.length()).waiting:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def notes(engine: Engine, *texts: str, scope: MemoryScope = ADA) -> None:
    await engine.memory.remember(scope, [Remembered(text, text) for text in texts])


async def recall(engine: Engine, query: str, scope: MemoryScope = ADA, **options: object) -> list[Hit]:
    return await engine.memory.recall(query, app=scope.app_name, user=scope.user_id, **options)  # type: ignore[arg-type]


FILLER = [f"we talked about the weather and the garden for {n} minutes" for n in range(30)]


class TestByWords:
    @pytest.fixture
    async def engine(self, database_url: str):  # type: ignore[no-untyped-def]
        async with Engine.open(database_url, embedder="none") as opened:
            yield opened

    async def test_it_works_without_an_embedder(self, engine: Engine) -> None:
        await notes(engine, "Ada likes green tea", "the order was refunded on Monday", *FILLER)
        hits = await recall(engine, "when were orders refunded?")
        assert hits[0].text == "the order was refunded on Monday"
        assert hits[0].scores["bm25"] > 0
        assert "cosine" not in hits[0].scores
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memory_embedding_queue") == 0

    async def test_chinese_japanese_and_mixed_text_is_found(self, engine: Engine) -> None:
        await notes(engine, "我们的退款政策是三十天", "他喜欢喝绿茶", "明日は会議があります", "私はPythonを使う")
        assert (await recall(engine, "退款政策"))[0].text == "我们的退款政策是三十天"
        assert (await recall(engine, "绿茶"))[0].text == "他喜欢喝绿茶"
        assert (await recall(engine, "会議はいつ"))[0].text == "明日は会議があります"
        assert (await recall(engine, "Python"))[0].text == "私はPythonを使う"

    async def test_a_rare_word_and_an_identifier_dominate(self, engine: Engine) -> None:
        await notes(
            engine,
            "the parcel ORD-4711 left",
            "the parcel ORD-4712 left",
            "what did we say about the meeting last week",
            "a colleague mentioned a zyzzyva once",
            *FILLER,
        )
        question = "what did we say about the meeting last week and the weather in the garden and"
        assert (await recall(engine, f"{question} ORD-4712"))[0].text == "the parcel ORD-4712 left"
        assert (await recall(engine, "meeting garden zyzzyva"))[0].text == "a colleague mentioned a zyzzyva once"

    async def test_who_said_it(self, engine: Engine) -> None:
        await engine.memory.remember_turns(
            ADA,
            [
                Remembered("1", "I like tea", session_id="s", position=1, author="Caroline"),
                Remembered("2", "I like tea", session_id="t", position=1, author="Melanie"),
            ],
        )
        assert (await recall(engine, "what does Melanie like?"))[0].memory.author == "Melanie"

    async def test_an_answer_is_found_by_its_question(self, engine: Engine) -> None:
        turns = ["Which colour shall the kitchen be?", "Sage.", "Fine."]
        await engine.memory.remember_turns(
            ADA, [Remembered(str(n), text, session_id="s", position=n) for n, text in enumerate(turns)]
        )
        await notes(engine, *FILLER)
        hits = await recall(engine, "colour of the kitchen", k=2)
        assert [hit.text for hit in hits] == turns[:2]
        assert hits[1].scores["neighbours"] > 0

    async def test_the_work_for_a_query_is_bounded(self, engine: Engine) -> None:
        words = " ".join(f"word{n}x" for n in range(5000))
        await notes(engine, *(words[: 2000 + n] for n in range(30)), *FILLER)
        rows = await database_of(engine).fetch(
            "recall_by_words", ADA.app_name, ADA.user_id, None, None, 200, False, words, ""
        )
        assert len(rows) == 30
        assert {len(row["matched"]) for row in rows} == {64}
        assert [len(row["weights"]) for row in rows if row["weights"]] == [256]
        # A query of the greatest length finds the same, and its vector has a bounded number of words.
        assert len(await recall(engine, words[:10_000], k=100)) == 30
        with pytest.raises(LimitExceededError):
            await recall(engine, words[:100_000].ljust(100_000))

    async def test_a_query_of_many_words_scores_as_one_of_few_words(self, engine: Engine) -> None:
        await notes(engine, "green tea and black tea", "green apples", *FILLER)
        few = {hit.text: hit.scores["bm25"] for hit in await recall(engine, "green tea")}
        unknown = " ".join(f"unknown{n}x" for n in range(30))
        many = {hit.text: hit.scores["bm25"] for hit in await recall(engine, f"green tea {unknown}")}
        assert many == pytest.approx(few)

    async def test_only_the_neighbours_of_the_best_candidates_are_read(self, engine: Engine) -> None:
        turns = [Remembered(str(n), f"tea {n}", session_id="s", position=n) for n in range(1000)]
        await engine.memory.remember_turns(ADA, turns)
        pool = await Recall(database_of(engine), embedder=None).gather("tea", app=ADA.app_name, user=ADA.user_id)
        assert len(pool.candidates) <= 7 * 100

    async def test_a_score_is_between_0_and_1_and_min_score_is_its_threshold(self, engine: Engine) -> None:
        await notes(engine, "green tea", "tea and much else that is of no interest to her", *FILLER)
        first, second = await recall(engine, "green tea")
        assert 1 > first.score > second.score > 0
        assert [hit.text for hit in await recall(engine, "green tea", min_score=first.score)] == ["green tea"]
        assert first.why.startswith(f"contains green, tea ({first.scores['words']:.0%} of the query's words)")
        for invalid in (-0.1, 1.1, float("nan")):
            with pytest.raises(InvalidInputError, match="min_score"):
                await recall(engine, "green tea", min_score=invalid)

    async def test_a_score_does_not_change_with_unrelated_words_elsewhere(self, engine: Engine) -> None:
        await notes(engine, "green tea", *FILLER)
        (alone,) = await recall(engine, "green tea")
        await notes(engine, "tea tea tea tea green green green green", "tea")
        again = {hit.text: hit.score for hit in await recall(engine, "green tea")}
        assert again["green tea"] == pytest.approx(alone.score, abs=0.05)

    async def test_nothing_is_found_by_nothing(self, engine: Engine) -> None:
        assert await recall(engine, "anything") == []
        await notes(engine, "one memory")
        for query in ("", "   ", "the of and", "\x00", "?!", "unrelated"):
            assert await recall(engine, query) == []

    async def test_filters(self, engine: Engine) -> None:
        now = datetime.now(UTC)
        clerk = MemoryScope("shop", "ada", "clerk")
        await engine.memory.long_term.set(ADA, "facts", "tea", "green tea")
        await engine.memory.long_term.set(ADA, "other", "tea", "black tea")
        await engine.memory.episodic.append(EpisodicEntry(ADA, "tea was ordered"))
        await engine.memory.remember(clerk, [Remembered("c", "tea for the clerk")])
        await engine.memory.remember(ADA, [Remembered("old", "tea long ago", created_at=now - timedelta(days=9))])

        async def texts(**options: object) -> set[str]:
            return {hit.text for hit in await recall(engine, "tea", **options)}

        assert len(await texts()) == 5
        assert await texts(kinds=["long_term"]) == {"tea: green tea", "tea: black tea"}
        assert await texts(namespace="facts") == {"tea: green tea"}
        assert await texts(agent="clerk") == {"tea for the clerk"}
        assert await texts(kinds=["episodic", "note"], agent="shop") == {"tea was ordered", "tea long ago"}
        assert await texts(until=now - timedelta(days=1)) == {"tea long ago"}
        assert "tea long ago" not in await texts(since=now - timedelta(days=1))
        with pytest.raises(InvalidInputError, match="kind"):
            await texts(kinds=["nonsense"])
        with pytest.raises(InvalidInputError, match="time zone"):
            await texts(since=datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidInputError):
            await texts(k=0)

    async def test_changed_memories_are_found_and_deleted_ones_are_not(self, engine: Engine) -> None:
        await engine.memory.long_term.set(ADA, "", "drink", "coffee")
        await engine.memory.long_term.set(ADA, "", "drink", "tea")
        assert await recall(engine, "coffee") == []
        assert [hit.text for hit in await recall(engine, "tea")] == ["drink: tea"]
        await engine.memory.long_term.set(ADA, "", "drink", "tea", text="")
        assert await recall(engine, "tea") == []
        await engine.memory.long_term.set(ADA, "", "drink", "tea")
        await engine.memory.long_term.delete(ADA, "", "drink")
        assert await recall(engine, "tea drink") == []
        assert await database_of(engine).pool.fetchval("SELECT memories + total_length FROM memory_scopes") == 0

    async def test_forgetting(self, engine: Engine) -> None:
        fact = await engine.memory.long_term.set(ADA, "n", "k", "forgettable fact")
        episode = await engine.memory.episodic.append(EpisodicEntry(ADA, "forgettable episode", session_id="s"))
        turn = Remembered("e", "forgettable turn", session_id="s", position=1)
        await engine.memory.remember_turns(ADA, [turn])
        hits = await recall(engine, "forgettable")
        assert len(hits) == 3
        for hit in hits:
            assert not await engine.memory.forget("shop", "bob", hit.memory.id)
            assert await engine.memory.forget("shop", "ada", hit.memory.id)
            assert not await engine.memory.forget("shop", "ada", hit.memory.id)
        assert await engine.memory.long_term.get(ADA, fact.namespace, fact.key) is None
        assert await engine.memory.episodic.get(ADA, episode.id) is None
        assert await engine.memory.remember_turns(ADA, [turn]) == 0
        assert await recall(engine, "forgettable") == []
        with pytest.raises(InvalidInputError, match="invalid memory id"):
            await engine.memory.forget("shop", "ada", "x")

    async def test_a_session_is_stored_once_and_then_only_its_new_messages(self, engine: Engine) -> None:
        session = await engine.sessions.create("shop", "ada")
        await engine.sessions.append(session, author="user", kind="user_message", text="my cat is called Tom\x00")
        await engine.sessions.append(session, author="agent", kind="thought", text="a secret thought about the cat")
        assert await engine.memory.remember_session(session) == 1
        assert await engine.memory.remember_session(session) == 0
        await engine.sessions.append(session, author="agent", kind="assistant_message", text="nice cat")
        assert await engine.memory.remember_session(session) == 1
        assert {hit.text for hit in await recall(engine, "cat")} == {"my cat is called Tom\x00", "nice cat"}

    async def test_listing(self, engine: Engine) -> None:
        await notes(engine, "a", "b", "c")
        first = await engine.memory.list("shop", "ada", limit=2)
        rest = await engine.memory.list("shop", "ada", limit=2, before=first[-1].id)
        assert [record.text for record in first + rest] == ["c", "b", "a"]
        assert await engine.memory.list("shop", "ada", filters=Filters(kinds=["turn"])) == []

    async def test_several_writers_of_one_user(self, engine: Engine) -> None:
        items = [Remembered(str(n), f"memory number {n} of tea") for n in range(40)]
        stored = await asyncio.gather(
            *(engine.memory.remember(ADA, items[start:] + items[:start]) for start in range(0, 40, 5))
        )
        assert sum(stored) == 40
        row = await database_of(engine).pool.fetchrow("SELECT memories, total_length FROM memory_scopes")
        assert row is not None
        assert row["memories"] == await database_of(engine).pool.fetchval("SELECT count(*) FROM memories") == 40
        assert row["total_length"] == await database_of(engine).pool.fetchval("SELECT sum(length) FROM memories")


class TestByMeaning:
    async def test_a_memory_is_found_without_a_common_word(self, engine: Engine) -> None:
        await notes(engine, "my dog needs the veterinarian", "the invoice is overdue", "we fly to Lisbon in May")
        await embedded(engine)
        (best, *_) = await recall(engine, "is the puppy sick?")
        assert best.text == "my dog needs the veterinarian"
        assert best.scores["bm25"] == 0
        assert best.scores["cosine"] > 0

    async def test_a_query_that_matches_neither_a_word_nor_a_meaning_finds_nothing(self, engine: Engine) -> None:
        await notes(
            engine, "Ada drinks green tea in the garden", "the order was refunded on Monday", "he painted a boat"
        )
        await embedded(engine)
        for query in ("python", "quantum chromodynamics", "zyzzyva"):
            assert await recall(engine, query) == []
        (hit, *_) = await recall(engine, "which beverage does she like?")
        assert hit.text == "Ada drinks green tea in the garden"
        assert "similar in meaning" in hit.why

    async def test_a_score_means_the_same_before_and_after_vectors_arrive(self, database_url: str) -> None:
        texts = ("Ada drinks green tea in the garden", "the order of the blue chair was refunded on Monday", *FILLER)
        async with Engine.open(database_url, memory_background=False) as engine:
            await notes(engine, *texts)
            before = (await recall(engine, "green tea in the garden"))[0]
            assert "cosine" not in before.scores
            assert engine.memory.queue is not None
            await engine.memory.queue.work()
            after = (await recall(engine, "green tea in the garden"))[0]
            assert "cosine" in after.scores
            assert after.text == before.text
            assert after.score == pytest.approx(before.score, abs=0.15)

    async def test_words_work_until_vectors_arrive(self, database_url: str) -> None:
        async with Engine.open(database_url, memory_background=False) as engine:
            await notes(engine, "the invoice is overdue", *FILLER)
            assert (await recall(engine, "invoices"))[0].text == "the invoice is overdue"
            assert (await engine.memory.queue.length()).waiting == 31  # type: ignore[union-attr]

    async def test_filters_hold_for_vectors_too(self, engine: Engine) -> None:
        await engine.memory.long_term.set(ADA, "pets", "dog", "needs the veterinarian")
        await notes(engine, "my dog needs the veterinarian")
        await embedded(engine)
        assert {hit.memory.kind for hit in await recall(engine, "is the puppy sick?", kinds=["note"])} == {"note"}

    async def test_many_memories_are_found_through_the_vector_index(self, engine: Engine) -> None:
        assert engine.memory.embedder is not None
        await notes(engine, "my dog needs the veterinarian", *FILLER)
        await notes(engine, "my dog needs the veterinarian too", scope=BOB)
        await embedded(engine)
        graph = VectorIndex(database_of(engine), engine.memory.embedder, large=10)
        assert await graph.grow() == 1
        assert await graph.grow() == 0
        await notes(engine, "a kitten was born")
        await embedded(engine)
        assert await database_of(engine).pool.fetchval("SELECT count(*) FROM memory_vectors WHERE in_graph") == 32
        assert await database_of(engine).pool.fetchval("SELECT graph_is_ready FROM memory_scopes WHERE user_id = 'ada'")
        assert (await recall(engine, "is the puppy sick?"))[0].text == "my dog needs the veterinarian"
        assert (await recall(engine, "young cat", kinds=["note"]))[0].text == "a kitten was born"
        assert [hit.text for hit in await recall(engine, "puppy", scope=BOB)] == ["my dog needs the veterinarian too"]


class TestManyMemoriesOfOneUser:
    """More memories than an exact scan reads."""

    async def test_frequent_words_are_found_and_rare_ones_dominate(self, database_url: str) -> None:
        async with Engine.open(database_url, embedder="none") as engine:
            await notes(engine, "every memory talks about quinces and pears", "zyzzyva about quinces")
            await _crowd(engine, "talks about quinces", 8000)
            await _crowd(engine, "talks about pears", 8000)
            await _crowd(engine, "every memory", 4500)
            exact = Recall(database_of(engine), embedder=None, exact=True)
            for query, best in (
                ("quinces and pears", "every memory talks about quinces and pears"),
                (
                    "which memory talks about pears and quinces every time?",
                    "every memory talks about quinces and pears",
                ),
                ("zyzzyva quinces", "zyzzyva about quinces"),
            ):
                (hit, *more) = await recall(engine, query, k=200)
                (same, *_) = await exact.recall(query, app="shop", user="ada", k=1)
                assert (hit.text, hit.memory.id, len(more)) == (best, same.memory.id, 199), query
            # Nothing holds both: then one of them is enough; and the filters choose before there are enough.
            assert {hit.text for hit in await recall(engine, "quinces memory", k=300, kinds=["turn"])} <= {
                "talks about quinces",
                "every memory",
            }
            assert [hit.text for hit in await recall(engine, "quinces", kinds=["note"])] == [
                "zyzzyva about quinces",
                "every memory talks about quinces and pears",
            ]
            assert await recall(engine, "quinces", scope=BOB) == []


async def _crowd(engine: Engine, text: str, count: int) -> None:
    """Many memories of one text, stored as fast as can be."""
    await database_of(engine).pool.execute(
        "INSERT INTO memories (app_name, user_id, agent_id, kind, source_id, text, terms, length) "
        "SELECT 'shop', 'ada', 'shop', 'turn', $1::text || n, $1::text, keys, cardinality(keys) "
        "FROM memory_term_keys('shop', 'ada', $1::text) AS keys, generate_series(1, $2::int) n",
        text, count,
    )  # fmt: skip


_words = st.sampled_from(["tea", "coffee", "order", "ORD-1", "退款", "政策", "dog", "garden", "zyzzyva", "monday"])
_texts = st.lists(_words, min_size=1, max_size=5).map(" ".join)
_writes = st.lists(st.tuples(st.sampled_from([ADA, BOB, OTHER_APP]), _texts), min_size=1, max_size=12)


async def test_two_tenants_memories_never_mix(database_url: str) -> None:
    """Each of three users recalls only his own memories."""
    async with Engine.open(database_url) as engine:
        loop = asyncio.get_running_loop()

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(writes=_writes, query=_texts, with_vectors=st.booleans())
        def check(writes: list[tuple[MemoryScope, str]], query: str, with_vectors: bool) -> None:
            asyncio.run_coroutine_threadsafe(run(writes, query, with_vectors), loop).result(120)

        async def run(writes: list[tuple[MemoryScope, str]], query: str, with_vectors: bool) -> None:
            await embedded(engine)
            await database_of(engine).pool.execute("DELETE FROM memories; DELETE FROM agent_long_term_memory")
            for number, (scope, text) in enumerate(writes):
                own = f"{text} of {scope.app_name} {scope.user_id}"
                if number % 2:
                    await engine.memory.long_term.set(scope, "n", text, own, text=own)
                else:
                    await engine.memory.remember_turns(scope, [Remembered(text, own, session_id="s", position=number)])
            if with_vectors:
                await embedded(engine)
            for scope in (ADA, BOB, OTHER_APP):
                hits = await recall(engine, query, scope=scope, k=100)
                assert all(hit.text.endswith(f" of {scope.app_name} {scope.user_id}") for hit in hits)
                mine = {f"{t} of {s.app_name} {s.user_id}" for s, t in writes if s == scope}
                listed = await engine.memory.list(scope.app_name, scope.user_id)
                assert {record.text for record in listed} == mine
                if any(word in text.split() for word in query.split() for s, text in writes if s == scope):
                    assert hits

        await asyncio.to_thread(check)


async def test_common_words_of_many_memories_are_not_counted_exhaustively(database_url: str) -> None:
    async with Engine.open(database_url, embedder="none") as engine:
        await database_of(engine).pool.execute(
            """
            INSERT INTO memories (app_name, user_id, agent_id, kind, source_id, text, terms, length)
            SELECT 'shop', 'ada', 'shop', 'note', n::text, text, terms, cardinality(terms)
              FROM (SELECT n, 'garden weather number' || n % 1000 AS text FROM generate_series(1, 21000) n) texts,
                   LATERAL (SELECT memory_term_keys('shop', 'ada', text) AS terms) keys
            """
        )
        await notes(engine, "garden party", "weather report of the garden with a zyzzyva")
        hits = await recall(engine, "weather in the garden with a zyzzyva", k=5)
        assert hits[0].text == "weather report of the garden with a zyzzyva"
        assert {hit.text for hit in await recall(engine, "garden weather number7", k=21)} == {"garden weather number7"}
        assert len(await recall(engine, "garden weather", k=5)) == 5


async def test_a_query_of_many_words_selects_by_the_rarest_of_them(database_url: str) -> None:
    async with Engine.open(database_url, embedder="none") as engine:
        pool = database_of(engine).pool
        await pool.execute(
            """
            INSERT INTO memories (app_name, user_id, agent_id, kind, source_id, text, terms, length)
            SELECT 'shop', 'ada', 'shop', 'note', n::text, text, terms, cardinality(terms)
              FROM (SELECT n, format('plum%s pear%s', n % 20, n % 30) AS text FROM generate_series(1, 24000) n) texts,
                   LATERAL (SELECT memory_term_keys('shop', 'ada', text) AS terms) keys
            """
        )
        query = " ".join(f"plum{n}" for n in range(20))
        await notes(engine, f"{query} zyzzyva", "plum7 zyzzyva")
        searched, selected = await pool.fetchrow(
            """
            SELECT cardinality(asked),
                   (SELECT count(*) FROM memories WHERE terms && asked AND NOT terms && frequent.keys)
              FROM memory_term_keys('shop', 'ada', $1) AS asked,
                   find_frequent_terms('shop', 'ada', asked, 24000) AS frequent
            """,
            query,
        )
        # Each word is in 1 200 memories: together they would select all of them.
        assert searched == 20
        assert 9_600 <= selected <= 14_400
        assert [hit.text for hit in await recall(engine, f"{query} zyzzyva", k=2)] == [
            f"{query} zyzzyva",
            "plum7 zyzzyva",
        ]


async def test_neighbours_of_memories_are_read_by_index_before_the_table_has_statistics(engine: Engine) -> None:
    pool = database_of(engine).pool
    await pool.execute(
        "INSERT INTO memories (app_name, user_id, agent_id, kind, namespace, source_id, session_id, author, text, "
        "                      position, length, terms) "
        "SELECT 'app', 'ada', 'app', 'turn', '', 's' || n, 'session' || n % 5, 'ada', 'text', n, 1, ARRAY[n] "
        "  FROM generate_series(1, 10000) n"
    )
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM memories ORDER BY id LIMIT 50 OFFSET 5000")]
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {database_of(engine).queries['read_memory_neighbours']}"
    plan = json.loads(await pool.fetchval(query, "app", "ada", None, ids))[0]["Plan"]
    assert plan["Actual Rows"] == 50 * 7
    # Reading all memories of the user for each of the 50 would touch 20 000 blocks.
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 4000


async def test_a_recall_scans_the_graph_of_vectors_only_in_a_large_scope(database_url: str) -> None:
    async with (
        Engine.open(database_url, memory_background=False) as engine,
        # With one connection the server flushes the statistics of the recall on request.
        asyncpg.create_pool(database_url, min_size=1, max_size=1) as pool,
    ):
        database, embedder = database_of(engine), engine.memory.embedder
        assert embedder is not None
        for scope, memories in ((ADA, 4000), (BOB, 100)):
            await database.pool.execute(
                """
                WITH stored AS (
                    INSERT INTO memories (app_name, user_id, agent_id, kind, source_id, text, terms, length)
                    SELECT $1, $2, $1, 'note', n::text, 'text', '{}', 1 FROM generate_series(1, $3) n
                    RETURNING app_name, user_id, id
                )
                INSERT INTO memory_vectors (app_name, user_id, memory_id, model, embedding)
                SELECT app_name, user_id, id, $4,
                       ARRAY(SELECT (random() - 0.5 + 0 * id)::real FROM generate_series(1, $5))::halfvec FROM stored
                """,
                *(scope.app_name, scope.user_id, memories, embedder.name, embedder.dimension),
            )
        assert await VectorIndex(database, embedder, large=1000).grow() == 1
        await database.pool.execute("ANALYZE memory_vectors")

        async def work(scope: MemoryScope) -> tuple[int, int]:
            """Return the scans of the graph and the rows that the primary key found, of one recall."""
            found: list[asyncpg.Record] = []
            for number in range(2):
                await pool.execute("SELECT pg_stat_force_next_flush()")
                found.append(
                    await pool.fetchrow(
                        """
                        SELECT sum(idx_scan) FILTER (WHERE indexrelname LIKE 'memory_vectors_graph_%') AS graph,
                               sum(idx_tup_read) FILTER (WHERE indexrelname = 'memory_vectors_pkey') AS rows
                          FROM pg_stat_user_indexes
                        """
                    )
                )
                if number == 0:
                    searching = Recall(Database(pool), embedder=embedder)
                    await searching.recall("is the puppy sick?", app=scope.app_name, user=scope.user_id)
            return found[1]["graph"] - found[0]["graph"], found[1]["rows"] - found[0]["rows"]

        scans, rows = await work(ADA)
        assert scans == 1
        assert rows < 400
        scans, rows = await work(BOB)
        assert scans == 0
        assert rows >= 100


async def test_a_single_ideograph_finds_a_sentence(engine: Engine) -> None:
    await engine.memory.remember(
        MemoryScope("app", "ada"), [Remembered("1", "我有一只猫"), Remembered("2", "我有一条狗")]
    )
    assert [hit.text for hit in await engine.memory.recall("猫", app="app", user="ada")][:1] == ["我有一只猫"]


async def test_a_query_about_nothing_that_was_said_finds_nothing_among_many(database_url: str) -> None:
    people, things = ("Ada", "Bob", "Cleo", "Dan", "Eve"), ("tea", "bread", "a bike", "the rent", "a ticket")
    places = ("at home", "in Lisbon", "at work", "by the sea", "at school", "in the garden", "on the train", "abroad")
    texts = [
        f"{people[n % 5]} paid for {things[n // 5 % 5]} {places[n // 25 % 8]} on day {n // 200} of the trip"
        for n in range(5000)
    ]
    async with Engine.open(database_url, memory_background=False) as engine:
        await engine.memory.remember(
            MemoryScope("app", "ada"), [Remembered(str(n), text) for n, text in enumerate(texts)]
        )
        assert engine.memory.queue is not None
        while await engine.memory.queue.work():
            pass
        assert await engine.memory.recall("quantum chromodynamics", app="app", user="ada") == []
        assert await engine.memory.recall("tickets", app="app", user="ada") != []


async def test_neighbours_under_a_selective_filter_are_few_and_near(engine: Engine) -> None:
    """Those that pass are thousands of turns apart: they are no neighbours, and no session is read from end to end."""
    pool = database_of(engine).pool
    await pool.execute(
        "INSERT INTO memories (app_name, user_id, agent_id, kind, namespace, source_id, session_id, author, text, "
        "                      position, length, terms, tags) "
        "SELECT 'app', 'ada', 'app', 'turn', '', 's' || n, 'session', 'ada', 'text', n, 1, ARRAY[n], "
        "       CASE WHEN n % 4000 = 0 THEN ARRAY['rare'] ELSE '{}' END "
        "  FROM generate_series(1, 20000) n"
    )
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM memories WHERE tags <> '{}'")]
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {database_of(engine).queries['read_memory_neighbours']}"
    plan = json.loads(await pool.fetchval(query, "app", "ada", '{"tags": ["rare"]}', ids))[0]["Plan"]
    assert plan["Actual Rows"] == 5
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 1000
