"""The how-to guides, with the blocks of their pages: keys of users, approvals by webhook and signal, import, nginx."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from google.adk.sessions import DatabaseSessionService

from cognizes.client import Client
from cognizes.engine import Engine, RunStatus
from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.served import REPOSITORY, Served, serve

LOCAL = {"COGNIZES_WEBHOOK_NETWORKS": "127.0.0.0/8"}


def read_blocks(page: str, language: str) -> list[str]:
    text = (REPOSITORY / "docs" / page).read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


async def execute(block: str, names: dict[str, Any]) -> None:
    code = compile(block, "guide", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    outcome = eval(code, names)
    if inspect.isawaitable(outcome):
        await outcome


async def test_keys_of_users(database_url: str) -> None:
    server = await asyncio.to_thread(serve, database_url, COGNIZES_AUTH="required")
    printed: list[str] = []
    try:
        async with Engine.open(database_url) as engine:
            names: dict[str, Any] = {"engine": engine, "print": printed.append}
            for block in read_blocks("guide-web-keys.md", "python"):
                await execute(block.replace("http://127.0.0.1:8000", server.url), names)
            key = await names["log_in"]("ada")
        assert printed == ["bob does not see the session of ada", "bob cannot act for ada"]
        [script] = read_blocks("guide-web-keys.md", "js")
        route = re.search(r'fetch\("(\S+)", \{ method: "POST"', script)
        assert route is not None
        stream = re.search(r"EventSource\(`(\S+)\$\{runId\}(\S+)\$\{ticket\}`\)", script)
        assert stream is not None
        async with httpx.AsyncClient(base_url=server.url) as http:
            answer = await http.post(route[1], headers={"Authorization": f"Bearer {key}"})
            ticket = answer.json()["ticket"]
            async with Engine.open(database_url) as engine:
                created = await engine.sessions.get("shop", "ada", names["session"].session_id)
                assert created is not None
                queued = await engine.runs.enqueue(created, "mail")
            url = f"{stream[1]}{queued.id}{stream[2]}{ticket}"
            async with http.stream("GET", url) as response:
                assert response.status_code == 200
                assert response.headers["content-type"].startswith("text/event-stream")
    finally:
        await asyncio.to_thread(server.stop)


@pytest.fixture
def served(database_url: str) -> Iterator[Served]:
    server = serve(database_url, **LOCAL)
    yield server
    server.close()


async def test_an_approval_in_another_system(
    served: Served, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [program] = read_blocks("guide-approvals.md", "python")
    names: dict[str, Any] = {}
    await execute(program, names)
    app: FastAPI = names["app"]
    chat = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    serving = asyncio.create_task(chat.serve())
    async with asyncio.timeout(120):
        while not chat.started:
            await asyncio.sleep(0.01)
        address = f"http://127.0.0.1:{chat.servers[0].sockets[0].getsockname()[1]}"
        try:
            async with (
                Engine.open(database_url, webhook_networks="127.0.0.0/8") as engine,
                Client(served.url) as client,
            ):
                _, secret = await engine.webhooks.create("shop", f"{address}/cognizes", events=["waiting"])
                monkeypatch.setenv("WEBHOOK_SECRET", secret)
                monkeypatch.setenv("COGNIZES_URL", served.url)
                session = await client.sessions.create("shop", "ada")
                run = await client.runs.create(session.thread_id)
                await client.runs.suspend(run, "human", "refund-1", reason="Refund 3 €?")
                while run.id not in names["cards"]:
                    await asyncio.sleep(0.05)
                assert names["cards"][run.id]["wait"]["reason"] == "Refund 3 €?"
                async with httpx.AsyncClient(base_url=address) as http:
                    unsigned = await http.post("/cognizes", json={"type": "run.waiting"})
                    assert unsigned.status_code == 400
                    pressed = await http.post(f"/answers/{run.id}", params={"confirmed": "true"})
                    assert pressed.json() == "thank you"
                resumed = await client.runs.start(run)
                assert resumed.resumption is not None
                assert resumed.resumption["payload"] == {"confirmed": True}
                ended = await client.runs.finish(resumed)
                assert ended.status == RunStatus.COMPLETED
        finally:
            chat.should_exit = True
            await serving


async def test_the_import_of_adks_database(database_url: str, tmp_path: Path) -> None:
    old = DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}")
    await old.create_session(app_name="shop", user_id="ada", session_id="s", state={"user:lang": "en"})
    await old.close()
    [block] = read_blocks("guide-import-adk.md", "bash")
    command = next(line for line in block.splitlines() if line.startswith("cognizes import-adk"))
    program, *arguments = command.partition("#")[0].split()
    finished = await asyncio.to_thread(
        subprocess.run,
        [str(Path(sys.executable).parent / program), *arguments, "--database-url", database_url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "1 sessions" in finished.stdout
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.get("shop", "ada", "s")
        assert session is not None
        assert session.state == {"user:lang": "en"}


def test_the_settings_of_nginx_are_those_that_are_tested() -> None:
    [page] = read_blocks("guide-nginx.md", "nginx")

    def directives(text: str) -> set[str]:
        return {line.partition("#")[0].strip() for line in text.splitlines()}

    tested = directives((REPOSITORY / "deploy" / "nginx.conf").read_text())
    own = ("proxy_pass http://127.0.0.1:8000;", "listen", "server_name", "ssl_certificate")
    assert [line for line in directives(page) - tested if not line.startswith(own)] == []


def test_the_tests_of_an_agent(tmp_path: Path) -> None:
    [settings] = read_blocks("guide-testing.md", "ini")
    shared, *tests = read_blocks("guide-testing.md", "python")
    (tmp_path / "pytest.ini").write_text(settings)
    (tmp_path / "conftest.py").write_text(shared)
    for number, block in enumerate(tests):
        (tmp_path / f"test_{number}.py").write_text(block)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert re.search(r"^2 passed", finished.stdout, re.MULTILINE)


async def test_the_steps_of_a_deployment(tmp_path: Path) -> None:
    """On a server without the role of the engine, as its administrator and then as the owner of the database."""
    programs = Path(sys.executable).parent
    server = EmbeddedPostgres(tmp_path / "server")
    await server.start()
    try:
        [administration] = read_blocks("guide-deploy.md", "sql")
        database = "postgres"
        for line in administration.strip().splitlines():
            if line.startswith("\\c "):
                database = line.removeprefix("\\c ")
                continue
            connection = await asyncpg.connect(server.url, database=database)
            await connection.execute(line)
            await connection.close()
        settings, commands = [
            next(block for block in read_blocks("guide-deploy.md", "bash") if sign in block)
            for sign in ("DATABASE_URL=", "keys create")
        ]
        owner = re.sub(r"//.*?@", "//cognizes@", replace_database(server.url, "cognizes"))
        variables = dict(line.split("=", 1) for line in settings.splitlines()) | {"DATABASE_URL": owner}
        assert variables["COGNIZES_AUTH"] == "required"
        given = {**os.environ, **{name: variables[name] for name in ("DATABASE_URL", "COGNIZES_AUTH")}}
        printed = []
        for line in commands.splitlines()[1:]:
            program, *arguments = line.partition("#")[0].split()
            finished = await asyncio.to_thread(
                subprocess.run,
                [str(programs / Path(program).name), *arguments],
                cwd=tmp_path,
                env=given,
                capture_output=True,
                text=True,
                check=False,
            )
            assert finished.returncode == 0, f"{line}\n{finished.stdout}{finished.stderr}"
            printed.append(finished.stdout)
        operations = re.search(r"cgz_\S+", printed[2])
        assert operations is not None
        serving = await asyncio.to_thread(serve, owner, COGNIZES_AUTH="required", COGNIZES_DEVELOPMENT="false")
        try:
            async with Client(serving.url, api_key=operations[0]) as client:
                session = await client.sessions.create("shop", "ada")
                assert (await client.sessions.get(session.thread_id)).app_name == "shop"
                caller = await client.caller()
                assert set(caller.permissions) == {"read", "write", "admin"}
            async with httpx.AsyncClient(base_url=serving.url) as http:
                assert (await http.get("/health")).json()["status"] == "ok"
                assert (await http.get("/api/sessions")).status_code == 401
        finally:
            await asyncio.to_thread(serving.stop)
    finally:
        await server.close()
