"""CPU time of an append and of a GET request with and without telemetry: `uv run python benchmarks/telemetry.py`.

Each round measures every variant in a process of its own, in alternating order, on one embedded server.
`against_commit.py` compares the engine without telemetry with an earlier commit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path

TRACES = "BENCHMARK_TRACES"


def set_tracer_provider() -> None:
    """Set up the SDK as `serve` does, with an exporter that drops the spans."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: PLC0415

    class Dropping(SpanExporter):
        def export(self, _: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    trace.set_tracer_provider(provider)


async def measure(url: str, calls: int) -> dict[str, float]:
    import httpx  # noqa: PLC0415

    from cognizes.engine import Engine  # noqa: PLC0415
    from cognizes.engine.api.main import create_app  # noqa: PLC0415

    async with Engine.open(url, embedder="none") as engine:
        session = await engine.sessions.create("benchmark", "user")
        transport = httpx.ASGITransport(app=create_app(engine=engine))
        client = httpx.AsyncClient(transport=transport, base_url="http://engine")

        async def append() -> None:
            await engine.sessions.append(session, author="agent", kind="message", text="hello")

        async def get() -> None:
            (await client.get("/live")).raise_for_status()

        found = {}
        for name, call in (("append", append), ("GET /live", get)):
            for _ in range(calls // 5):
                await call()
            started = time.process_time()
            for _ in range(calls):
                await call()
            found[name] = (time.process_time() - started) / calls * 1e6
        await client.aclose()
        return found


def measure_checks() -> None:
    """Print the time of the checks that an append and a request make while telemetry is off."""
    from cognizes.engine.telemetry import TELEMETRY  # noqa: PLC0415

    headers = {b"host": b"engine"}

    def append() -> None:
        _ = TELEMETRY.is_tracing, TELEMETRY.instruments
        _ = TELEMETRY.is_tracing, TELEMETRY.instruments

    def request() -> None:
        _ = TELEMETRY.is_tracing or b"traceparent" in headers
        _ = TELEMETRY.instruments

    for name, check in (("append", append), ("request", request)):
        seconds = min(timeit.repeat(check, number=200_000, repeat=5)) / 200_000
        print(f"checks of {name:8} {seconds * 1e6:5.2f} µs")


def run(url: str, calls: int, **environment: str) -> dict[str, float]:
    finished = subprocess.run(
        [sys.executable, __file__, "--measure", url, "--calls", str(calls)],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(json.loads(finished.stdout))


async def compare(rounds: int, calls: int) -> None:
    from cognizes.engine.database import EmbeddedPostgres  # noqa: PLC0415

    variants: dict[str, dict[str, str]] = {
        "off": {},
        "metrics": {"COGNIZES_METRICS": "1"},
        "traces": {TRACES: "1"},
    }
    results: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory))
        await server.start()
        for number in range(rounds):
            for name in sorted(variants, reverse=bool(number % 2)):
                results[name].append(await asyncio.to_thread(run, server.url, calls, **variants[name]))
        await server.close()
    for what in ("append", "GET /live"):
        for name, found in results.items():
            median = statistics.median(one[what] for one in found)
            ratios = [one[what] / base[what] for one, base in zip(found, results["off"], strict=True)]
            print(f"{what:10} {name:15} {median:7.1f} µs CPU, {statistics.median(ratios):5.3f} of off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--measure")
    options = parser.parse_args()
    if options.measure:
        if os.environ.get(TRACES):
            set_tracer_provider()
        print(json.dumps(asyncio.run(measure(options.measure, options.calls))))
    else:
        measure_checks()
        asyncio.run(compare(options.rounds, options.calls))


if __name__ == "__main__":
    main()
