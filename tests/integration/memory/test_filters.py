"""Filters of memories: what they select, and that an index finds it among many memories."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine, InvalidInputError
from cognizes.engine.api.main import create_app
from cognizes.engine.memory.filters import Filters, Range
from cognizes.engine.memory.records import Hit, MemoryScope, Remembered
from tests.engine_parts import database_of

ADA = MemoryScope("shop", "ada")
NOW = datetime(2026, 11, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
MANY = 25_000


async def recalled(engine: Engine, query: str = "tea", user: str = "ada", **filters: Any) -> set[str]:
    hits: list[Hit] = await engine.memory.recall(query, app="shop", user=user, k=100, **filters)
    return {hit.memory.source_id for hit in hits}


@pytest.fixture
async def shop(engine: Engine) -> Engine:
    await engine.memory.remember(
        ADA,
        [
            Remembered("cheap", "black tea", tags=["drink"], metadata={"price": 2, "origin": "Assam"}),
            Remembered("dear", "white tea", tags=["drink", "gift"], metadata={"price": 20.5, "origin": "Fujian"}),
            Remembered("list", "a tea tasting", metadata={"guests": ["Bob", "Eve"], "on": "2026-05-01", "paid": True}),
            Remembered("plain", "tea without anything"),
        ],
    )
    return engine


async def test_tags_and_metadata_select(shop: Engine) -> None:
    assert await recalled(shop) == {"cheap", "dear", "list", "plain"}
    assert await recalled(shop, tags=["drink"]) == {"cheap", "dear"}
    assert await recalled(shop, tags=["drink", "gift"]) == {"dear"}
    assert await recalled(shop, metadata={"origin": "Assam"}) == {"cheap"}
    assert await recalled(shop, metadata={"price": 2.0}) == {"cheap"}
    assert await recalled(shop, metadata={"guests": ["Eve"]}) == {"list"}
    assert await recalled(shop, metadata={"paid": True}) == {"list"}
    assert await recalled(shop, tags=["gift"], metadata={"origin": "Assam"}) == set()
    assert await recalled(shop, user="bob", tags=["drink"]) == set()


async def test_very_large_and_zero_floats_are_numbers(shop: Engine) -> None:
    """`jsonb` columns contain such floats in an escaped form; filters compare numbers."""
    values = {"big": 1e20, "huge": 1e308, "low": -1e17, "zero": -0.0}
    notes = [Remembered(name, f"tea {name}", metadata={"size": value}) for name, value in values.items()]
    await shop.memory.remember(ADA, notes)
    assert await recalled(shop, metadata={"size": Range(gte=1e16)}) == {"big", "huge"}
    assert await recalled(shop, metadata={"size": Range(gt=-1e308, lt=1e308)}) == {"big", "low", "zero"}
    assert await recalled(shop, metadata={"size": Range(gte=-0.0, lt=1)}) == {"zero"}
    assert await recalled(shop, metadata={"size": 10**20}) == await recalled(shop, metadata={"size": 1e20}) == {"big"}
    assert await recalled(shop, metadata={"size": 0}) == {"zero"}


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), float("-inf"), 10**400, True])
async def test_bounds_that_are_not_finite_numbers_are_refused(shop: Engine, bound: float) -> None:
    with pytest.raises(InvalidInputError, match="'price'"):
        await recalled(shop, metadata={"price": Range(gte=bound)})


@pytest.mark.parametrize("name", ['" || true || "', 'price" > 0 || $."price', "$", "a\\", "\u2028", "*", "\x01", "😀"])
async def test_names_and_texts_of_ranges_are_never_part_of_the_path(shop: Engine, name: str) -> None:
    assert await recalled(shop, metadata={name: Range(gte=0)}) == set()
    assert await recalled(shop, metadata={name: 2}) == set()
    assert await recalled(shop, metadata={"price": Range(gte=name)}) == set()
    await shop.memory.remember(ADA, [Remembered("odd", "odd tea", metadata={name: 3})])
    assert await recalled(shop, metadata={name: Range(gte=3, lte=3)}) == {"odd"}


async def test_arguments_of_a_wrong_type_are_refused(shop: Engine) -> None:
    for kinds in ("turn", [["turn"]], [1]):
        with pytest.raises(InvalidInputError, match="kinds are"):
            await recalled(shop, kinds=kinds)
    for k in (1.5, "5", 0, None):
        with pytest.raises(InvalidInputError, match="invalid k"):
            await shop.memory.recall("tea", app="shop", user="ada", k=k)  # type: ignore[arg-type]


async def test_ranges_of_numbers_and_of_texts(shop: Engine) -> None:
    assert await recalled(shop, metadata={"price": Range(gte=2, lt=20.5)}) == {"cheap"}
    assert await recalled(shop, metadata={"price": Range(gt=2, lte=20.5)}) == {"dear"}
    assert await recalled(shop, metadata={"on": Range(gte="2026-05-01", lt="2026-06-01")}) == {"list"}
    # A text is not compared with a number.
    assert await recalled(shop, metadata={"on": Range(gte=0)}) == set()
    assert await recalled(shop, metadata={"price": Range(gt=0), "origin": "Fujian"}) == {"dear"}


async def test_storing_a_memory_again_without_details_keeps_them(shop: Engine) -> None:
    again = Remembered("cheap", "black tea")
    assert await shop.memory.remember(ADA, [again]) == 0
    assert await recalled(shop, tags=["drink"], metadata={"price": Range(lt=10)}) == {"cheap"}
    changed = Remembered("cheap", "black tea", tags=["sold"], metadata={"price": 50})
    assert await shop.memory.remember(ADA, [changed]) == 1
    assert await recalled(shop, metadata={"price": Range(lt=10)}) == set()
    assert await recalled(shop, tags=["sold"], metadata={"price": Range(gte=50)}) == {"cheap"}
    (record,) = [one for one in await shop.memory.list("shop", "ada") if one.source_id == "cheap"]
    assert (record.tags, record.metadata) == (["sold"], {"price": 50})


async def test_filters_and_deletion_leave_no_metadata(shop: Engine) -> None:
    for record in await shop.memory.list("shop", "ada", filters=Filters(tags=["drink"])):
        assert await shop.memory.forget("shop", "ada", record.id)
    rows = await database_of(shop).pool.fetch("SELECT name FROM memory_metadata")
    assert [row["name"] for row in rows] == ["on"]


@pytest.mark.parametrize(
    "item",
    [
        {"metadata": {"nested": {"a": 1}}},
        {"metadata": {"long": "x" * 1001}},
        {"metadata": {"": 1}},
        {"metadata": {"number": float("inf")}},
        {"metadata": {str(n): n for n in range(65)}},
        {"tags": [""]},
        {"tags": "drink"},
        {"importance": 1.5},
        {"expires_at": datetime(2026, 1, 1)},  # noqa: DTZ001
    ],
)
async def test_what_filters_cannot_compare_is_refused(engine: Engine, item: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        await engine.memory.remember(ADA, [Remembered("1", "tea", **item)])


@pytest.mark.parametrize("bounds", [Range(), Range(gt=1, lt="2"), Range(gt=True)])
async def test_an_invalid_range_is_refused(engine: Engine, bounds: Range) -> None:
    with pytest.raises(InvalidInputError, match="range"):
        await recalled(engine, metadata={"price": bounds})


async def test_filters_over_rest(shop: Engine) -> None:
    transport = httpx.ASGITransport(app=create_app(engine=shop))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        note = {"source_id": "new", "text": "green tea", "tags": ["drink"], "metadata": {"price": 7}, "importance": 0.5}
        answer = await client.post("/memory", json={"app_name": "shop", "user_id": "ada", "memories": [note]})
        assert answer.status_code == 201
        question = {
            "app_name": "shop",
            "user_id": "ada",
            "query": "tea",
            "tags": ["drink"],
            "metadata": {"price": {"gte": 5, "lt": 10}},
        }
        (hit,) = (await client.post("/memory/recall", json=question)).json()["hits"]
        assert (hit["source_id"], hit["tags"], hit["metadata"]) == ("new", ["drink"], {"price": 7})
        listed = await client.get("/memory", params={"app_name": "shop", "user_id": "ada", "tag": ["drink", "gift"]})
        assert [memory["source_id"] for memory in listed.json()["memories"]] == ["dear"]
        question["metadata"] = {"price": {"gte": 5, "lt": "x"}}
        assert (await client.post("/memory/recall", json=question)).status_code in (400, 422)


class TestAmongManyMemories:
    @pytest.fixture
    async def engine(self, database_url: str):  # type: ignore[no-untyped-def]
        async with Engine.open(database_url, embedder="none") as opened:
            pool = database_of(opened).pool
            await pool.execute(
                "INSERT INTO memories (app_name, user_id, agent_id, kind, namespace, source_id, text, terms, length, "
                "                      created_at) "
                "SELECT 'shop', 'ada', 'shop', 'turn', '', n::text, 'tea ' || n, keys, 1, "
                "       $1::timestamptz - n * interval '1 minute' "
                "FROM memory_term_keys('shop', 'ada', 'tea') AS keys, generate_series(1, $2::int) n",
                NOW, MANY,
            )  # fmt: skip
            await pool.execute(
                "INSERT INTO memory_metadata (app_name, user_id, name, number, memory_id) "
                "SELECT app_name, user_id, 'price', 1000 + id, id FROM memories"
            )
            wanted = {"tags": ["rare"], "metadata": {"price": 10}, "namespace": "menu"}
            others = {"tags": ["common"], "metadata": {"price": 1000}}
            await opened.memory.remember(
                ADA,
                [
                    Remembered(f"rare{n}", f"rare tea {n}", **wanted, created_at=NOW + timedelta(days=1))
                    for n in range(9)
                ]
                + [Remembered(f"other{n}", f"other tea {n}", **others, created_at=NOW) for n in range(500)],
            )
            await pool.execute("ANALYZE memories; ANALYZE memory_metadata")
            yield opened

    @pytest.mark.parametrize(
        "filters",
        [
            {"tags": ["rare"]},
            {"metadata": {"price": 10}},
            {"metadata": {"price": Range(gte=5, lt=50)}},
            {"namespace": "menu"},
            {"kinds": ["note"], "since": NOW + timedelta(hours=1)},
            {"since": NOW + timedelta(hours=1)},
            {"tags": ["rare"], "kinds": ["note"], "metadata": {"price": Range(lt=50)}, "agent": "shop"},
        ],
        ids="-".join,
    )
    async def test_an_index_selects_the_memories(self, engine: Engine, filters: dict[str, Any]) -> None:
        # Every memory contains the word, so that the ranking alone cannot select them.
        assert await recalled(engine, **filters) == {f"rare{n}" for n in range(9)}
        database = database_of(engine)
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {database.queries['select_memories']}"
        arguments = "shop", "ada", Filters(**filters).document, 5000
        assert len(await database.fetch_value("select_memories", *arguments)) == 9
        async with database.connection() as connection:
            # The first call also reads the catalogue.
            for _ in range(2):
                plan = json.loads(await connection.fetchval(query, *arguments))[0]["Plan"]
        # All memories of the user are in more than 300 blocks.
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 150

    async def test_a_label_of_many_memories_is_not_read_to_the_end(self, engine: Engine) -> None:
        database, arguments = database_of(engine), ("shop", "ada", Filters(tags=["half"]).document, 5000)
        await database.pool.execute(
            "UPDATE memories SET tags = tags || '{half}', labels = memory_labels(app_name, user_id, tags || '{half}', "
            "metadata, sources) WHERE id % 2 = 0"
        )
        await database.pool.execute("VACUUM ANALYZE memories")
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {database.queries['select_memories']}"
        async with database.connection() as connection:
            for _ in range(2):
                plan = json.loads(await connection.fetchval(query, *arguments))[0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 300
        assert await database.fetch_value("select_memories", *arguments) is None

    async def test_a_filter_that_matches_most_memories_selects_no_ids(self, engine: Engine) -> None:
        for filters in (Filters(kinds=["turn"]), Filters(agent="shop")):
            arguments = "shop", "ada", filters.document, 5000
            assert await database_of(engine).fetch_value("select_memories", *arguments) is None
        assert len(await recalled(engine, kinds=["turn"])) == 100


def test_the_number_of_names_of_metadata_is_limited_also_for_ranges() -> None:
    with pytest.raises(InvalidInputError, match="65 names"):
        _ = Filters(metadata={f"n{number}": Range(gt=1) for number in range(65)}).document
