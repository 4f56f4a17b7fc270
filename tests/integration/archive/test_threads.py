"""Threads as NDJSON: a thread comes back in another database with the same ids, sequences, texts and history."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from cognizes.engine import Engine, InvalidInputError, NotFoundError, Session
from cognizes.engine.archive.threads import ExportedThreads
from tests.integration.archive.filled import fill_session


@pytest.fixture
async def source(database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(database_url, memory_background=False) as engine:
        yield engine


@pytest.fixture
async def target(empty_database_url: str) -> AsyncIterator[Engine]:
    async with Engine.open(empty_database_url, memory_background=False) as engine:
        yield engine


async def exported(engine: Engine, app: str = "shop", **names: str) -> list[str]:
    return [line async for line in engine.archive.export(app, **names, report=ExportedThreads())]


async def everything(engine: Engine, session: Session) -> object:
    """Return what a user sees of a session: events, messages, timeline, branches, runs, steps, past states."""
    sessions = engine.sessions
    found = await sessions.get(session.app_name, session.user_id, session.id)
    assert found is not None
    runs = await engine.runs.list(found.thread_id)
    return (
        found,
        [event async for event in sessions.iterate_events(found)],
        await sessions.messages(found),
        await engine.branches.list(found.thread_id),
        runs,
        [await engine.runs.steps(run.thread_id, run.id) for run in runs],
        [await sessions.at(found, sequence=number) for number in range(found.last_sequence + 1)],
    )


async def test_a_thread_moves_with_equal_ids_sequences_and_history(source: Engine, target: Engine) -> None:
    session = await fill_session(source, "shop", "ada")
    lines = await exported(source)
    report = await target.archive.import_lines(lines)
    assert (report.imported, report.present, report.skipped) == (1, 0, {})
    assert await everything(target, session) == await everything(source, session)
    assert await exported_rows(target) == await exported_rows(source)


async def exported_rows(engine: Engine) -> list[str]:
    _, *lines = await exported(engine)
    rows = [json.loads(line) for line in lines]
    for line in rows:
        for name in ("write_number", "began_number"):  # numbers of an installation
            line.get("row", {}).pop(name, None)
    return sorted(json.dumps(line) for line in rows)


async def test_an_imported_thread_continues(source: Engine, target: Engine) -> None:
    session = await fill_session(source, "shop", "ada")
    await target.archive.import_lines(await exported(source))
    here = await target.sessions.get("shop", "ada", session.id)
    assert here is not None
    event = await target.sessions.append(here, author="user", kind="user_message", text="and now?")
    assert event.sequence_num == session.last_sequence + 1
    (run,) = [run for run in await target.runs.list(here.thread_id) if run.status == "waiting"]
    await target.runs.signal(run.id, correlation_key="k", thread_id=run.thread_id)
    (claimed,) = await target.runs.claim(["work"])
    assert claimed.id == run.id


async def test_a_repeated_import_changes_nothing(source: Engine, target: Engine) -> None:
    session = await fill_session(source, "shop", "ada")
    lines = await exported(source)
    await target.archive.import_lines(lines)
    before = await everything(target, session)
    report = await target.archive.import_lines(lines)
    assert (report.imported, report.present, report.states_kept, report.rows) == (0, 1, 1, 0)
    assert await everything(target, session) == before


async def test_threads_are_not_merged_and_states_are_not_overwritten(source: Engine, target: Engine) -> None:
    session = await fill_session(source, "shop", "ada")
    lines = await exported(source)
    await target.archive.import_lines(lines)
    here = await target.sessions.get("shop", "ada", session.id)
    assert here is not None
    await target.sessions.update(here, {"user:name": "newer"})
    report = await target.archive.import_lines(lines)
    assert "threads are not merged" in report.skipped[session.id]
    await target.sessions.refresh(here)
    assert here.state["user:name"] == "newer"


async def test_the_session_of_another_thread_is_kept(source: Engine, target: Engine) -> None:
    session = await source.sessions.create("shop", "ada", session_id="mine")
    other = await target.sessions.create("shop", "ada", session_id="mine")
    report = await target.archive.import_lines(await exported(source))
    assert f"the session exists as the thread {other.thread_id}" in report.skipped[session.id]


async def test_a_thread_with_a_run_in_progress_is_skipped(source: Engine) -> None:
    session = await source.sessions.create("shop", "ada")
    run = await source.runs.enqueue(session, "work")
    report = ExportedThreads()
    lines = [json.loads(line) async for line in source.archive.export("shop", report=report)]
    assert report.skipped == {session.id: f"its run {run.id} is not ended; wait for its end, or cancel it"}
    assert [line.get("end") for line in lines] == [None, 0]


async def test_only_the_named_sessions(source: Engine) -> None:
    first = await source.sessions.create("shop", "ada")
    await source.sessions.create("shop", "ada")
    await source.sessions.create("shop", "bob")
    assert len(await exported(source)) == 5
    assert len(await exported(source, user_id="ada")) == 4
    assert len(await exported(source, user_id="ada", session_id=first.id)) == 3
    with pytest.raises(NotFoundError, match="has no such sessions"):
        await exported(source, user_id="eve")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "the file is empty"),
        (lambda lines: ["hello\n"], "line 1 is not JSON"),
        (lambda lines: ["[]\n"], "line 1 is not a JSON object"),
        (lambda lines: [lines[0].replace("cognizes-threads", "tar"), *lines[1:]], "not a cognizes-threads archive"),
        (lambda lines: [lines[0].replace('"version": 1', '"version": 2'), *lines[1:]], "upgrade cognizes-engine"),
        (lambda lines: lines[:-1], "the archive ends early"),
        (lambda lines: [line for line in lines if "user_message" not in line], "is damaged, export it again"),
        (lambda lines: [lines[0], lines[-2], lines[-1]], "line 2 belongs to no thread"),
    ],
)
async def test_a_damaged_archive_is_refused_and_imports_no_part_of_a_thread(
    source: Engine, target: Engine, change: object, message: str
) -> None:
    await fill_session(source, "shop", "ada")
    with pytest.raises(InvalidInputError, match=message):
        await target.archive.import_lines(change(await exported(source)))
    assert (await target.sessions.list("shop")).items == []


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("api_keys", {"id": "x", "app_name": "shop"}, "an archive has no rows of api_keys"),
        ("events", {"app_name": "bank"}, "belongs to another thread or app"),
    ],
)
async def test_an_archive_cannot_write_elsewhere(
    source: Engine, target: Engine, table: str, row: dict[str, str], message: str
) -> None:
    session = await source.sessions.create("shop", "ada")
    lines = await exported(source)
    planted = json.dumps({"table": table, "row": {"thread_id": session.thread_id, **row}}) + "\n"
    report = await target.archive.import_lines([*lines[:-1], planted, lines[-1]])
    assert message in report.skipped[session.id]
    assert (await target.sessions.list("shop")).items == []
