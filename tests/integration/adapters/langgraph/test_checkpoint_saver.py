"""Graphs on OpenCheckpointSaver: what LangGraph's own checkpointer does, and what PostgreSQL adds."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Command

from cognizes.engine import Engine, InvalidInputError, LeaseLostError, UnreadableCheckpointError
from cognizes.engine.adapters.langgraph import OpenCheckpointSaver
from cognizes.engine.database.tenancy import acting_for
from cognizes.engine.pulse.sessions import RunFence, fenced_by
from tests.counting_proxy import counting_proxy
from tests.engine_parts import maintenance_of
from tests.integration.adapters.langgraph.graphs import asking, fan_out, two_nodes, with_delta_channel


def thread(thread_id: str | None = None, **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id or str(uuid4()), **more}}


async def stored_rows(url: str, table: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        count: int = await connection.fetchval(f"SELECT count(*) FROM {table}")
        return count
    finally:
        await connection.close()


async def test_a_graph_keeps_its_state_between_invocations(each_saver: BaseCheckpointSaver[str]) -> None:
    graph, config = two_nodes().compile(checkpointer=each_saver), thread()
    await graph.ainvoke({"log": ["a"]}, config)
    result = await graph.ainvoke({"log": ["b"]}, config)
    assert result == {"log": ["a", "first", "second", "b", "first", "second"]}
    steps = [state.metadata["step"] async for state in graph.aget_state_history(config) if state.metadata]
    assert steps == list(range(6, -2, -1))
    limited = [state.config async for state in graph.aget_state_history(config, limit=3)]
    after = [state.config async for state in graph.aget_state_history(config, before=limited[-1], limit=2)]
    assert len({str(found) for found in limited + after}) == 5


async def test_an_interrupted_graph_continues_with_the_answer(each_saver: BaseCheckpointSaver[str]) -> None:
    graph, config = asking().compile(checkpointer=each_saver), thread()
    interrupted = await graph.ainvoke({"log": []}, config)
    assert [found.value for found in interrupted["__interrupt__"]] == [{"question": "go on?"}]
    result = await graph.ainvoke(Command(resume="yes"), config)
    assert result == {"log": ["prepared", "asked"], "answer": "yes"}


async def test_a_fork_from_an_earlier_checkpoint_leaves_the_first_branch(each_saver: BaseCheckpointSaver[str]) -> None:
    graph, config = two_nodes().compile(checkpointer=each_saver), thread()
    await graph.ainvoke({"log": ["a"]}, config)
    [after_first] = [state async for state in graph.aget_state_history(config) if state.next == ("second",)]
    newest = await graph.aget_state(config)
    forked = await graph.aupdate_state(after_first.config, {"log": ["changed"]})
    assert (await graph.ainvoke(None, forked))["log"] == ["a", "first", "changed", "second"]
    assert (await graph.aget_state(newest.config)).values == {"log": ["a", "first", "second"]}


async def test_parallel_tasks_are_stored_in_order(each_saver: BaseCheckpointSaver[str]) -> None:
    graph, config = fan_out(20).compile(checkpointer=each_saver), thread()
    await graph.ainvoke({"log": []}, config)
    assert (await graph.aget_state(config)).values["log"] == [str(number) for number in range(20)]


async def test_delta_channels_are_rebuilt_from_writes_and_snapshots(each_saver: BaseCheckpointSaver[str]) -> None:
    graph, config = with_delta_channel().compile(checkpointer=each_saver), thread()
    said = []
    for turn in range(11):
        said.append(f"turn {turn}")
        await graph.ainvoke({"turn": turn}, config)
        assert (await graph.aget_state(config)).values["log"] == said
    states = [state async for state in graph.aget_state_history(config)]
    assert [state.values.get("log", []) for state in states][-3:] == [["turn 0"], [], []]


async def test_pruning_keeps_what_delta_channels_need(saver: OpenCheckpointSaver, database_url: str) -> None:
    graph, config = with_delta_channel().compile(checkpointer=saver), thread("t")
    for turn in range(11):
        await graph.ainvoke({"turn": turn}, config)
    before = await stored_rows(database_url, "graph_checkpoints")
    await saver.aprune(["t"])
    assert 1 <= await stored_rows(database_url, "graph_checkpoints") < before
    assert (await graph.aget_state(config)).values["log"] == [f"turn {turn}" for turn in range(11)]


async def test_pruning_deletes_values_that_no_checkpoint_has(saver: OpenCheckpointSaver, database_url: str) -> None:
    graph, config = two_nodes().compile(checkpointer=saver), thread("t")
    await graph.ainvoke({"log": ["a"]}, config)
    await saver.aprune(["t"])
    assert await stored_rows(database_url, "graph_checkpoints") == 1
    assert await stored_rows(database_url, "graph_channels") == 1
    result = await graph.ainvoke({"log": ["b"]}, config)
    assert result["log"] == ["a", "first", "second", "b", "first", "second"]
    with pytest.raises(ValueError, match="keep_latest"):
        await saver.aprune(["t"], strategy="keep_some")


async def test_a_value_is_stored_once_for_all_checkpoints(saver: OpenCheckpointSaver, database_url: str) -> None:
    graph, config = two_nodes().compile(checkpointer=saver), thread()
    await graph.aupdate_state(config, {"log": ["x" * 100_000]}, as_node="first")
    for _ in range(10):
        await graph.aupdate_state(config, {"answer": "small"}, as_node="first")
    assert await stored_rows(database_url, "graph_channels") == 1


async def test_a_step_is_two_round_trips(database_url: str) -> None:
    async with counting_proxy(database_url) as (url, proxy), OpenCheckpointSaver(url, memory_background=False) as saver:
        graph, config = two_nodes().compile(checkpointer=saver), thread()
        await maintenance_of(await saver.engine()).close()
        await graph.ainvoke({"log": []}, config)
        proxy.taken()
        await graph.ainvoke({"log": []}, config)
        # The input, and the two nodes; the writes of a step and its checkpoint are stored in parallel.
        assert sorted(proxy.taken()) == ["put_checkpoint"] * 4 + ["put_graph_writes"] * 3 + ["read_newest_checkpoint"]
        await graph.aget_state(config)
        assert proxy.taken() == ["read_newest_checkpoint"]


async def test_deleting_a_thread_of_the_engine_deletes_its_checkpoints(
    saver: OpenCheckpointSaver, database_url: str
) -> None:
    engine = await saver.engine()
    graph = asking().compile(checkpointer=saver)
    session = await engine.sessions.create("shop", "ada")
    await graph.ainvoke({"log": ["x"]}, thread(session.thread_id))
    await graph.ainvoke({"log": ["x"]}, thread("another"))
    await engine.sessions.store.delete("shop", "ada", session.id)
    assert await saver.aget_tuple(thread(session.thread_id)) is None
    assert await saver.aget_tuple(thread("another")) is not None
    await saver.adelete_thread("another")
    for table in ("graph_namespaces", "graph_checkpoints", "graph_channels", "graph_writes"):
        assert await stored_rows(database_url, table) == 0


async def test_apps_and_tenants_share_nothing(database_url: str) -> None:
    async with Engine.open(database_url, auth="required") as engine:
        of_a, of_b = (OpenCheckpointSaver(engine=engine, app_name=app) for app in ("a", "b"))
        for saver, text in ((of_a, "of a"), (of_b, "of b")):
            with acting_for([saver.app_name]):
                await two_nodes().compile(checkpointer=saver).ainvoke({"log": [text]}, thread("same"))
        with acting_for(["b"]):
            assert await of_a.aget_tuple(thread("same")) is None
            await of_a.adelete_thread("same")
            with pytest.raises(Exception, match="row-level security"):
                await of_a.aput(thread("same", checkpoint_ns=""), empty_checkpoint(), {}, {})
        with acting_for(["a"]):
            found = await of_a.aget_tuple(thread("same"))
        assert found is not None
        assert found.checkpoint["channel_values"]["log"] == ["of a", "first", "second"]
        # The thread of another tenant with the same id as its own thread is not deleted either.
        session = await engine.sessions.create("a", "u")
        with acting_for(["b"]):
            await two_nodes().compile(checkpointer=of_b).ainvoke({"log": []}, thread(session.thread_id))
        with acting_for(["a"]):
            await engine.sessions.store.delete("a", "u", session.id)
        with acting_for(["b"]):
            assert await of_b.aget_tuple(thread(session.thread_id)) is not None


async def test_a_run_that_lost_its_lease_cannot_write_checkpoints(saver: OpenCheckpointSaver) -> None:
    engine = await saver.engine()
    session = await engine.sessions.create("shop", "ada")
    graph = two_nodes().compile(checkpointer=saver)
    async with engine.runs.start(session) as run:
        fence = RunFence(UUID(session.thread_id), run.id, 1)
        with fenced_by(fence):
            await graph.ainvoke({"log": ["held"]}, thread(session.thread_id))
    with fenced_by(fence), pytest.raises(LeaseLostError):
        await graph.ainvoke({"log": ["lost"]}, thread(session.thread_id))
    assert (await graph.aget_state(thread(session.thread_id))).values["log"] == ["held", "first", "second"]


async def test_a_checkpoint_of_a_later_serializer_is_refused_with_a_reason(
    saver: OpenCheckpointSaver, database_url: str
) -> None:
    graph, config = two_nodes().compile(checkpointer=saver), thread("t")
    await graph.ainvoke({"log": ["a"]}, config)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("UPDATE graph_checkpoints SET type = 'msgpack2', written_by = '4.99'")
        with pytest.raises(UnreadableCheckpointError, match=r"msgpack2.*langgraph-checkpoint 4.99 wrote it"):
            await graph.aget_state(config)
        await connection.execute("UPDATE graph_checkpoints SET type = 'msgpack', written_by = '99.0'")
        with pytest.raises(UnreadableCheckpointError, match=r"99[.]0 wrote it"):
            await graph.ainvoke({"log": ["b"]}, config)
        await connection.execute("UPDATE graph_checkpoints SET written_by = '4.0'")
    finally:
        await connection.close()
    assert (await graph.aget_state(config)).values["log"] == ["a", "first", "second"]


class XorCipher:
    """A cipher that needs no library."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "xor"
        return self.encrypt(ciphertext)[1]


