"""OpenStore: what LangGraph's store in memory does too, and what PostgreSQL adds."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from langchain_core.embeddings import Embeddings
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore, GetOp, InvalidNamespaceError, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from cognizes.engine import Engine, InvalidInputError, LeaseLostError, LimitExceededError
from cognizes.engine.adapters.langgraph import OpenStore
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from tests.counting_proxy import counting_proxy
from tests.engine_parts import maintenance_of


class LetterEmbeddings(Embeddings):
    """Counts the letters of a text: texts with the same letters are near each other."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        counts = [text.lower().count(chr(97 + place)) + 0.01 for place in range(26)]
        length = math.sqrt(sum(count * count for count in counts))
        return [count / length for count in counts]


INDEX: Any = {"dims": 26, "embed": LetterEmbeddings(), "fields": ["text"]}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[OpenStore]:
    async with OpenStore(database_url, index=INDEX, ttl={"default_ttl": None}) as opened:
        yield opened


@pytest.fixture(params=["ours", "in memory"])
def each_store(request: pytest.FixtureRequest) -> BaseStore:
    """Ours, and LangGraph's own: a test that passes on both describes LangGraph's behaviour."""
    found: BaseStore = request.getfixturevalue("store") if request.param == "ours" else InMemoryStore(index=INDEX)
    return found


async def change(url: str, statement: str, *arguments: Any) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement, *arguments)
    finally:
        await connection.close()


async def expire(url: str, key: str) -> None:
    await change(url, "UPDATE graph_items SET expires_at = now() - interval '1 minute' WHERE key = $1", key)


async def keys(store: BaseStore, prefix: tuple[str, ...] = (), **options: Any) -> list[str]:
    return [item.key for item in await store.asearch(prefix, **options)]


VALUE = {"b": [1, 2.5, None, {"a": "Grüße 🎈 \x00 \ud800"}], "a": {"nested": True}, "large": 1e300, "zero": -0.0}


async def test_an_item_comes_back_as_it_was_put(each_store: BaseStore) -> None:
    await each_store.aput(("users", "ada"), "profile", VALUE)
    item = await each_store.aget(("users", "ada"), "profile")
    assert item is not None
    assert (item.namespace, item.key, item.value) == (("users", "ada"), "profile", VALUE)
    assert math.copysign(1, item.value["zero"]) == -1
    await each_store.aput(("users", "ada"), "profile", {"text": "new"})
    replaced = await each_store.aget(("users", "ada"), "profile")
    assert replaced is not None
    assert replaced.value == {"text": "new"}
    assert replaced.updated_at > item.updated_at
    await each_store.adelete(("users", "ada"), "profile")
    assert await each_store.aget(("users", "ada"), "profile") is None
    assert await each_store.aget(("users",), "profile") is None


DOCUMENTS: dict[str, dict[str, Any]] = {
    "a": {"n": 2, "tags": ["x", "y"], "who": {"name": "Ada", "age": 36}, "s": "b"},
    "b": {"n": 10, "tags": ["x"], "who": {"name": "Bob", "age": 7}, "s": "a"},
    "c": {"n": -1.5, "tags": [], "who": "Cy", "s": "c"},
}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"n": 2}, "a"),
        ({"n": {"$gt": 2}}, "b"),
        ({"n": {"$gte": 2, "$lt": 10}}, "a"),
        ({"n": {"$lte": -1.5}}, "c"),
        ({"n": {"$ne": 2}}, "bc"),
        ({"n": {"$eq": 10}}, "b"),
        ({"tags": ["x", "y"]}, "a"),
        ({"tags": []}, "c"),
        ({"who": {"name": "Ada"}}, "a"),
        ({"who": {"age": {"$lt": 30}, "name": "Bob"}}, "b"),
        ({"who": "Cy"}, "c"),
        ({"missing": None}, "abc"),
        ({"missing": {"$ne": 1}}, "abc"),
        ({"n": 2, "s": "a"}, ""),
    ],
)
async def test_filters(each_store: BaseStore, conditions: dict[str, Any], expected: str) -> None:
    for key, value in DOCUMENTS.items():
        await each_store.aput(("docs",), key, value)
    assert "".join(sorted(await keys(each_store, ("docs",), filter=conditions))) == expected


async def test_filters_compare_texts_and_numbers_by_their_own_order(store: OpenStore) -> None:
    for key, value in DOCUMENTS.items():
        await store.aput(("docs",), key, value | {"huge": 1e20 if key == "a" else 5})
    assert sorted(await keys(store, filter={"s": {"$gt": "a"}})) == ["a", "c"]
    assert await keys(store, filter={"huge": {"$gt": 1e19}}) == ["a"]
    assert await keys(store, filter={"s": {"$gt": 1}}) == []


