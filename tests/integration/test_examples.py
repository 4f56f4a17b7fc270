"""The example agents, one folder per framework: short, served together, and with a turn each."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.integration.agui.client import AgentClient, text_of
from tests.served import REPOSITORY, Served, serve

AGENTS = {
    "adk": "app",
    "agui": "parrot",
    "langgraph": "weather",
    "openai_agents": "openai_weather",
    "pydantic_ai": "pydantic_weather",
}
LONGEST = 40


@pytest.fixture(scope="module")
def served(postgres_server: EmbeddedPostgres, database_supply: DatabaseSupply) -> Iterator[Served]:
    name = asyncio.run(database_supply.take())
    paths = ",".join(f"examples.{folder}.agent:{agent}" for folder, agent in AGENTS.items())
    server = serve(replace_database(postgres_server.url, name), COGNIZES_AGENTS=paths)
    yield server
    server.close()
    database_supply.give_back(name)


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.url, timeout=60, headers={"X-User-ID": f"user-{uuid4()}"}) as opened:
        yield opened


@pytest.mark.parametrize("folder", AGENTS)
def test_an_example_is_short(folder: str) -> None:
    lines = (REPOSITORY / "examples" / folder / "agent.py").read_text().splitlines()
    assert len(lines) <= LONGEST


def answer_of(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    [question] = frames[-1]["outcome"]["interrupts"]
    return [{"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}]


@pytest.mark.parametrize(
    ("agent", "answer"),
    [
        ("adk_weather", "It is sunny in Rome. "),
        ("parrot", "Rome "),
        ("weather", "I will look up: Rome "),
        ("openai_weather", "It is sunny in Rome."),
        ("pydantic_weather", "It is sunny in Rome."),
    ],
)
async def test_an_example_answers_and_a_reload_shows_the_answer(
    http: httpx.AsyncClient, agent: str, answer: str
) -> None:
    client = AgentClient(http, agent)
    frames = await client.run("Rome")
    if (frames[-1].get("outcome") or {}).get("type") == "interrupt":
        frames += await client.run(resume=answer_of(frames))
    assert frames[-1]["type"] == "RUN_FINISHED"
    assert text_of(frames) == answer
    reloaded = AgentClient(http, agent, client.thread_id)
    await reloaded.connect()
    assert [message for message in reloaded.view.messages if message.get("content") == answer]


@pytest.mark.parametrize(("folder", "printed"), [("openai_agents", "4 items"), ("pydantic_ai", "2 messages")])
def test_an_example_of_a_store_runs_as_a_script(database_url: str, folder: str, printed: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", f"examples.{folder}.agent"],
        env={**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == printed
