"""`cognizes serve --reload` and `--open`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.integration.cli.running_command import Cognizes, Serving

AGENT = """
from ag_ui.core import EventType, RunAgentInput, TextMessageChunkEvent

WORD = {word!r}

async def parrot(input: RunAgentInput):
    yield TextMessageChunkEvent(type=EventType.TEXT_MESSAGE_CHUNK, message_id="m", role="assistant", delta=WORD)
"""
INPUT = {
    "threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {},
    "messages": [{"id": "1", "role": "user", "content": "hello"}],
}  # fmt: skip


def said(serving: Serving) -> str:
    """Return the answer of the agent, in a new thread."""
    moment = str(time.monotonic_ns())
    body = {**INPUT, "threadId": moment, "runId": moment, "messages": [{**INPUT["messages"][0], "id": moment}]}
    return httpx.post(f"{serving.url}/agui/parrot", json=body, timeout=60).text


def wait_for(serving: Serving, condition: Callable[[], bool]) -> None:
    serving.wait_for(condition)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "birds"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "deep" / "__init__.py").touch()
    (folder / "deep" / "agent.py").write_text(AGENT.format(word="first"))
    return folder


def test_a_changed_agent_is_served_and_a_broken_one_leaves_the_old(cognizes: Cognizes, package: Path) -> None:
    source = package / "deep" / "agent.py"
    with cognizes.serve("--reload", "--agent", "birds.deep.agent:parrot", PYTHONPATH=str(package.parent)) as serving:
        serving.banner()
        assert "first" in said(serving)
        source.write_text(AGENT.format(word="second, longer"))
        wait_for(serving, lambda: "second, longer" in said(serving))
        source.write_text("this is no Python")
        wait_for(serving, lambda: "the old ones stay" in serving.log.read_text())
        assert "second, longer" in said(serving), "the old agent is served as long as the new one does not load"
        source.write_text(AGENT.format(word="third and last"))
        wait_for(serving, lambda: "third and last" in said(serving))
        assert serving.stop() == 0


def test_reload_needs_an_agent_that_can_be_found(cognizes: Cognizes) -> None:
    assert "--reload needs agents of your own" in cognizes.fail("serve", "--port", "0", "--reload")
    missing = cognizes.fail("serve", "--port", "0", "--reload", "--agent", "no_such_module:x")
    assert "finds no source of the module 'no_such_module'" in missing


def test_open_calls_the_browser_with_the_page(cognizes: Cognizes, tmp_path: Path) -> None:
    browser, called = tmp_path / "browser", tmp_path / "called"
    browser.write_text(f'#!/bin/sh\necho "$1" > {called}.new && mv {called}.new {called}\n')
    browser.chmod(0o755)
    with cognizes.serve("--open", BROWSER=f"{browser} %s", PATH=os.environ["PATH"]) as serving:
        wait_for(serving, called.exists)
        assert called.read_text().strip() == f"{serving.url}/"
