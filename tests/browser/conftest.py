"""A real server with the demo agent and a real Chromium, one of each for all tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from cognizes.engine import Engine
from cognizes.engine.database import EmbeddedPostgres
from tests.conftest import replace_database
from tests.database_supply import DatabaseSupply
from tests.served import serve

WAIT_MS = 60_000
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AGENTS = (
    "demo,tests.browser.agents:patient,tests.browser.agents:fickle,tests.browser.agents:fickle_graph,"
    "tests.browser.agents:clerk,examples.langgraph.agent:weather,examples.pydantic_ai.agent:pydantic_weather"
)
Result = TypeVar("Result")


def find_chromium() -> str:
    """Debian's chromium, installed where we may; else the tests are skipped."""
    if found := shutil.which("chromium"):
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    said = b""
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        said += subprocess.run(
            command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600
        ).stdout
    if not (found := shutil.which("chromium")):
        pytest.fail(f"chromium could not be installed:\n{said.decode(errors='replace')}")
    return found


@dataclass
class Site:
    """The server under test, its database and the gates of its patient agent."""

    url: str
    database_url: str
    gates: Path
    http: httpx.Client
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """Kill the server as a crash does."""
        self.process.kill()
        self.process.wait()

    def post(self, path: str, **body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def get(self, path: str, **query: Any) -> Any:
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def thread(
        self, *, app: str = "shop", user: str | None = None, state: dict[str, Any] | None = None, **named: Any
    ) -> str:
        user = user or f"user-{uuid4().hex[:8]}"
        created = self.post("/api/sessions", app_name=app, user_id=user, state=state or {}, **named)
        return str(created["thread_id"])

    def event(
        self,
        thread: str,
        kind: str,
        *,
        author: str = "agent",
        state: dict[str, Any] | None = None,
        run: str | None = None,
        **content: Any,
    ) -> int:
        actions = {"state_delta": state} if state else {}
        body = {"author": author, "event_type": kind, "content": content, "actions": actions, "run_id": run}
        return int(self.post(f"/api/sessions/{thread}/events", **body)["sequence_num"])

    def run(self, thread: str, **named: Any) -> str:
        return str(self.post(f"/api/sessions/{thread}/runs", **named)["id"])

    def events(self, thread: str) -> list[dict[str, Any]]:
        return list(self.get(f"/api/sessions/{thread}/events", limit=1000)["events"])

    def engine(self, work: Callable[[Engine], Awaitable[Result]]) -> Result:
        """Does something with an engine of its own, on the same database; in a thread, where no loop runs."""

        async def with_engine() -> Result:
            async with Engine.open(self.database_url) as engine:
                return await work(engine)

        with ThreadPoolExecutor(1) as executor:
            return executor.submit(asyncio.run, with_engine()).result()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    return find_chromium()


@pytest.fixture(scope="session")
def site(
    chromium_path: str,
    postgres_server: EmbeddedPostgres,
    database_supply: DatabaseSupply,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    """The server, until the last test is done."""
    name = asyncio.run(database_supply.take())
    try:
        with serve_site(replace_database(postgres_server.url, name), tmp_path_factory.mktemp("site")) as served:
            yield served
    finally:
        database_supply.give_back(name)


@contextmanager
def serve_site(database_url: str, folder: Path, *, port: int = 0, **settings: str) -> Iterator[Site]:
    """A server of its own over a database, until the end of the block."""
    (gates := folder / "gates").mkdir()
    served = serve(
        database_url,
        port=port,
        COGNIZES_AGENTS=AGENTS,
        COGNIZES_DEMO_TOKEN_SECONDS="0.002",
        COGNIZES_SHUTDOWN_SECONDS="0.3",
        COGNIZES_PRICES='{"flash": {"input": 1, "output": 10}}',
        COGNIZES_TRACE_URL="http://traces.example/trace/{trace_id}",
        PATIENT_GATES=str(gates),
        **settings,
    )
    try:
        with httpx.Client(base_url=served.url, timeout=60) as http:
            yield Site(served.url, database_url, gates, http, served.process)
    finally:
        served.stop(signal.SIGTERM)


@pytest.fixture(scope="session")
def browser(chromium_path: str, site: Site) -> Iterator[Browser]:
    """Chromium. It asks for the site only so that it is closed before the site is."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_path, args=FLAGS, timeout=120_000)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page; errors of its scripts and breaches of its policy fail the test."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, reduced_motion="reduce", accept_downloads=True
    )
    context.set_default_timeout(WAIT_MS)
    opened = context.new_page()
    wrong: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and "Content Security Policy" in message.text:
            wrong.append(message.text)

    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", on_console)
    yield opened
    context.close()
    assert wrong == []


@pytest.fixture
def open_thread(page: Page, site: Site) -> Callable[..., Page]:
    """Opens a thread's page and waits until it is shown."""

    def open_it(thread: str, query: str = "") -> Page:
        page.goto(f"{site.url}/#/thread/{thread}{query}")
        # Not only a thread: one that was open before is still there for a moment.
        expect(page.locator(f'#columns[data-thread="{thread}"] .scope').first).to_be_attached()
        return page

    return open_it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(300))
