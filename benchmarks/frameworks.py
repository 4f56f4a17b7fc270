"""The stores and hosted agents of other frameworks, against what the frameworks bring themselves.

    uv run python benchmarks/frameworks.py [--quick] [--rounds 7] [--only stores|hosted] [--out DIRECTORY]

It needs the dependency group `ci` (`uv sync --group ci`).

Stores: LangGraph's AsyncPostgresSaver and the SQLAlchemySession of the OpenAI Agents SDK, and ours, on one embedded
PostgreSQL with fsync on, in separate databases, with ten connections each. Ten threads or sessions work at the same
time, the two sides one after the other.

Hosted agents: `cognizes serve --agent`, which stores the run, its events and its chunks, against the AG-UI endpoint of
the framework, which stores nothing: ag-ui-langgraph (in an environment of its own) and Pydantic AI's AGUIAdapter.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import operator
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict
from urllib.parse import parse_qs, urlsplit

import asyncpg
import uvloop
from agents.extensions.memory import SQLAlchemySession
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cognizes.engine.adapters.langgraph import OpenCheckpointSaver
from cognizes.engine.adapters.openai_agents import OpenSession
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import DATABASE
from hosted import Figures, Side, run_agent
from http_edge import start_server
from report import Bars, Grid, Report, Target
from wire_counter import WireCounter

_HERE = Path(__file__).parent
_CONNECTIONS = 10
_THREADS = 10
_TURNS = 5
_READS = 10
_TOKENS = 2000
_SHORT = 20
_GRAPH_PEER = "ag-ui-langgraph==0.0.47"
_numbers = count()


# LangGraph: a graph with two nodes


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def two_nodes(saver: BaseCheckpointSaver[Any]) -> Any:
    async def note(_: State) -> dict[str, list[str]]:
        return {"log": ["The kettle is on; the tea will be ready in about three minutes."]}

    builder = StateGraph(State)
    builder.add_node("first", note)
    builder.add_node("second", note)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def _thread() -> dict[str, Any]:
    return {"configurable": {"thread_id": f"thread {next(_numbers)}"}}


async def turns_of_graphs(saver: BaseCheckpointSaver[Any]) -> float:
    """Return the seconds of one turn: ten threads invoke the graph at the same time, several times each."""
    graph, configs = two_nodes(saver), [_thread() for _ in range(_THREADS)]

    async def converse(config: dict[str, Any]) -> None:
        for _ in range(_TURNS):
            await graph.ainvoke({"log": ["hello"]}, config)

    start = time.perf_counter()
    await asyncio.gather(*map(converse, configs))
    return (time.perf_counter() - start) / (_THREADS * _TURNS)


async def puts(saver: BaseCheckpointSaver[Any]) -> float:
    """Return the seconds of one put: the checkpoints of a finished turn are stored again, in ten new threads."""
    graph, config = two_nodes(saver), _thread()
    await graph.ainvoke({"log": ["hello"]}, config)
    stored = [found async for found in saver.alist(config)][::-1]

    async def put_all(config: dict[str, Any]) -> None:
        config = {"configurable": {**config["configurable"], "checkpoint_ns": ""}}
        for _ in range(_TURNS):
            for found in stored:
                versions = found.checkpoint["channel_versions"]
                config = await saver.aput(config, found.checkpoint, found.metadata, versions)  # type: ignore[assignment]

    start = time.perf_counter()
    await asyncio.gather(*(put_all(_thread()) for _ in range(_THREADS)))
    return (time.perf_counter() - start) / (_THREADS * _TURNS * len(stored))


async def gets(saver: BaseCheckpointSaver[Any]) -> float:
    """Return the seconds of one read of a thread's newest checkpoint."""
    graph, configs = two_nodes(saver), [_thread() for _ in range(_THREADS)]
    for config in configs:
        await graph.ainvoke({"log": ["hello"]}, config)

    async def read(config: dict[str, Any]) -> None:
        for _ in range(_READS):
            found = await saver.aget_tuple(config)  # type: ignore[arg-type]
            if found is None or len(found.checkpoint["channel_values"]["log"]) != 3:
                raise RuntimeError("the checkpoint is not what was stored")

    start = time.perf_counter()
    await asyncio.gather(*map(read, configs))
    return (time.perf_counter() - start) / (_THREADS * _READS)


async def round_trips_of_a_step(make: Callable[[str], Any], url: str) -> float:
    """Return the round trips of a turn divided by its steps: the input, the start and the two nodes."""
    async with WireCounter(f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432") as counter:
        path = urlsplit(url).path
        async with make(f"postgresql://postgres@127.0.0.1:{counter.port}{path}?sslmode=disable") as saver:
            graph, config = two_nodes(saver), _thread()
            await graph.ainvoke({"log": ["hello"]}, config)
            before = await counter.settle()
            for _ in range(_TURNS):
                await graph.ainvoke({"log": ["hello"]}, config)
            return (await counter.settle() - before) / (_TURNS * 4)


# The OpenAI Agents SDK: sessions

_ITEMS: list[Any] = [
    {"role": "user", "content": "How long until the tea is ready?"},
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "About three minutes.", "annotations": []}],
    },
]