async def test_an_unknown_operator_is_refused(each_store: BaseStore) -> None:
    await each_store.aput(("docs",), "a", {"n": 1})
    with pytest.raises(ValueError, match="Unsupported operator: \\$near"):
        await each_store.asearch(("docs",), filter={"n": {"$near": 1}})


async def test_a_search_finds_the_nearest_items_and_then_those_without_a_vector(each_store: BaseStore) -> None:
    await each_store.aput(("m",), "far", {"text": "zzzz"})
    await each_store.aput(("m",), "near", {"text": "abab"})
    await each_store.aput(("m",), "plain", {"text": "aabb"}, index=False)
    found = await each_store.asearch(("m",), query="bbaa")
    assert [item.key for item in found] == ["near", "far", "plain"]
    assert found[0].score == pytest.approx(1, abs=1e-3)
    assert (found[1].score or 0) < 0.1
    assert found[2].score is None
    assert await keys(each_store, ("m",), query="bbaa", limit=1, offset=1) == ["far"]


async def test_an_item_counts_with_the_nearest_of_its_texts(each_store: BaseStore) -> None:
    await each_store.aput(("m",), "both", {"parts": [{"t": "qqq"}, {"t": "aaa"}]}, index=["parts[*].t"])
    await each_store.aput(("m",), "one", {"parts": [{"t": "aab"}]}, index=["parts[*].t"])
    found = await each_store.asearch(("m",), query="aaa")
    assert [item.key for item in found] == ["both", "one"]
    assert found[0].score == pytest.approx(1, abs=1e-3)


async def test_a_replaced_value_loses_the_vectors_of_the_old_one(store: OpenStore, database_url: str) -> None:
    await store.aput(("m",), "k", {"parts": ["aaa", "bbb"]}, index=["parts[*]"])
    await store.aput(("m",), "k", {"parts": ["ccc"]}, index=["parts[*]"])
    assert await change(database_url, "SELECT count(*) FROM graph_item_vectors") == 1
    await store.adelete(("m",), "k")
    assert await change(database_url, "SELECT count(*) FROM graph_item_vectors") == 0


async def test_namespaces_are_listed_by_prefix_suffix_and_depth(each_store: BaseStore) -> None:
    for namespace in [("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a-b",), ("a", "c", "f"), ("z",)]:
        await each_store.aput(namespace, "k", {})
    assert await each_store.alist_namespaces(prefix=("a", "b"), max_depth=3) == [("a", "b", "c"), ("a", "b", "d")]
    assert await each_store.alist_namespaces(prefix=("a", "*", "d"), suffix=("*", "i")) == [("a", "b", "d", "i")]
    assert await each_store.alist_namespaces(limit=2, offset=3) == [("a", "c", "f"), ("a-b",)]
    assert await each_store.alist_namespaces(suffix=("z", "z")) == []


async def test_a_batch_reads_first_and_stores_all_puts_or_none(store: OpenStore) -> None:
    await store.aput(("n",), "k", {"v": 1})
    results = await store.abatch([PutOp(("n",), "k", {"v": 2}), GetOp(("n",), "k"), SearchOp(("n",))])
    assert results[0] is None
    assert [results[1].value, results[2][0].value] == [{"v": 1}, {"v": 1}]  # type: ignore[union-attr,index]
    with pytest.raises(InvalidInputError, match="not JSON: set cannot be written"):
        await store.abatch([PutOp(("n",), "other", {"v": 3}), PutOp(("n",), "k", {"v": {1, 2}})])
    assert await keys(store) == ["k"]


async def test_expired_items_are_not_returned_and_then_deleted(store: OpenStore, database_url: str) -> None:
    await store.aput(("t", "gone"), "gone", {"text": "a"}, ttl=1)
    await store.aput(("t", "stays"), "stays", {"text": "a"})
    await expire(database_url, "gone")
    assert await store.aget(("t", "gone"), "gone") is None
    assert await keys(store, ("t",)) == ["stays"]
    assert await keys(store, ("t",), query="a") == ["stays"]
    assert await store.alist_namespaces() == [("t", "stays")]
    assert store.ttl_config is not None
    store.ttl_config["omit_expired"] = False
    assert await store.aget(("t", "gone"), "gone", refresh_ttl=False) is not None
    assert sorted(await keys(store, ("t",), refresh_ttl=False)) == ["gone", "stays"]
    assert len(await store.alist_namespaces()) == 2
    assert await change(database_url, "SELECT prune_graph_items(10)") == 1
    assert await change(database_url, "SELECT array_agg(key) FROM graph_items") == ["stays"]