async def test_an_encrypted_checkpoint_shows_no_value_in_the_database(database_url: str) -> None:
    serde = EncryptedSerializer(XorCipher())
    async with OpenCheckpointSaver(database_url, serde=serde) as saver:
        graph, config = two_nodes().compile(checkpointer=saver), thread()
        await graph.ainvoke({"log": ["secret"], "answer": "secret"}, config)
        assert (await graph.aget_state(config)).values["answer"] == "secret"
    connection = await asyncpg.connect(database_url)
    try:
        assert not await connection.fetchval(
            "SELECT EXISTS (SELECT FROM graph_checkpoints WHERE position('secret'::bytea IN checkpoint) > 0)"
        )
    finally:
        await connection.close()


async def test_many_writers_of_one_thread_and_its_deletion_leave_no_orphans(
    saver: OpenCheckpointSaver, database_url: str
) -> None:
    async def write(number: int) -> None:
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"log": [number]}
        checkpoint["channel_versions"] = {"log": f"{number}"}
        config = await saver.aput(thread("t", checkpoint_ns=""), checkpoint, {}, {"log": f"{number}"})
        await saver.aput_writes(config, [("log", [number])], f"task {number}")

    async def delete() -> None:
        for _ in range(10):
            await saver.adelete_thread("t")

    await asyncio.gather(*(write(number) for number in range(40)), delete())
    await saver.adelete_thread("t")
    for table in ("graph_namespaces", "graph_checkpoints", "graph_channels", "graph_writes"):
        assert await stored_rows(database_url, table) == 0


