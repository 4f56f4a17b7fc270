"""Where `cognizes serve` spends its processor time for one kind of request: a table of layers.

    uv run --with py-spy python benchmarks/http_profile.py [--kind "POST event, one session"] [--keys] [--seconds 10]

Needs `wrk` and the right to trace processes (root). py-spy takes samples of the thread that holds the interpreter lock.
A sample belongs to the innermost frame of a layer, so the standard library counts for the layer that calls it. A
system call (writing the response, sending a statement) counts for the code that makes it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from http_edge import KINDS, ONE_SESSION, Side, load, serve_ours
from report import Bars, Grid, Report, Target

_HERE = Path(__file__).parent
_RATE = 500
_LARGEST = 10.0
_FRAME = re.compile(r"\((?:.*/site-packages/|.*/src/)?([^():]+\.py):\d+\)$")
_OURS = "cognizes/engine/"
_PREFIX = "ours: "
_SENDS = "the response: one write to the socket"
_LIBRARIES = {
    "asyncpg/": "asyncpg: encoding, sending and decoding statements",
    "uvicorn/": "uvicorn: HTTP parser callbacks",
    "starlette/": "Starlette and FastAPI",
    "fastapi/": "Starlette and FastAPI",
    "wordllama/": "indexing messages (background)",
    "numpy/": "indexing messages (background)",
}
_MODULES = {
    "memory/": "indexing messages (background)",
    "cli/observability.py": f"{_PREFIX}cli/observability",
    # The frame that runs the loop: what is below has no Python frame.
    "cli/service.py": "the event loop: uvloop, reading sockets",
}


def layer_of(stack: str) -> str:
    """Return the layer of a sample."""
    for frame in reversed(stack.split(";")):
        found = _FRAME.search(frame)
        if found is None:
            continue
        path = found[1]
        if frame.startswith("send_response "):
            return _SENDS
        if _OURS in path:
            inner = path.partition(_OURS)[2]
            named = next((name for part, name in _MODULES.items() if inner.startswith(part)), None)
            return named or f"{_PREFIX}{inner.removesuffix('.py')}"
        if (library := next((name for part, name in _LIBRARIES.items() if path.startswith(part)), None)) is not None:
            return library
    return "other"


def _by_package(shares: dict[str, float]) -> dict[str, float]:
    """Return the shares of our packages, which are the layers of docs/architecture.md, largest first."""
    packages: Counter[str] = Counter()
    for name, share in shares.items():
        if name.startswith(_PREFIX):
            packages[name.removeprefix(_PREFIX).partition("/")[0]] += share  # type: ignore[assignment]
    return {name: share for name, share in packages.most_common() if share >= 0.5}


async def profile(side: Side, kind: str, connections: int, seconds: float, directory: Path) -> Counter[str]:
    """Load a server and return the samples of each layer."""
    # Once without: the embedder is imported with the first messages.
    await load(side, kind, connections, seconds / 2, directory)
    output = directory / "samples.raw"
    command = ["py-spy", "record", "--pid", str(side.process.pid), "--duration", f"{seconds:.0f}"]
    command += ["--rate", str(_RATE), "--gil", "--full-filenames", "--format", "raw", "--output", str(output)]
    recording = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    await load(side, kind, connections, seconds, directory)
    printed, _ = await recording.communicate()
    if recording.returncode:
        raise RuntimeError(f"py-spy failed:\n{printed.decode()}")
    samples: Counter[str] = Counter()
    for line in output.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        samples[layer_of(stack)] += int(count)
    return samples


async def measure(kind: str, connections: int, seconds: float, *, with_keys: bool) -> Report:
    directory = Path(tempfile.mkdtemp(prefix="cognizes-profile-"))
    try:
        async with AsyncExitStack() as stack:
            side = await stack.enter_async_context(serve_ours(directory, "ours", with_keys=with_keys))
            samples = await profile(side, kind, connections, seconds, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    total = samples.total()
    shares = {name: count / total * 100 for name, count in samples.most_common()}
    report = Report("http_profile", f"Processor time of {kind}, {connections} connections")
    rows = [(name, share) for name, share in shares.items() if share >= 0.5]
    rest = sum(share for share in shares.values() if share < 0.5)
    title = f"{kind}, {connections} connections"
    report.grids.append(Grid(title, ("layer", "% of processor time"), [*rows, ("less than 0.5 each", rest)]))
    packages = _by_package(shares)
    report.grids.append(Grid("The same by package of ours", ("package", "% of processor time"), list(packages.items())))
    module = max((share for name, share in shares.items() if name.startswith(_PREFIX)), default=0.0)
    report.targets.append(Target("the largest module of ours", module, _LARGEST, "%", at_least=False))
    package = max(packages.values(), default=0.0)
    report.targets.append(Target("the largest package of ours", package, _LARGEST, "%", at_least=False))
    groups = [str(place) for place, _ in enumerate(rows[:8], 1)]
    series = {"layers, in the order of the table": [share for _, share in rows[:8]]}
    report.panels.append(Bars(title, "% of processor time", groups, series))
    report.details["samples"] = dict(samples)
    return report


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, default=ONE_SESSION)
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--keys", action="store_true", help="with 20 API keys and row level security")
    parser.add_argument("--out", type=Path, default=_HERE / "results", help="where the JSON and the chart go")
    arguments = parser.parse_args()
    for needed in ("wrk", "py-spy"):
        if shutil.which(needed) is None:
            parser.error(f"{needed} is not installed")
    report = asyncio.run(measure(arguments.kind, arguments.connections, arguments.seconds, with_keys=arguments.keys))
    report.print()
    for path in report.write(arguments.out):
        print(path)


if __name__ == "__main__":
    main()
