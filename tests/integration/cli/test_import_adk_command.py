"""`cognizes import-adk`, from a database of ADK's service."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.adk.events import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import DatabaseSessionService
from google.genai.types import Content, Part

from cognizes.engine import Engine
from tests.integration.cli.running_command import Cognizes


async def write_source(path: Path, events: int) -> None:
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
    session = await service.get_session(app_name="shop", user_id="ada", session_id="s")
    if session is None:
        session = await service.create_session(
            app_name="shop", user_id="ada", session_id="s", state={"user:lang": "en"}
        )
    for number in range(events):
        await service.append_event(
            session,
            Event(
                author="user",
                content=Content(role="user", parts=[Part(text=f"hello {number}")]),
                actions=EventActions(state_delta={"n": number}),
            ),
        )
    await service.close()


async def test_it_copies_once_and_then_only_new_events(cognizes: Cognizes, database_url: str, tmp_path: Path) -> None:
    source = tmp_path / "sessions.db"
    await write_source(source, 3)
    command = ("import-adk", f"sqlite:///{source}", "--database-url", database_url)
    first = cognizes(*command)
    assert first.returncode == 0, first.stderr
    assert "1 sessions and 3 events copied" in first.stdout
    await write_source(source, 2)
    again = cognizes(*command)
    assert "0 sessions and 2 events copied, 3 events were already present" in again.stdout
    async with Engine.open(database_url) as engine:
        session = await engine.sessions.get("shop", "ada", "s")
        assert session is not None
        assert session.state == {"n": 1, "user:lang": "en"}
        messages = await engine.sessions.messages(session)
        assert [message.content for message in messages] == [f"hello {n}" for n in (0, 1, 2, 0, 1)]


@pytest.mark.parametrize("source", ["nonsense", "sqlite:////nowhere/at/all.db"])
def test_an_invalid_source_is_a_one_line_error(cognizes: Cognizes, database_url: str, source: str) -> None:
    finished = cognizes("import-adk", source, "--database-url", database_url)
    assert finished.returncode == 1
    assert "Traceback" not in finished.stderr
    assert finished.stderr.startswith("cognizes: ")


def test_a_missing_sqlite_file_is_refused_and_not_created(
    cognizes: Cognizes, database_url: str, tmp_path: Path
) -> None:
    source = tmp_path / "typo.db"
    finished = cognizes("import-adk", f"sqlite:///{source}", "--database-url", database_url)
    assert finished.returncode == 1
    assert finished.stderr.startswith(f"cognizes: there is no SQLite file {source}")
    assert not source.exists()
