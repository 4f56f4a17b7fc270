"""Every code block of README, docs and examples is executed, parsed, or listed below with the reason why it is not."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import iter_route_contexts
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.genai import types

from cognizes.engine import Engine, RunStatus, Settings
from cognizes.engine.adapters.adk import OpenSessionService
from cognizes.engine.api.main import app
from tests.integration.adapters.adk.scripted_model import ScriptedModel
from tests.served import serve

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]

ADDRESS = "http://127.0.0.1:8000"
SERVER = "it runs until Ctrl-C; tests/integration/cli/test_serve_command.py starts it"
GUIDES = "tests/integration/test_guides.py runs it"
NOT_EXECUTED = {
    "README.md: pip install uv && uv run cognizes serve": "the two commands are what CI and a new user start",
    "README.md: uvx --from": "it installs from the package index; tests/kits/test_wheel.py installs the wheel",
    "README.md: import asyncio": "test_scripts_print_their_output runs it as a program",
    "README.md: {'cart'": "the output of a script, which test_scripts_print_their_output compares",
    "README.md: You said": "the output of a script, which test_scripts_print_their_output compares",
    "CONTRIBUTING.md: pip install uv": "it runs these tests; .ci/run executes the same lines",
    "docs/adk.md: pip install": "it installs from the package registry",
    "docs/adk.md: adk web": "it runs until Ctrl-C; tests/integration/adapters/adk/test_api_server.py starts adk",
    "docs/adk.md: adk api_server": "a fragment; tests/integration/adapters/adk/test_api_server.py starts adk",
    "docs/adk.md: cognizes import-adk": "it needs a database of ADK; tests/integration/cli/test_import_adk_command.py",
    "docs/agents.md: uv run cognizes serve": SERVER,
    "docs/guide-web-keys.md: COGNIZES_AUTH": SERVER,
    "docs/guide-web-keys.md: from": GUIDES,
    "docs/guide-web-keys.md: pip install": "settings of an identity provider; tests/integration/access/ has one",
    "docs/guide-web-keys.md: const { ticket }": GUIDES,
    "docs/guide-approvals.md: cognizes webhooks": "it needs a public host; tests/integration/cli/ runs it",
    "docs/guide-approvals.md: import os": GUIDES,
    "docs/guide-approvals.md: WEBHOOK_SECRET": "it runs until Ctrl-C; test_guides.py serves the program",
    "docs/guide-nginx.md: export": SERVER,
    "docs/guide-nginx.md: map": "tests/integration/test_guides.py compares it with deploy/nginx.conf",
    "docs/guide-nginx.md: nginx -t": "it needs nginx as a service; tests/server/test_reverse_proxies.py runs nginx",
    "docs/guide-import-adk.md: pip install": GUIDES,
    "docs/guide-backup-upgrade.md: pip install": "it installs packages",
    "docs/langgraph.md: cognizes serve": SERVER,
    "docs/langgraph.md: pip install": "it installs from the package registry",
    "docs/mcp.md: pip install": "it installs from the package registry",
    "docs/openai-agents.md: pip install": "it installs from the package registry",
    "docs/openai-agents.md: cognizes serve": SERVER,
    "docs/pydantic-ai.md: pip install": "it installs from the package registry",
    "docs/pydantic-ai.md: cognizes serve": SERVER,
    "docs/quickstart.md: pip install uv": SERVER,
    "docs/quickstart.md: from google.adk.apps": "two lines of the app that tests/integration/test_quickstart.py serves",
    "docs/quickstart.md: curl": "it needs the run; tests/integration/test_quickstart.py reads the same route",
    "docs/quickstart.md: pkill -9": "tests/integration/test_quickstart.py kills and starts a server like this",
    "docs/quickstart.md: python -m venv": "it installs the clone; tests/kits/test_wheel.py installs the wheel",
    "docs/quickstart.md: from google.adk.agents": "it needs a model; tests/integration/test_quickstart.py loads it",
    "docs/quickstart.md: echo": SERVER,
    "docs/installation.md: python -m venv": "it installs the clone; tests/kits/test_wheel.py installs the wheel",
    "docs/guide-testing.md: pip install": "it installs from the package registry",
    "docs/guide-testing.md: [pytest]": GUIDES,
    "docs/guide-testing.md: from": GUIDES,
    "docs/guide-testing.md: import asyncio": GUIDES,
    "docs/guide-deploy.md: CREATE ROLE": GUIDES,
    "docs/guide-deploy.md: python3 -m venv": "it needs root; tests/kits/test_wheel.py installs the wheel",
    "docs/guide-deploy.md: DATABASE_URL": GUIDES,
    "docs/guide-deploy.md: set -a": GUIDES,
    "docs/guide-deploy.md: cp deploy": "it needs systemd; tests/unittests/test_deploy_files.py checks the unit",
    "docs/operation.md: pip install 'cognizes-engine[metrics]'": "it installs from the package registry",
    "docs/operation.md: OTEL_EXPORTER_OTLP_ENDPOINT": "it needs a collector; test_traces_of_commands.py has one",
    "docs/operation.md: DATABASE_URL=": SERVER,
    "docs/operation.md: cognizes user": "it needs a user; tests/integration/archive/test_archive_commands.py runs it",
    "docs/operation.md: cognizes backup": "it needs data; tests/integration/archive/test_archive_commands.py runs it",
    "docs/deployment.md: location /": "a part of deploy/nginx.conf, which tests/server/test_reverse_proxies.py runs",
    "docs/operation.md: cognizes webhooks": "it needs a public host; tests/integration/cli/test_webhooks_command.py",
    "docs/operation.md: pip install -c": "it installs packages; tests/unittests/scripts/test_supply_chain.py",
    "docs/security.md: cognizes serve": SERVER,
    "docs/timeline.md: curl -X POST": "it needs a hosted agent; tests/integration/timeline/test_chat.py",
    "docs/runs.md: cognizes worker": "examples/waiting_run runs the same commands",
    "docs/monitor.md: import { SignalPullClient }": "for a page; tests/node/signal_pull.test.mjs runs the module",
    "docs/tutorial-langgraph.md: pip install": "it installs from the package registry",
    "docs/tutorial-langgraph.md: cognizes serve": "it runs until Ctrl-C; tests/integration/test_tutorials.py starts it",
    "docs/tutorial-langgraph.md: pkill -9": "tests/integration/test_tutorials.py kills and starts a server like this",
    "docs/tutorial-langgraph.md: from cognizes.client": "it needs the graph; tests/integration/test_tutorials.py",
    "docs/tutorial-langgraph.md: async with Client": "it needs the run; tests/integration/test_tutorials.py",
    "docs/tutorial-memory.md: pip install": "it installs from the package registry",
    **dict.fromkeys(
        [f"docs/clients.md: {start}" for start in (
            "import { CognizesClient, ConflictError,", "const run =", "const copy =", "const thread =",
            "import { CognizesClient } from")],
        "TypeScript; tests/node/test_typescript_live.py compiles and runs it",
    ),
    "docs/clients.md: (cd": "it needs the npm registry; tests/node/test_typescript_client.py packs and installs it",
    "docs/signal-pull.md: id: 17": "a frame, not code; tests/unittests/sync/test_signals.py checks its form",
    "docs/architecture.md: models, errors": "a drawing of the layers; import-linter checks them",
    "examples/copilotkit/README.md: uv run cognizes serve": SERVER,
    "examples/copilotkit/README.md: npm install": "it needs the npm registry and runs until Ctrl-C",
    "docs/benchmarks.md: uv run --with py-spy": "it needs root and wrk; the page has the figures it printed",
    **dict.fromkeys(
        [f"docs/benchmarks.md: uv run python benchmarks/{name}.py" for name in
         ("against_commit", "http", "append", "append_processes", "backlog", "against_adk", "live", "streams",
          "signals", "runs", "memory_passages", "memory_recall", "monitor", "frameworks", "hosted")],
        "minutes of load; the page has the figures it printed",
    ),
}  # fmt: skip


OTHER_VARIABLES = {"COGNIZES_URL", "COGNIZES_KEY", "COGNIZES_MCP_KEY"}
"""Variables of programs on the pages, and of an option of `cognizes mcp`."""

COMPLETE = ("/api/", "/agui", "/contexts", "/conversations", "/live", "/health", "/version")
"""Pages shorten other routes: a table of `/memory` leaves out that prefix."""


def _template(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path.partition("?")[0].rstrip("/"))


ROUTES = {
    (method, _template(str(context.path_format)))
    for context in iter_route_contexts(app.routes)
    for method in context.methods or ()
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def reason(self) -> str | None:
        """Why it is not executed."""
        return next((why for start, why in NOT_EXECUTED.items() if f"{self.page}: {self.text}".startswith(start)), None)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        lines = page.read_text().splitlines()
        fences = [number for number, line in enumerate(lines) if line.startswith("```")]
        for first, last in zip(fences[::2], fences[1::2], strict=True):
            yield Block(name, first + 1, lines[first].removeprefix("```"), "\n".join(lines[first + 1 : last]))


BLOCKS = list(_blocks())


def _of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and block.reason is None]


def test_every_block_is_executed_or_listed_with_a_reason() -> None:
    kinds = {"python", "bash", "sh", "json", "yaml"}
    assert [str(block) for block in BLOCKS if block.language not in kinds and block.reason is None] == []


def test_every_listed_reason_is_of_a_block_that_exists() -> None:
    texts = [f"{block.page}: {block.text}" for block in BLOCKS]
    assert [start for start in NOT_EXECUTED if not any(text.startswith(start) for text in texts)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_routes_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"\bCOGNIZES_[A-Z0-9_]+[A-Z0-9]\b", text)) - OTHER_VARIABLES
    settings = {f"COGNIZES_{name.upper()}" for name in Settings.model_fields}
    # `COGNIZES_FAILED_KEYS_…` means all settings that begin so.
    assert [name for name in named if not any(known.startswith(name) for known in settings)] == []
    routes = re.findall(
        r"`(GET|POST|PUT|PATCH|DELETE) (/(?:api|agui|contexts|conversations|live|health|version)\b[^` ]*)", text
    )
    unknown = [(method, path) for method, path in routes if (method, _template(path)) not in ROUTES]
    assert [f"{method} {path}" for method, path in unknown if "{…" not in path and not path.endswith("…")] == []


@pytest.mark.parametrize("block", _of("json"), ids=str)
def test_json_is_valid(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", _of("yaml"), ids=str)
def test_services_yaml_names_a_class(block: Block) -> None:
    for service in yaml.safe_load(block.text)["services"]:
        module, name = service["class"].rsplit(".", 1)
        assert inspect.isclass(getattr(import_module(module), name))


@pytest.mark.parametrize("page", sorted({block.page for block in _of("python")}))
async def test_python_runs(page: str, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    blocks = [block for block in _of("python") if block.page == page]
    with _server(database_url, blocks) as url:
        async with _names(database_url) as names, asyncio.timeout(120):
            for block in blocks:
                await _execute(block, names, url)
            await _close(names)
    if page in _CHECKS:
        async with Engine.open(database_url) as engine:
            await _CHECKS[page](engine, names)


SCRIPTS = [
    (block, output)
    for block, output in pairwise(BLOCKS)
    if block.text.startswith("import asyncio") and output.language == "text"
]
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def test_there_are_scripts_with_output() -> None:
    assert [script.page for script, _ in SCRIPTS].count("README.md") == 2


@pytest.mark.parametrize(("script", "output"), SCRIPTS, ids=str)
def test_scripts_print_their_output(script: Block, output: Block, database_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "DATABASE_URL": database_url, "HOME": str(tmp_path)}
    command = [sys.executable, "-c", script.text]
    finished = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert _MOMENT.sub("then", finished.stdout.rstrip("\n")) == _MOMENT.sub("then", output.text)


@contextmanager
def _server(database_url: str, blocks: list[Block]) -> Iterator[str]:
    """A server for a page that connects to one; its address."""
    if not any(ADDRESS in block.text for block in blocks):
        yield ADDRESS
        return
    server = serve(database_url, COGNIZES_AGENTS="")
    try:
        yield server.url
    finally:
        server.stop()


async def _execute(block: Block, names: dict[str, Any], url: str) -> None:
    text = block.text.replace(ADDRESS, url)
    # Line numbers of the page in a traceback.
    code = compile(
        "\n" * block.line + text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    outcome = eval(code, names)
    if inspect.isawaitable(outcome):
        await outcome


@asynccontextmanager
async def _names(database_url: str) -> AsyncIterator[dict[str, Any]]:
    """What the pages take as given: an engine, a session with some history, an agent, a server."""
    async with Engine.open(database_url) as engine, OpenSessionService(database_url) as service:
        session = await engine.sessions.create("shop", "grace", state={"draft": 1})
        for number in range(16):
            await engine.sessions.append(
                session,
                author="user",
                kind="user_message",
                text=f"she drinks tea {number}",
                state={"n": number},
            )
        async with (
            engine.runs.start(session) as run,
            run.message("assistant", message_id="answer") as answer,
        ):
            for number in range(20):
                await answer.write(f"{number} ")
        adk = await service.create_session(app_name="shop", user_id="ada", session_id="s")
        said = types.Content(role="user", parts=[types.Part(text="hi")])
        event = await service.append_event(adk, Event(author="user", content=said))
        writing = asyncio.create_task(_write_messages(engine, session.thread_id))
        try:
            yield {
                "engine": engine,
                "session": session,
                "thread_id": session.thread_id,
                "context_id": session.thread_id,
                "message_id": "answer",
                "model_stream": _tokens(),
                "root_agent": LlmAgent(name="clerk", model=ScriptedModel("at your service")),
                "message": said,
                "event": event,
                "__name__": "page",
            }
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing


async def _tokens() -> AsyncIterator[str]:
    for token in ("one ", "two"):
        yield token


async def _write_messages(engine: Engine, thread_id: str) -> None:
    """A producer, so that a page that watches has something to see."""
    while True:
        async with engine.stream_message(thread_id) as message:
            await message.write("word")
        await asyncio.sleep(0.2)


async def _close(names: dict[str, Any]) -> None:
    for name in ("runner", "adk_runner", "service"):
        if close := getattr(names.get(name), "close", None):
            await close()


async def _check_readme(engine: Engine, names: dict[str, Any]) -> None:
    assert names["answer"] == {"ok": True}
    assert names["past"].state == {"cart": [], "user:lang": "en"}
    assert any("refund" in hit.text for hit in names["hits"])


async def _check_runs(engine: Engine, names: dict[str, Any]) -> None:
    assert names["finished"].status is RunStatus.COMPLETED
    assert names["finished"].result == {"status": "shipped", "parcel": "parcel for reservation of lamp"}


_CHECKS = {"README.md": _check_readme, "docs/runs.md": _check_runs}


@pytest.mark.parametrize("block", _of("bash", "sh"), ids=str)
def test_commands_run(block: Block, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "COGNIZES_DATA_DIR": str(tmp_path / "data"),
        "COGNIZES_PORT": port,
    }
    finished = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", re.sub(r"\b8000\b", port, block.text) + "\nwait"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
