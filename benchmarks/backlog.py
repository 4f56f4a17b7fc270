"""Measure requests beside a backlog of messages that the same process indexes.

    uv run python benchmarks/backlog.py [--quick] [--out DIRECTORY]

Each round measures an engine without and one with a backlog of 10 000 messages, on one embedded PostgreSQL with fsync
on. The background task embeds the messages (WordLlama) and indexes their words in the process that serves.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import asyncpg
import uvloop

from cognizes.engine import Engine, Session
from cognizes.engine.database import EmbeddedPostgres
from cognizes.engine.database.embedded import DATABASE
from cognizes.engine.memory.message_search import MessageIndex
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_BACKLOG = 10_000
_WRITERS = 50
_CLIENTS = 4
_TEXT = "The kettle is on; the tea will be ready in about three minutes. Would you like milk or lemon with it?"


async def _load(url: str) -> None:
    """Append the messages of a backlog; without the background task they stay in the queue."""
    async with Engine.open(url, memory_background=False) as engine:
        sessions = [await engine.sessions.create("bench", "backlog") for _ in range(_WRITERS)]

        async def write(session: Session) -> None:
            for number in range(_BACKLOG // _WRITERS):
                await engine.sessions.append(session, author="user", kind="user_message", text=f"{number}: {_TEXT}")

        await asyncio.gather(*map(write, sessions))


async def _measure(url: str, seconds: float) -> tuple[float, float, int]:
    """Return the median and the 99th percentile of an append and a read, in milliseconds, and the messages indexed."""
    async with Engine.open(url) as engine:
        index = MessageIndex(engine._database, None)
        before = (await index.count()).waiting
        sessions = [await engine.sessions.create("bench", "requests") for _ in range(_CLIENTS)]
        spent: list[float] = []
        end = time.perf_counter() + seconds

        async def request(session: Session) -> None:
            while (start := time.perf_counter()) < end:
                await engine.sessions.append(session, author="a", kind="note", state={"step": len(spent)})
                await engine.sessions.get("bench", "requests", session.id)
                spent.append((time.perf_counter() - start) * 1e3)

        await asyncio.gather(*map(request, sessions))
        indexed = before - (await index.count()).waiting
    spent.sort()
    return median(spent), spent[len(spent) * 99 // 100], indexed


async def _new_database(url: str, name: str) -> str:
    connection = await asyncpg.connect(url)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    return url.replace(f"/{DATABASE}?", f"/{name}?")


async def run(*, rounds: int, seconds: float) -> Report:
    """Run the whole benchmark."""
    report = Report("backlog", "Requests beside a backlog of messages")
    directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
    server = EmbeddedPostgres(directory)
    await server.start()
    found: dict[str, list[tuple[float, float, int]]] = {"no backlog": [], "backlog": []}
    try:
        for round_ in range(rounds):
            # A database of its own: the lease of the previous indexer would still hold.
            url = await _new_database(server.url, f"backlog_{round_}")
            found["no backlog"].append(await _measure(url, seconds))
            await _load(url)
            found["backlog"].append(await _measure(url, seconds))
    finally:
        await server.close()
        shutil.rmtree(directory)
    rows = {name: [median(values) for values in zip(*times, strict=True)] for name, times in found.items()}
    columns = ("", "p50, ms", "p99, ms", f"messages indexed in {seconds:g} s")
    report.grids.append(
        Grid(f"An append and a read, {_CLIENTS} clients", columns, [(name, *row) for name, row in rows.items()])
    )
    report.targets.append(
        Target("p50 beside a backlog", rows["backlog"][0] / rows["no backlog"][0], 1.3, at_least=False)
    )
    report.panels.append(
        Bars(
            "An append and a read",
            "milliseconds",
            ("p50", "p99"),
            {name: [row[0], row[1]] for name, row in rows.items()},
        )
    )
    report.details["rounds"] = found
    return report


def main() -> None:
    """Run, print and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds of two seconds")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    report = uvloop.run(run(rounds=3, seconds=2) if arguments.quick else run(rounds=7, seconds=4))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