async def test_a_read_extends_the_life_of_items_that_are_not_expired(store: OpenStore, database_url: str) -> None:
    half_over = "UPDATE graph_items SET expires_at = now() + interval '30 seconds' WHERE key <> 'expired'"
    left = "SELECT extract(epoch FROM expires_at - now()) FROM graph_items WHERE key = $1"
    for key in ("got", "found", "expired"):
        await store.aput((key,), key, {"text": key}, ttl=1)
    await expire(database_url, "expired")
    await change(database_url, half_over)
    await store.aget(("got",), "got", refresh_ttl=False)
    assert await change(database_url, left, "got") < 31
    await store.aget(("got",), "got")
    await store.asearch(("found",), query="found")
    await store.aget(("expired",), "expired")
    await store.asearch((), filter={"text": "expired"})
    assert await change(database_url, left, "got") > 55
    assert await change(database_url, left, "found") > 55
    assert await change(database_url, left, "expired") < 0


async def test_expired_items_take_no_place_of_a_page(store: OpenStore, database_url: str) -> None:
    for key in ("c", "b", "expired", "a"):
        await store.aput(("page",), key, {"text": key}, ttl=1)
    await expire(database_url, "expired")
    assert await keys(store, ("page",), limit=2) == ["a", "b"]
    assert await keys(store, ("page",), limit=2, offset=2) == ["c"]


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf])
async def test_an_impossible_ttl_is_refused(store: OpenStore, ttl: float) -> None:
    with pytest.raises(InvalidInputError, match="invalid ttl"):
        await store.aput(("t",), "k", {}, ttl=ttl)


async def test_the_embedder_of_the_engine_is_the_default(database_url: str) -> None:
    async with OpenStore(database_url, embedder="wordllama") as store:
        await store.aput(("m",), "food", {"text": "I like pizza and pasta"})
        await store.aput(("m",), "sport", {"text": "He plays football on Sundays"})
        found = await store.asearch(("m",), query="Italian dishes")
        assert [item.key for item in found] == ["food", "sport"]
        assert (found[0].score or 0) > (found[1].score or 0)
    async with OpenStore(database_url, embedder="none") as store:
        assert sorted(await keys(store, ("m",), query="anything")) == ["food", "sport"]


async def test_an_operation_is_one_round_trip_and_concurrent_ones_share_it(database_url: str) -> None:
    quiet: dict[str, Any] = {"index": False, "pool_size": 2, "memory_background": False}
    async with counting_proxy(database_url) as (url, proxy), OpenStore(url, **quiet) as store:
        await maintenance_of(await store.engine()).close()
        await store.aput(("n",), "k", {"v": 1})
        proxy.taken()
        await store.aget(("n",), "k")
        assert proxy.taken() == ["get_graph_items"]
        await asyncio.gather(*(store.aput(("n",), str(number), {"v": number}) for number in range(100)))
        assert len(proxy.taken()) <= 3
        found = await asyncio.gather(*(store.aget(("n",), str(number)) for number in range(100)))
        assert [item and item.value for item in found] == [{"v": number} for number in range(100)]
        assert len(proxy.taken()) <= 3


async def test_an_invalid_put_fails_no_concurrent_one(store: OpenStore) -> None:
    puts = [store.aput(("n",), str(number), {"v": number}) for number in range(20)]
    results = await asyncio.gather(
        *puts, store.aput(("n",), "bad", {"v": object()}), store.aput(("n.m",), "bad", {}), return_exceptions=True
    )
    assert results[:20] == [None] * 20
    assert isinstance(results[20], InvalidInputError)
    assert isinstance(results[21], InvalidNamespaceError)
    assert len(await keys(store, limit=100)) == 20


async def test_writers_of_the_same_items_in_another_order_do_not_deadlock(database_url: str) -> None:
    async with OpenStore(database_url, index=False) as first, OpenStore(database_url, index=False) as second:

        async def write(store: OpenStore, order: range) -> None:
            for turn in range(30):
                await store.abatch(
                    [PutOp(("n",), str(key), None if (turn + key) % 3 == 0 else {"v": turn}) for key in order]
                )

        await asyncio.gather(write(first, range(20)), write(second, range(19, -1, -1)))
        assert {item.value["v"] for item in await first.asearch((), limit=100)} <= {28, 29}


