"""A process with the SDK of OpenTelemetry and its in-memory exporter; it prints its spans as JSON.

python -m tests.integration.telemetry.traced_process ROLE DATABASE_URL [ARGUMENT ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cognizes.engine import Engine, TokenUsage, Worker
from cognizes.engine.api.main import create_app
from cognizes.engine.runs import HandledRun

REQUEST = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def serve(url: str) -> dict[str, Any]:
    """Create a session and a run over HTTP, with a `traceparent` of the client."""
    async with Engine.open(url, embedder="none") as engine:
        transport = httpx.ASGITransport(app=create_app(engine=engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            made = await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})
            thread_id = made.json()["thread_id"]
            body = {"handler": "book", "run_id": "r1"}
            headers = {"traceparent": REQUEST}
            (await client.post(f"/api/sessions/{thread_id}/runs", json=body, headers=headers)).raise_for_status()
            missing = await client.get("/api/sessions/00000000-0000-0000-0000-000000000001", headers=headers)
            assert missing.status_code == 404
        return {"thread_id": thread_id}


async def book(run: HandledRun) -> str:
    await run.step("look", _look)
    call = await run.call_tool("find_table", {"at": "noon"})
    await run.finish_tool(call, "a table")
    used = TokenUsage("gemini-test", input_tokens=12, output_tokens=3)
    await run.record_usage(used, usage_id="call", started_at=datetime.now(UTC))
    await run.append(kind="message", text="May I book?")
    await run.wait(kind="human", correlation_key="approval")
    return "booked"


async def _look() -> str:
    return "seen"


async def work(url: str, thread_id: str, status: str) -> dict[str, Any]:
    """Execute runs until the run has a status."""
    async with Engine.open(url, embedder="none") as engine, Worker(engine, {"book": book}):
        async with asyncio.timeout(60):
            while (run := await engine.runs.get(thread_id, "r1")).status != status:
                await asyncio.sleep(0.02)
    return {"traceparent": run.traceparent}


async def host(url: str, framework: str) -> dict[str, Any]:
    """Take a turn with a hosted agent that calls a tool."""
    from cognizes.engine.adapters.loading import host as host_object
    from cognizes.engine.hosting import AgentHost
    from tests.integration.hosting.test_recording import turn
    from tests.integration.telemetry import traced_agents

    async with Engine.open(url, embedder="none") as engine:
        agent = host_object(getattr(traced_agents, framework)(), engine, path="x:generic")
        hosting = AgentHost(engine, [agent])
        with trace.get_tracer("test").start_as_current_span("client"):
            await turn(hosting, "Weather?", thread_id=str(uuid4()))
        await hosting.close(seconds=0)
    return {}


ROLES: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {"serve": serve, "work": work, "host": host}


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    found = asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
    spans = [json.loads(span.to_json(indent=None)) for span in exporter.get_finished_spans()]
    print(json.dumps({**found, "spans": spans}))  # noqa: T201


if __name__ == "__main__":
    main()
