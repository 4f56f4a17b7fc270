"""The real `adk api_server` on our service, driven over HTTP."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from cognizes.engine import RunStatus
from cognizes.engine.adapters.adk import OpenMemoryService, OpenSessionService
from cognizes.engine.adapters.adk.session_reader import Revision

_SERVICES_PY = """
from cognizes.engine.adapters.adk import register
register()
"""
_SERVICES_YAML = """
services:
  - scheme: cognizes
    type: session
    class: cognizes.engine.adapters.adk.OpenSessionService
  - scheme: cognizes
    type: memory
    class: cognizes.engine.adapters.adk.OpenMemoryService
  - scheme: cognizes
    type: artifact
    class: cognizes.engine.adapters.adk.OpenArtifactService
"""
_AGENT = """
import asyncio
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

class Slow(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        await asyncio.sleep(0.2)
        asked = llm_request.contents[-1].parts[0].text
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=f"{asked}!")]))

root_agent = LlmAgent(name="clerk", model=Slow(model="slow"), output_key="answer")
"""


@asynccontextmanager
async def api_server(folder: Path, uri: str, **files: str) -> AsyncIterator[httpx.AsyncClient]:
    agent = folder / "clerk"
    agent.mkdir()
    (agent / "__init__.py").write_text("from . import agent\n")
    (agent / "agent.py").write_text(_AGENT)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    adk = Path(sys.executable).with_name("adk")
    plugin = "--extra_plugins=cognizes.engine.adapters.adk.EngineStreamPlugin"
    services = [f"--{kind}_service_uri={uri}" for kind in ("session", "memory", "artifact")]
    command = [str(adk), "api_server", "--port=0", *services, plugin, str(folder)]
    with (folder / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, cwd=folder)
        try:
            address = await _wait_until_up(process, folder / "server.log")
            async with httpx.AsyncClient(base_url=address, timeout=120) as client:
                yield client
        finally:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), 60)


async def _wait_until_up(process: asyncio.subprocess.Process, log: Path) -> str:
    """The address that the server says it has been given."""
    for _ in range(1200):
        if process.returncode is not None:
            pytest.fail(log.read_text())
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        await asyncio.sleep(0.1)
    pytest.fail("adk api_server did not come up:\n" + log.read_text())


async def run(client: httpx.AsyncClient, text: str) -> httpx.Response:
    body = {
        "appName": "clerk",
        "userId": "ada",
        "sessionId": "s",
        "newMessage": {"role": "user", "parts": [{"text": text}]},
    }
    return await client.post("/run", json=body)


async def read(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/apps/clerk/users/ada/sessions/s")
    assert answer.status_code == 200
    document: dict[str, Any] = answer.json()
    return document


async def create(client: httpx.AsyncClient) -> None:
    answer = await client.post("/apps/clerk/users/ada/sessions", json={"sessionId": "s", "state": {"a": 1}})
    assert answer.status_code == 200, answer.text


async def check_artifacts_and_memory(client: httpx.AsyncClient) -> None:
    base = "/apps/clerk/users/ada/sessions/s/artifacts"
    name = f"user:{uuid4()}.txt"
    saved = await client.post(base, json={"filename": name, "artifact": {"text": "tea"}})
    assert (saved.status_code, saved.json()["version"]) == (200, 0)
    assert name in (await client.get(base)).json()
    assert (await client.get(f"{base}/{name}")).json() == {"text": "tea"}
    assert (await client.get("/apps/clerk/users/eve/sessions/s/artifacts")).json() == []
    assert (await client.patch("/apps/clerk/users/ada/memory", json={"session_id": "s"})).status_code == 200


async def test_a_conversation_over_http(database_url: str, ours: OpenSessionService, tmp_path: Path) -> None:
    uri = database_url.replace("postgresql://", "cognizes://")
    async with api_server(tmp_path, uri, services_py=_SERVICES_PY) as client:
        await create(client)
        assert (await client.post("/apps/clerk/users/ada/sessions", json={"sessionId": "s"})).status_code == 409
        (event,) = (await run(client, "hello")).json()
        assert event["content"]["parts"][0]["text"] == "hello!"
        session = await read(client)
        assert session["state"] == {"a": 1, "answer": "hello!"}
        assert [event["author"] for event in session["events"]] == ["user", "clerk"]
        patched = await client.patch("/apps/clerk/users/ada/sessions/s", json={"stateDelta": {"b": 2}})
        assert patched.json()["state"]["b"] == 2
        await check_artifacts_and_memory(client)
        listed = (await client.get("/apps/clerk/users/ada/sessions")).json()
        assert [(item["id"], item["events"]) for item in listed] == [("s", [])]
    # The server is gone, what it stored is here.
    async with OpenMemoryService(database_url) as memories:
        found = await memories.search_memory(app_name="clerk", user_id="ada", query="hello")
        assert found.memories
        assert not (await memories.search_memory(app_name="clerk", user_id="eve", query="hello")).memories
    stored = await ours.get_session(app_name="clerk", user_id="ada", session_id="s")
    assert stored is not None
    assert stored.state == {"a": 1, "answer": "hello!", "b": 2}
    revision = Revision.of(stored)
    assert revision is not None
    (run_of_hello,) = await (await ours.engine()).runs.list(revision.thread_id)
    assert run_of_hello.status is RunStatus.COMPLETED


async def test_parallel_runs_on_one_session_when_rebasing(database_url: str, tmp_path: Path) -> None:
    uri = database_url.replace("postgresql://", "cognizes://") + "&on_conflict=rebase"
    async with api_server(tmp_path, uri, services_yaml=_SERVICES_YAML) as client:
        await create(client)
        answers = await asyncio.gather(*(run(client, f"q{number}") for number in range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        session = await read(client)
        said = [event["content"]["parts"][0]["text"] for event in session["events"]]
        await check_artifacts_and_memory(client)
        assert sorted(said) == sorted(text for number in range(4) for text in (f"q{number}", f"q{number}!"))
        assert session["state"]["answer"] in {f"q{number}!" for number in range(4)}


async def test_an_embedded_server_ends_with_the_api_server(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    async with api_server(folder, f"cognizes://{tmp_path}/data", services_py=_SERVICES_PY) as client:
        await create(client)
        assert (await run(client, "hello")).status_code == 200
        assert (tmp_path / "data" / "postgres" / "postmaster.pid").exists()
    logs = [folder / "server.log", tmp_path / "data" / "postgres.log"]
    assert not (tmp_path / "data" / "postgres" / "postmaster.pid").exists(), "\n".join(log.read_text() for log in logs)