async def test_limits_name_the_setting(database_url: str) -> None:
    async with OpenStore(database_url, index=False, max_event_bytes=2000) as store:
        with pytest.raises(LimitExceededError, match=r"item 'k' is .*COGNIZES_MAX_EVENT_BYTES"):
            await store.aput(("n",), "k", {"v": "x" * 3000})
        with pytest.raises(InvalidInputError, match="longer than 1500 bytes"):
            await store.aput(("n" * 2000,), "k", {})
        with pytest.raises(InvalidInputError, match="NUL"):
            await store.aput(("n",), "a\x00", {})
        with pytest.raises(InvalidInputError, match="invalid limit -1"):
            await store.asearch((), limit=-1)


async def test_apps_and_tenants_share_nothing(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        of_a, of_b = (OpenStore(engine=engine, app_name=app, index=INDEX) for app in ("a", "b"))
        for store, text in ((of_a, "of a"), (of_b, "of b")):
            await store.aput(("n",), "k", {"text": text})
        assert [item.value["text"] for item in await of_a.asearch(())] == ["of a"]
        with acting_for(["b"]):
            assert await of_a.aget(("n",), "k") is None
            assert await of_a.asearch((), query="of a") == []
            assert await of_a.alist_namespaces() == []
            assert [item.value["text"] for item in await of_b.asearch((), query="of")] == ["of b"]
            with pytest.raises(Exception, match="row-level security"):
                await of_a.aput(("n",), "k", {"text": "of b"})
        item = await of_a.aget(("n",), "k")
        assert item is not None
        assert item.value == {"text": "of a"}


async def test_a_run_that_lost_its_lease_writes_no_item(engine: Engine) -> None:
    store = OpenStore(engine=engine, index=False)
    session = await engine.sessions.create("shop", "ada")
    run = await engine.runs.enqueue(session, "work")
    (claimed,) = await engine.runs.claim(["work"])
    with fenced_by(RunFence(UUID(session.thread_id), run.id, claimed.attempt)):
        await store.aput(("n",), "k", {"v": 1})
    with fenced_by(RunFence(UUID(session.thread_id), run.id, claimed.attempt - 1)):
        results = await asyncio.gather(
            store.aput(("n",), "k", {"v": 2}), store.aput(("n",), "other", {"v": 2}), return_exceptions=True
        )
    assert [type(result) for result in results] == [LeaseLostError, LeaseLostError]
    assert [item.value for item in await store.asearch(())] == [{"v": 1}]


async def test_the_user_of_a_namespace_can_be_chosen(database_url: str) -> None:
    users = "SELECT array_agg(user_id ORDER BY key) FROM graph_items"
    async with OpenStore(database_url, index=False) as store:
        await store.aput(("users", "ada", "notes"), "a", {})
        await store.aput(("products",), "b", {})
        assert await change(database_url, users) == ["ada", None]
    async with OpenStore(database_url, index=False, user_of=lambda namespace: namespace[0]) as store:
        await store.aput(("bob", "memories"), "c", {})
    assert await change(database_url, users) == ["ada", None, "bob"]


async def test_nodes_of_a_graph_use_the_store(each_store: BaseStore) -> None:
    async def note(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        await store.aput(("users", "ada"), "seen", {"text": state["messages"][-1].text})
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("note", note)
    builder.add_edge(START, "note")
    await builder.compile(store=each_store).ainvoke({"messages": ["hello"]})
    item = await each_store.aget(("users", "ada"), "seen")
    assert item is not None
    assert item.value == {"text": "hello"}


async def test_blocking_methods_in_threads_and_on_the_loop(store: OpenStore) -> None:
    await asyncio.to_thread(store.put, ("n",), "k", {"text": "a"})
    assert (await asyncio.to_thread(store.get, ("n",), "k")).value == {"text": "a"}  # type: ignore[union-attr]
    with pytest.raises(asyncio.InvalidStateError, match=r"await OpenStore\.abatch"):
        store.get(("n",), "k")


_WITHOUT_A_LOOP = """
import sys
from cognizes.engine.adapters.langgraph import OpenStore
with OpenStore(sys.argv[1], embedder="none") as store:
    store.put(("n",), "k", {"v": 1})
    print(store.get(("n",), "k").value, store.list_namespaces())
import threading
print([thread.name for thread in threading.enumerate()])
"""


async def test_a_script_without_an_event_loop(database_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WITHOUT_A_LOOP, database_url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert output.decode().splitlines() == ["{'v': 1} [('n',)]", "['MainThread']"]
    assert process.returncode == 0