MakeSession = Callable[[str], Any]


async def adds(make: MakeSession) -> float:
    """Return the seconds of one `add_items` with a question and an answer: ten sessions at the same time."""
    sessions = [make(f"session {next(_numbers)}") for _ in range(_THREADS)]

    async def add(session: Any) -> None:
        for _ in range(_TURNS * 2):
            await session.add_items(_ITEMS)

    start = time.perf_counter()
    await asyncio.gather(*map(add, sessions))
    return (time.perf_counter() - start) / (_THREADS * _TURNS * 2)


async def reads(make: MakeSession) -> float:
    """Return the seconds of one `get_items` of a session with 20 items."""
    sessions = [make(f"session {next(_numbers)}") for _ in range(_THREADS)]
    for session in sessions:
        await session.add_items(_ITEMS * 10)

    async def read(session: Any) -> None:
        for _ in range(_READS):
            if len(await session.get_items()) != 20:
                raise RuntimeError("the items are not what was stored")

    start = time.perf_counter()
    await asyncio.gather(*map(read, sessions))
    return (time.perf_counter() - start) / (_THREADS * _READS)


# Both sides of the stores


@asynccontextmanager
async def reference_saver(url: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=1, max_size=_CONNECTIONS, kwargs=options) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


def our_saver(url: str) -> OpenCheckpointSaver:
    return OpenCheckpointSaver(url, pool_size=_CONNECTIONS, memory_background=False)


@dataclass(frozen=True)
class Workload:
    name: str
    measure: Callable[[Any], Awaitable[float]]
    reference: Any
    ours: Any
    wanted: float | None
    seconds: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


async def measure_stores(rounds: int, report: Report) -> None:
    directory = Path(tempfile.mkdtemp(prefix="cognizes-frameworks-"))
    server = EmbeddedPostgres(directory / "data")
    await server.start()
    try:
        urls = [await _database(server.url, name) for name in ("reference", "ours")]
        async with AsyncExitStack() as stack:
            saver = await stack.enter_async_context(reference_saver(urls[0]))
            open_saver = await stack.enter_async_context(our_saver(urls[1]))
            engine: AsyncEngine = create_async_engine(
                urls[0].replace("postgresql://", "postgresql+asyncpg://"), pool_size=_CONNECTIONS, max_overflow=0
            )
            stack.push_async_callback(engine.dispose)
            await SQLAlchemySession("first", engine=engine, create_tables=True).get_items()

            def peer(session_id: str) -> SQLAlchemySession:
                return SQLAlchemySession(session_id, engine=engine)

            def ours(session_id: str) -> OpenSession:
                session = OpenSession(session_id, urls[1], pool_size=_CONNECTIONS, memory_background=False)
                stack.push_async_callback(session.close)
                return session

            workloads = [
                Workload("LangGraph: a turn of a 2-node graph, 10 threads", turns_of_graphs, saver, open_saver, 2),
                Workload("LangGraph: put, 10 threads", puts, saver, open_saver, 2),
                Workload("LangGraph: get, 10 threads", gets, saver, open_saver, 2),
                Workload("OpenAI session: add_items, 10 sessions", adds, peer, ours, 3),
                Workload("OpenAI session: get_items, 10 sessions", reads, peer, ours, 3),
            ]
            await _alternate(workloads, rounds)
        trips = [
            await round_trips_of_a_step(make, url) for make, url in zip((reference_saver, our_saver), urls, strict=True)
        ]
    finally:
        await server.close()
        shutil.rmtree(directory, ignore_errors=True)
    _report_stores(workloads, trips, report)


async def _database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return url.replace(f"/{DATABASE}?", f"/{name}?")


async def _alternate(workloads: list[Workload], rounds: int) -> None:
    """Measure each workload on both sides in turns; the first round is the warm-up."""
    for round_ in range(rounds + 1):
        for workload in workloads:
            for place in (0, 1) if round_ % 2 else (1, 0):
                # One side must not pay for the garbage of the other.
                gc.collect()
                spent = await workload.measure((workload.reference, workload.ours)[place])
                if round_:
                    workload.seconds[place].append(spent)
        print(f"stores, round {round_} of {rounds}", file=sys.stderr, flush=True)


