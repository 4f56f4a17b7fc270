"""Traces across processes, with the SDK of OpenTelemetry and its in-memory exporter."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.api.main import create_app
from tests.integration.telemetry.traced_process import REQUEST
from tests.served import REPOSITORY

TRACE = f"0x{REQUEST.split('-')[1]}"


@dataclass
class Traced:
    """What a process printed."""

    answer: dict[str, Any]

    def spans(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.answer["spans"] if span["name"] == name]

    def span(self, name: str) -> dict[str, Any]:
        (found,) = self.spans(name)
        return found

    @property
    def names(self) -> list[str]:
        return [span["name"] for span in self.answer["spans"]]


async def process(*arguments: str) -> Traced:
    finished = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "ignore", "-m", "tests.integration.telemetry.traced_process", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    return Traced(json.loads(finished.stdout.splitlines()[-1]))


def is_child(span: dict[str, Any], parent: dict[str, Any]) -> bool:
    is_same = span["context"]["trace_id"] == parent["context"]["trace_id"]
    return is_same and span["parent_id"] == parent["context"]["span_id"]


async def test_a_trace_goes_from_the_request_over_a_wait_to_another_worker(engine: Engine, database_url: str) -> None:
    served = await process("serve", database_url)
    request = served.span("POST /api/sessions/{thread_id}/runs")
    assert request["context"]["trace_id"] == TRACE
    assert request["parent_id"] == f"0x{REQUEST.split('-')[2]}"
    assert request["kind"] == "SpanKind.SERVER"
    assert request["attributes"]["http.response.status_code"] == 201
    assert served.span("GET /api/sessions/{thread_id}")["attributes"]["http.response.status_code"] == 404
    # FastAPI has spans of its own, which are off.
    of_requests = [span["name"] for span in served.answer["spans"] if span["kind"] == "SpanKind.SERVER"]
    assert sorted(of_requests) == [
        "GET /api/sessions/{thread_id}",
        "POST /api/sessions",
        "POST /api/sessions/{thread_id}/runs",
    ]
    thread_id = served.answer["thread_id"]
    stored = (await engine.runs.get(thread_id, "r1")).traceparent
    assert stored is not None
    assert stored == f"00-{TRACE[2:]}-{request['context']['span_id'][2:]}-01"

    first = await process("work", database_url, thread_id, "waiting")
    attempt = first.span("invoke_agent book")
    assert is_child(attempt, request)
    assert attempt["attributes"] == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "book",
        "gen_ai.conversation.id": thread_id,
        "cognizes.run.id": "r1",
        "cognizes.run.attempt": 1,
    }
    assert attempt["status"]["status_code"] == "UNSET", "a wait is not an error"
    for name in ("step look", "execute_tool find_table", "chat gemini-test", "append"):
        assert is_child(first.span(name), attempt), name
    assert first.span("execute_tool find_table")["attributes"]["gen_ai.tool.name"] == "find_table"
    assert first.span("chat gemini-test")["attributes"] == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gemini-test",
        "gen_ai.response.model": "gemini-test",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.conversation.id": thread_id,
        "gen_ai.agent.name": "book",
    }

    await engine.runs.signal("r1", correlation_key="approval", thread_id=thread_id)
    second = await process("work", database_url, thread_id, "completed")
    again = second.span("invoke_agent book")
    assert is_child(again, request)
    assert again["attributes"]["cognizes.run.attempt"] == 2
    wait = second.span("wait human")
    assert is_child(wait, request)
    assert attempt["start_time"] < wait["start_time"] < wait["end_time"] < again["start_time"]
    assert "step look" not in second.names, "a finished step is not executed again"
    assert second.answer["traceparent"] == stored


@pytest.mark.parametrize(
    ("framework", "model"),
    [("openai", "unknown"), ("pydantic", "test"), ("langgraph", "claude-test"), ("adk", "gemini-test")],
)
async def test_a_hosted_agent_has_spans_of_its_models_and_tools(
    engine: Engine, database_url: str, framework: str, model: str
) -> None:
    traced = await process("host", database_url, framework)
    runs = [span for span in traced.spans("invoke_agent generic") if "cognizes.run.id" in span["attributes"]]
    (run,) = runs
    assert is_child(run, traced.span("client"))
    calls = [span for span in traced.answer["spans"] if "gen_ai.usage.input_tokens" in span["attributes"]]
    assert len(calls) == 2, traced.names
    assert {call["context"]["trace_id"] for call in calls} == {run["context"]["trace_id"]}
    named = {call["attributes"].get("gen_ai.request.model") for call in calls}
    assert len(named) == 1
    assert model in named or framework == "openai"
    assert sum(call["attributes"]["gen_ai.usage.output_tokens"] for call in calls) > 0
    (tool,) = [span for span in traced.answer["spans"] if span["attributes"].get("gen_ai.tool.name") == "weather"]
    assert tool["name"] == "execute_tool weather"
    assert tool["context"]["trace_id"] == run["context"]["trace_id"]


async def test_a_server_without_the_sdk_passes_the_trace_of_a_request_on(engine: Engine) -> None:
    transport = httpx.ASGITransport(app=create_app(engine=engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        made = await client.post("/api/sessions", json={"app_name": "shop", "user_id": "ada"})
        thread_id = made.json()["thread_id"]
        for number, given in enumerate([REQUEST, "none", f"00-{'0' * 32}-00f067aa0ba902b7-01", ""]):
            body = {"handler": "h", "run_id": f"r{number}"}
            headers = {"traceparent": given} if given else {}
            await client.post(f"/api/sessions/{thread_id}/runs", json=body, headers=headers)
    stored = [(await engine.runs.get(thread_id, f"r{number}")).traceparent for number in range(4)]
    assert stored == [REQUEST, None, None, None]