async def test_ids_of_any_kind(saver: OpenCheckpointSaver) -> None:
    graph = two_nodes().compile(checkpointer=saver)
    number: Any = 7
    for thread_id in ("x" * 5000, "über/ :'\"", number, uuid4()):
        config = thread(thread_id)
        await graph.ainvoke({"log": ["a"]}, config)
        assert (await graph.aget_state(config)).values["log"] == ["a", "first", "second"]
    with pytest.raises(InvalidInputError, match="thread id"):
        await saver.aget_tuple({"configurable": {}})
    with pytest.raises(InvalidInputError, match="NUL"):
        await saver.aget_tuple(thread("a\0b"))
    with pytest.raises(InvalidInputError, match="checkpoint_id"):
        await saver.aput_writes(thread("t"), [("a", 1)], "task")
    with pytest.raises(TypeError, match="pool_sizes"):
        OpenCheckpointSaver(pool_sizes=3)


async def test_listing_reads_pages_and_filters_by_metadata(saver: OpenCheckpointSaver) -> None:
    for number in range(120):
        await saver.aput(
            thread(f"t{number % 2}", checkpoint_ns=""), empty_checkpoint(), {"step": number, "source": "loop"}, {}
        )
    everything = [found async for found in saver.alist(None)]
    assert [found.metadata["step"] for found in everything] == list(range(119, -1, -1))
    of_one = [found async for found in saver.alist(thread("t1"), limit=55)]
    assert [found.metadata["step"] for found in of_one] == list(range(119, 9, -2))
    assert [found async for found in saver.alist(None, filter={"step": 7, "source": "loop"})] == [everything[112]]
    assert [found async for found in saver.alist(None, limit=0)] == []


async def test_blocking_methods_work_in_threads_and_name_their_alternative_on_the_loop(
    saver: OpenCheckpointSaver,
) -> None:
    graph, config = two_nodes().compile(checkpointer=saver), thread("t")

    def in_a_thread() -> list[Any]:
        graph.invoke({"log": ["a"]}, config)
        saver.copy_thread("t", "copy")
        saver.delete_for_runs(["no such run"])
        saver.prune(["copy"])
        return [list(saver.list(thread("copy"))), graph.get_state(config).values["log"]]

    copies, log = await asyncio.to_thread(in_a_thread)
    assert (len(copies), log) == (1, ["a", "first", "second"])
    with pytest.raises(asyncio.InvalidStateError, match="aget_tuple"):
        saver.get_tuple(config)


async def test_a_program_without_an_event_loop_uses_the_blocking_methods(database_url: str) -> None:
    program = (
        "from cognizes.engine.adapters.langgraph import OpenCheckpointSaver\n"
        "from tests.integration.adapters.langgraph.graphs import two_nodes\n"
        f"saver = OpenCheckpointSaver({database_url!r})\n"
        "config = {'configurable': {'thread_id': 't'}}\n"
        "print(two_nodes().compile(checkpointer=saver).invoke({'log': ['a']}, config)['log'])\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", program, stdout=-1, stderr=-1, cwd=Path(__file__).parents[4]
    )
    output, errors = await process.communicate()
    assert (output.decode().strip(), errors.decode()) == ("['a', 'first', 'second']", "")