def _report_stores(workloads: list[Workload], trips: list[float], report: Report) -> None:
    rows = []
    for workload in workloads:
        reference, ours = (median(found) * 1e3 for found in workload.seconds)
        rows.append((workload.name, reference, ours, reference / ours))
        if workload.wanted is not None:
            report.targets.append(Target(workload.name, reference / ours, workload.wanted))
    report.grids.append(Grid("Milliseconds per operation", ("", "the framework's", "ours", "ratio"), rows))
    report.grids.append(Grid("Round trips of a step", ("", "AsyncPostgresSaver", "ours"), [("2-node graph", *trips)]))
    report.targets.append(Target("LangGraph: round trips of a step", trips[1], 2, unit="", at_least=False))
    report.panels.append(
        Bars(
            "Stores, in multiples of the framework's own",
            "x",
            ["turn", "put", "get", "add_items", "get_items"],
            {"ours": [row[3] for row in rows]},
        )
    )
    report.details["seconds_per_operation"] = {workload.name: workload.seconds for workload in workloads}


# Hosted agents


@asynccontextmanager
async def serve_ours(directory: Path, name: str, path: str) -> AsyncIterator[Side]:
    command = ["cognizes", "serve", "--port", "0", "--data-dir", str(directory / f"data-{name}"), "--agent", path]
    async with start_server(command, directory / f"ours-{name}.log", {"PYTHONPATH": str(_HERE)}) as (url, process):
        yield Side(name, url, process)


@asynccontextmanager
async def serve_peer(directory: Path, name: str, *, extra: list[str]) -> AsyncIterator[Side]:
    command = [
        "uv",
        "run",
        "--no-sync",
        *extra,
        "uvicorn",
        "frameworks_peer:app",
        "--app-dir",
        str(_HERE),
        "--port",
        "0",
    ]
    command += ["--loop", "uvloop", "--http", "httptools", "--no-access-log"]
    async with start_server(command, directory / f"peer-{name}.log", {"PEER": name}) as (url, process):
        yield Side(name, url, process)


async def measure_hosted(rounds: int, report: Report) -> None:
    directory = Path(tempfile.mkdtemp(prefix="cognizes-frameworks-"))
    frameworks = {"langgraph": ("graph", ["--with", _GRAPH_PEER]), "pydantic-ai": ("agent", [])}
    rows: list[tuple[str, float, float, float]] = []
    try:
        for name, (attribute, extra) in frameworks.items():
            async with (
                serve_peer(directory, name, extra=extra) as peer,
                serve_ours(directory, name, f"frameworks_agents:{attribute}") as ours,
            ):
                samples = await _take_turns([peer, ours], rounds)
            rates = [median(one.rate for one in found[1]) for found in samples]
            firsts = [median(one.first_frame for one in found[0]) for found in samples]
            texts = [median(one.first_text for one in found[0]) for found in samples]
            rows += [
                (f"{name}: frames/s, one stream of {_TOKENS} tokens", *rates, rates[1] / rates[0]),
                (f"{name}: first frame, ms", *firsts, firsts[0] / firsts[1]),
                (f"{name}: first text, ms", *texts, texts[0] / texts[1]),
            ]
            report.targets.append(Target(f"{name}: frames/s", rates[1] / rates[0], 0.8))
            report.targets.append(Target(f"{name}: first frame", firsts[0] / firsts[1], 0.8))
            report.details[f"hosted {name}"] = [[[vars(one) for one in part] for part in found] for found in samples]
            print(f"hosted, {name}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.grids.append(Grid("Hosted agents; a ratio above 1 is better", ("", "own endpoint", "ours", "ratio"), rows))
    report.panels.append(
        Bars("Hosted agents, one stream", "frames/s", list(frameworks),
             {"own endpoint": [row[1] for row in rows[::3]], "ours": [row[2] for row in rows[::3]]})
    )  # fmt: skip


async def _take_turns(sides: list[Side], rounds: int) -> list[tuple[list[Figures], list[Figures]]]:
    """Return the figures of short and of long streams of each side."""
    samples: list[tuple[list[Figures], list[Figures]]] = [([], []) for _ in sides]
    for round_ in range(rounds + 1):
        for side, (short, long) in zip(sides, samples, strict=True):
            found = [await run_agent(side.url, _SHORT) for _ in range(10)]
            streams = [await run_agent(side.url, _TOKENS) for _ in range(3)]
            if round_:
                short.extend(found)
                long.extend(streams)
    return samples


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["stores", "hosted"])
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = Report("frameworks", "Stores and hosted agents of other frameworks")
    rounds = 2 if arguments.quick else arguments.rounds
    if arguments.only != "hosted":
        uvloop.run(measure_stores(rounds, report))
    if arguments.only != "stores":
        asyncio.run(measure_hosted(rounds, report))  # the client of hosted.py knows asyncio's transports
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
