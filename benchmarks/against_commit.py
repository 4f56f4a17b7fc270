"""Compare this working tree with an earlier commit: the same calls on both, alternating, in one run.

    uv run python benchmarks/against_commit.py REVISION [--quick] [--rounds 7] [--out DIRECTORY]

The earlier commit is checked out into a temporary git worktree with its own environment. Each side is a process
with an embedded PostgreSQL; fsync and autovacuum are off, because the disk would hide the cost of the code. The
calls use only names that every commit has: this file is executed by both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx
import uvloop

from cognizes.engine import Engine, Session
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_TEXT = "a message of a usual size, as an assistant writes it"
_WORST = 1.05
"""The allowed cost of a change: five percent of the median."""

_COUNTS = {
    "append, one writer": 1500,
    "append, 50 writers": 10_000,
    "append with a user: key": 800,
    "recent 20 events": 1000,
    "get session": 1500,
    "GET session over HTTP": 800,
    "POST event over HTTP": 500,
}
"""The calls of a round."""

Work = Callable[[int], Awaitable[None]]


class Side:
    """The calls, on one engine and on its HTTP server."""

    def __init__(self, engine: Engine, sessions: list[Session], http: httpx.AsyncClient) -> None:
        self._engine = engine
        self._sessions = sessions
        self._http = http
        self.work: dict[str, Work] = dict(
            zip(
                _COUNTS,
                (self._append, self._append_many, self._append_wide, self._recent, self._get, self._http_get,
                 self._http_post),
                strict=True,
            )
        )  # fmt: skip

    async def _append(self, count: int, session: Session | None = None) -> None:
        session = session or self._sessions[0]
        for number in range(count):
            await self._engine.sessions.append(
                session, author="agent", kind="assistant_message", text=_TEXT, state={"k": number}
            )

    async def _append_many(self, count: int) -> None:
        await asyncio.gather(*(self._append(count // 50, session) for session in self._sessions))

    async def _append_wide(self, count: int) -> None:
        for number in range(count):
            await self._engine.sessions.append(
                self._sessions[1], author="agent", kind="note", content={"a": 1}, state={"user:k": number}
            )

    async def _recent(self, count: int) -> None:
        for _ in range(count):
            await self._engine.sessions.recent_events(self._sessions[0], limit=20)

    async def _get(self, count: int) -> None:
        for _ in range(count):
            await self._engine.sessions.get("bench", "u0", self._sessions[0].id)

    async def _http_get(self, count: int) -> None:
        for _ in range(count):
            (await self._http.get(f"/api/sessions/{self._sessions[2].thread_id}")).raise_for_status()

    async def _http_post(self, count: int) -> None:
        body = {"author": "agent", "event_type": "assistant_message", "content": {"text": _TEXT}}
        for _ in range(count):
            answer = await self._http.post(f"/api/sessions/{self._sessions[2].thread_id}/events", json=body)
            answer.raise_for_status()


async def serve_side() -> None:
    """Run the calls that standard input names, and print the microseconds of one each time."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-bench-"))
    try:
        async with Engine.open(data_dir=directory, memory_background=False) as engine:
            # The other side may be a commit in which the database was a public part.
            database = engine._database if hasattr(engine, "_database") else engine.database
            for setting in ("fsync", "autovacuum"):
                await database.pool.execute(f"ALTER SYSTEM SET {setting} = off")
            await database.pool.execute("SELECT pg_reload_conf()")
            sessions = [await engine.sessions.create("bench", f"u{number}") for number in range(50)]
            with _http_server(directory) as url:
                async with httpx.AsyncClient(base_url=url, timeout=60) as http:
                    side = Side(engine, sessions, http)
                    for work in side.work.values():
                        await work(200)
                    await _answer_questions(side)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _answer_questions(side: Side) -> None:
    print("ready", flush=True)
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        count = _COUNTS[name]
        start = time.perf_counter()
        await side.work[name](count)
        print(json.dumps((time.perf_counter() - start) / count * 1e6), flush=True)


@contextmanager
def _http_server(directory: Path) -> Iterator[str]:
    """`cognizes serve` on the same data directory, in a separate process.

    Without background work: embedding ten thousand appended messages is not part of a request.
    """
    log = directory / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "cognizes", "serve", "--port", "0", "--log-level", "WARNING"],
            env={
                **os.environ,
                "COGNIZES_DATA_DIR": str(directory),
                "COGNIZES_MEMORY_BACKGROUND": "false",
                "COLUMNS": "200",
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while "Ctrl-C" not in log.read_text():
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        page = next(line for line in log.read_text().splitlines() if "Page" in line)
        # The server imports the demo agent during the first requests, which would be measured too.
        url = page.split()[-1].rstrip("/")
        httpx.get(f"{url}/agui", timeout=120).raise_for_status()
        time.sleep(3)
        yield url
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    """A worktree of a commit, with its environment."""
    directory = Path(tempfile.mkdtemp(prefix="cognizes-base-"))
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", directory, revision], cwd=_HERE, check=True)
    try:
        subprocess.run(["uv", "sync", "--quiet"], cwd=directory, check=True, env=_clean_environment())
        yield directory
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", directory], cwd=_HERE, check=True)


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_NO_SYNC")}


@contextmanager
def _side(python: Path) -> Iterator[Callable[[str], float]]:
    process = subprocess.Popen(
        [python, Path(__file__), "--side"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_HERE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    commands, answers = process.stdin, process.stdout

    def measure(name: str) -> float:
        commands.write(name + "\n")
        commands.flush()
        return float(json.loads(answers.readline()))

    try:
        if answers.readline().strip() != "ready":
            raise SystemExit(f"{python} did not start")
        yield measure
    finally:
        commands.close()
        process.wait(60)


def compare(revision: str, rounds: int, out: Path) -> None:
    """Measure both sides alternately and report the ratios of their medians."""
    before: dict[str, list[float]] = {name: [] for name in _COUNTS}
    after: dict[str, list[float]] = {name: [] for name in _COUNTS}
    with (
        _checked_out(revision) as base,
        _side(base / ".venv" / "bin" / "python") as measure_before,
        _side(Path(sys.executable)) as measure_after,
    ):
        for number in range(rounds):
            for name in _COUNTS:
                turns = [(before, measure_before), (after, measure_after)]
                for figures, measure in turns if number % 2 else turns[::-1]:
                    figures[name].append(measure(name))
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    ratios = {name: median(after[name]) / median(before[name]) for name in _COUNTS}
    least = {name: min(after[name]) / min(before[name]) for name in _COUNTS}
    report = Report("against_commit", f"This tree against {revision}")
    report.grids.append(
        Grid(
            f"Microseconds of one call, median of {rounds} rounds",
            ("call", revision, "this tree", "ratio of medians", "ratio of minima"),
            [[name, median(before[name]), median(after[name]), ratios[name], least[name]] for name in _COUNTS],
        )
    )
    report.targets += [Target(name, ratios[name], _WORST, at_least=False) for name in _COUNTS]
    series = {revision: [median(before[n]) for n in _COUNTS], "this tree": [median(after[n]) for n in _COUNTS]}
    report.panels.append(Bars("One call", "µs", list(_COUNTS), series))
    report.details["rounds"] = {"before": before, "after": after}
    report.print()
    report.write(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--out", type=Path, default=_HERE / "results")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        uvloop.run(serve_side())
    else:
        compare(arguments.revision, 3 if arguments.quick else arguments.rounds, arguments.out)


if __name__ == "__main__":
    main()
