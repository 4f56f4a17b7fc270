"""`cognizes backup`, `restore`, `export`, `import` and `user`, as an operator runs them."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path

import pytest

from cognizes.engine import Engine
from tests.integration.archive.filled import fill_memory, fill_session
from tests.integration.cli.running_command import Cognizes, QuickCognizes


@pytest.fixture
def quick(tmp_path: Path) -> Cognizes:
    return QuickCognizes(tmp_path / "data")


async def test_a_backup_of_a_running_engine_is_restored(quick: Cognizes, tmp_path: Path) -> None:
    file, other = tmp_path / "engine.backup", tmp_path / "other"
    async with Engine.open(data_dir=quick.data_dir, memory_background=False) as engine:
        session = await fill_session(engine, "shop", "ada")
        await fill_memory(engine, session)
        before = await engine.sessions.events(session)
        written = await asyncio.to_thread(quick, "backup", str(file))
        assert (written.returncode, written.stderr) == (0, "")
        again = await asyncio.to_thread(quick, "backup", str(file))
        assert (again.returncode, "exists; choose another file" in again.stderr) == (2, True)
        refused = await asyncio.to_thread(quick, "restore", str(file))
        assert refused.returncode == 2
        assert "another process uses the engine" in refused.stderr
    refused = await asyncio.to_thread(quick, "restore", str(file))
    assert refused.returncode == 2
    assert "has data (in the table" in refused.stderr
    restored = await asyncio.to_thread(quick, "restore", str(file), "--data-dir", str(other))
    assert restored.returncode == 0, restored.stderr
    async with Engine.open(data_dir=other, memory_background=False, auth="required") as engine:
        found = await engine.sessions.get("shop", "ada", session.id)
        assert found == session
        assert await engine.sessions.events(found) == before
        assert await engine.memory.recall("quokka", app="shop", user="ada")


def test_files_that_are_not_a_backup_change_nothing(quick: Cognizes, tmp_path: Path) -> None:
    text, newer = tmp_path / "text", tmp_path / "newer"
    text.write_text("hello")
    manifest = tmp_path / "manifest.json"
    manifest.write_text(
        json.dumps({"format": "cognizes-backup", "version": 1, "schema": 9999, "engine": "9.0", "postgresql": 18})
    )
    with tarfile.open(newer, "w") as tar:
        tar.add(manifest, arcname="manifest.json")
    incomplete = tmp_path / "incomplete"
    manifest.write_text(json.dumps({"format": "cognizes-backup", "version": "one", "engine": "9.0"}))
    with tarfile.open(incomplete, "w") as tar:
        tar.add(manifest, arcname="manifest.json")
    for file, message in (
        (incomplete, "has no valid version, schema; the backup is damaged"),
        (text, "is not a backup of `cognizes backup`"),
        (tmp_path / "missing", "is not a backup of `cognizes backup`"),
        (newer, "upgrade cognizes-engine, then restore"),
    ):
        refused = quick("restore", str(file))
        assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert not quick.data_dir.exists()
    assert "has no embedded database" in quick("backup", str(tmp_path / "b")).stderr
    with_url = quick("backup", str(tmp_path / "b"), DATABASE_URL="postgresql://x/y")
    assert (with_url.returncode, "use pg_dump" in with_url.stderr) == (2, True)


async def test_export_import_and_erase(
    quick: Cognizes, tmp_path: Path, database_url: str, empty_database_url: str
) -> None:
    async with Engine.open(database_url, memory_background=False) as engine:
        session = await fill_session(engine, "shop", "ada")
    file = tmp_path / "ada.ndjson.gz"

    def run(*arguments: str, url: str = database_url) -> tuple[int, str, str]:
        done = quick(*arguments, DATABASE_URL=url, COGNIZES_LOG_LEVEL="ERROR")
        return done.returncode, done.stdout, done.stderr

    def commands() -> None:
        assert run("export", "--app", "shop", "-o", str(file)) == (0, "", "1 sessions exported\n")
        code, said, _ = run("import", str(file), url=empty_database_url)
        assert (code, said.strip().split(" with ")[0]) == (0, "1 sessions")
        assert run("import", str(tmp_path / "missing"))[0] == 2
        code, rows, said = run("user", "export", "--app", "shop", "--user", "ada")
        assert (code, json.loads(rows.splitlines()[0])["format"]) == (0, "cognizes-user")
        assert said == f"{len(rows.splitlines()) - 1} rows exported\n"
        unanswered = Cognizes(quick.data_dir)(
            "user", "erase", "--app", "shop", "--user", "ada", DATABASE_URL=database_url
        )
        assert (unanswered.returncode, "Delete all data of the user 'ada'" in unanswered.stdout) == (1, True)
        code, said, _ = run("user", "erase", "--app", "shop", "--user", "ada", "--yes", "--json")
        assert (code, json.loads(said)["threads"]) == (0, 1)
        code, said, error = run("user", "erase", "--app", "shop", "--user", "ada", "--yes")
        assert (code, said) == (2, "")
        assert error == "cognizes: the app 'shop' has no data of a user 'ada'; check both names\n"

    await asyncio.to_thread(commands)
    async with Engine.open(empty_database_url, memory_background=False) as engine:
        assert await engine.sessions.get("shop", "ada", session.id) == session


async def test_a_truncated_backup_is_refused_and_leaves_an_engine_that_works(quick: Cognizes, tmp_path: Path) -> None:
    file, other = tmp_path / "engine.backup", tmp_path / "other"
    async with Engine.open(data_dir=quick.data_dir, memory_background=False) as engine:
        await fill_session(engine, "shop", "ada")
        assert (await asyncio.to_thread(quick, "backup", str(file))).returncode == 0
    content = file.read_bytes()
    for size in (len(content) // 2, 4096):
        file.write_bytes(content[:size])
        refused = await asyncio.to_thread(quick, "restore", str(file), "--data-dir", str(other))
        assert refused.returncode == 2, refused.stderr
        assert "damaged" in refused.stderr or "is not a backup" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    file.write_bytes(content)
    restored = await asyncio.to_thread(quick, "restore", str(file), "--data-dir", str(other))
    assert restored.returncode == 0, restored.stderr


def test_rules_of_retention_are_checked(quick: Cognizes) -> None:
    for text in ("shop", "=3", "shop=x", "shop=0", "shop=-1"):
        refused = quick("config", COGNIZES_THREADS_KEPT_DAYS=text)
        assert refused.returncode != 0
        assert "is not app=days" in refused.stderr
