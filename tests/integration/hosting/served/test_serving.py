"""How a server comes by its agents."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cognizes.engine import Engine
from cognizes.engine.adapters import loading
from cognizes.engine.adapters.adk.demo import ScriptedModel, make_demo_app
from cognizes.engine.adapters.loading import load_agents
from cognizes.engine.api.main import create_app
from cognizes.engine.errors import SetupError
from tests.integration.agui.client import AgentClient
from tests.integration.agui.gates import Gate
from tests.integration.hosting.served.conftest import serve_agents


async def test_without_google_adk_there_are_no_agents_but_a_hint(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "has_adk", lambda: False)
    app = create_app(engine=engine)
    await app.state.agents.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        assert (await http.get("/agui")).json() == {"agents": []}
        for method, path in (("POST", "/agui/demo/connect"), ("GET", "/copilotkit/info")):
            answer = await http.request(method, path, json={"threadId": "t"})
            assert answer.status_code == 404
            assert "cognizes-engine[adk]" in answer.json()["detail"]
    await app.state.agents.close()


async def test_a_named_agent_without_its_extra_is_refused_with_the_install_command(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needs_adk.py").write_text("from google.adk.agents import LlmAgent\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "google.adk", None)
    monkeypatch.setitem(sys.modules, "google.adk.agents", None)
    app = create_app(engine=engine, agents=["needs_adk:root_agent"])
    with pytest.raises(SetupError, match=r"needs_adk:root_agent.*pip install 'cognizes-engine\[adk\]'"):
        await app.state.agents.start()
    await app.state.agents.close()


@pytest.mark.parametrize("module", ["cognizes.engine.adapters.adk", "cognizes.engine.adapters.adk.session_service"])
def test_importing_the_adapter_without_its_extra_names_the_install_command(module: str) -> None:
    script = f"import sys; sys.modules['google.adk'] = None; import {module}"
    finished = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 1
    assert "pip install 'cognizes-engine[adk]'" in finished.stderr.splitlines()[-1]


async def test_without_a_name_there_is_the_demo(engine: Engine) -> None:
    app = create_app(engine=engine, agents=[])
    await app.state.agents.start()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        assert [agent["name"] for agent in (await http.get("/agui")).json()["agents"]] == ["demo"]
        assert (await http.get("/openapi.json")).status_code == 200
    await app.state.agents.close()


@pytest.mark.parametrize(
    "path", ["nowhere:agent", "tests.integration.hosting.served.agents:unknown", "os:path", ":", ""]
)
def test_what_is_no_agent_is_a_clear_error(engine: Engine, path: str) -> None:
    with pytest.raises(SetupError, match="agent"):
        load_agents([path], engine)


def test_two_agents_of_one_name_are_refused(engine: Engine) -> None:
    with pytest.raises(SetupError, match="two agents"):
        load_agents(["demo", "demo"], engine)


def test_a_model_drives_the_demo_only_with_a_key(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = engine.settings.model_copy(update={"demo_model": "gemini-2.5-flash"})
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    assert isinstance(make_demo_app(settings).root_agent.model, ScriptedModel)  # type: ignore[union-attr]
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    assert make_demo_app(settings).root_agent.model == "gemini-2.5-flash"  # type: ignore[union-attr]


async def test_two_processes_never_run_one_thread_at_once(http: httpx.AsyncClient, database_url: str) -> None:
    second = await asyncio.to_thread(serve_agents, database_url)
    try:
        async with httpx.AsyncClient(base_url=second.url, headers=http.headers, timeout=60) as elsewhere:
            for _ in range(5):
                client, gate = AgentClient(http, "slow"), Gate()
                codes = await asyncio.gather(
                    *(_start(server, client, gate) for server in (http, elsewhere) for _ in range(3))
                )
                gate.open()
                assert codes.count(200) <= 1
                assert set(codes) <= {200, 409}
    finally:
        await asyncio.to_thread(second.stop)


async def _start(http: httpx.AsyncClient, client: AgentClient, gate: Gate) -> int:
    async with http.stream("POST", "/agui/slow", json=client.input(gate.text)) as response:
        return response.status_code


async def test_a_follower_of_another_processes_run_is_notified_when_its_server_stops(
    http: httpx.AsyncClient, database_url: str
) -> None:
    second = await asyncio.to_thread(serve_agents, database_url)
    client, gate = AgentClient(http, "slow"), Gate()
    await client.leave_after("TEXT_MESSAGE_CONTENT", gate.text)
    async with httpx.AsyncClient(base_url=second.url, headers=http.headers, timeout=60) as elsewhere:
        follower = AgentClient(elsewhere, "slow", client.thread_id)
        following = asyncio.create_task(follower.connect())
        await follower.until("MESSAGES_SNAPSHOT")
        code, printed = await asyncio.to_thread(second.stop)
        frames = await following
    gate.open()
    assert (frames[-1]["type"], frames[-1]["code"], code) == ("RUN_ERROR", "SERVER_STOPPED", 0), printed
