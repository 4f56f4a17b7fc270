"""Released SQL: migrations never change, and a changed function has a new revision."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from scripts.stamp_schema import SCHEMA, stamp

from cognizes.engine.database.migrations import functions, functions_checksum, migrations, read_release

STAMP = "run: uv run python scripts/stamp_schema.py"


def test_a_changed_function_has_a_new_revision() -> None:
    assert read_release().functions == functions_checksum(functions()), STAMP


def test_every_migration_is_recorded_and_none_was_edited() -> None:
    recorded = {name: checksums[0] for name, checksums in read_release().migrations.items()}
    actual = {script.name: script.checksum for script in migrations()}
    assert recorded.keys() == actual.keys(), STAMP
    edited = [name for name in actual if actual[name] != recorded[name]]
    assert not edited, f"released migrations are never edited: restore {edited} and add a new migration"


# The migrations of the first recorded revision, in the test itself: an edit cannot hide behind a new stamp.
FIRST = {
    "0001_pulse.sql": "8425274c6a453887185c98be4a599cce574826e1629d738bffe14e050d34dba9",
    "0002_streams.sql": "665f8638e982ec0a7db0b9300a18258f00bfc3eba9e49c2908bc6950a1c05ce0",
    "0003_runs.sql": "e1c91c5ba50d0553d360a490e43610d20ef19e375c9e006237aa1264e0198b6c",
    "0004_memory.sql": "8716f1a4c4cad164b91e605c4eb5b19263ac8895f490005c29e3d3ddc405df34",
    "0005_sync.sql": "2aae68b54bde8dfc0199331602ba7e213358a5f0245681338bf48a5ba7d2537d",
    "0006_access.sql": "35b44dfabbeceb64df4d25188fa17dc80d3860adb85cd011f408d776e2a0e340",
    "0007_core.sql": "89f331229ce646a79fb32aa0ee07a652b05c9451a561a8437ef9b6ce41656450",
    "0009_monitor.sql": "7c9ebe03cb654e83c3a5d82b59cd88d24fb7040fe469e9e3e42a68cfc651caad",
    "0011_memory.sql": "19b1119d4159d4b4547cbf6718e929c9e7972d6e1112ba62fbec7c17021b9335",
    "0012_thoughts.sql": "72675adfe3b7d99c928eb562fa2bc24f9523366e03c1b296e0b77d8d7f3b4210",
}


def test_the_first_migrations_never_change() -> None:
    actual = {script.name: script.checksum for script in migrations()}
    assert {name: actual.get(name) for name in FIRST} == FIRST


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    """A copy of the SQL files."""
    copied = tmp_path / "schema"
    shutil.copytree(SCHEMA, copied)
    return copied


def test_a_stamp_without_a_change_changes_nothing(schema: Path) -> None:
    before = (schema / "revision.json").read_bytes()
    assert stamp(schema) == read_release().revision
    assert (schema / "revision.json").read_bytes() == before


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_a_stamp_increases_the_revision_once_for_a_change(schema: Path, change: str) -> None:
    function = schema / "functions" / "state" / "merge_state.sql"
    match change:
        case "edit":
            function.write_text(function.read_text(encoding="utf-8") + "-- changed", encoding="utf-8")
        case "add":
            function.with_name("new.sql").write_text("SELECT 1", encoding="utf-8")
        case "remove":
            function.unlink()
    revision = read_release().revision + 1
    assert [stamp(schema), stamp(schema)] == [revision, revision]
    assert read_release(schema).functions == functions_checksum(functions(schema))


def test_a_stamp_adds_a_new_migration_and_refuses_an_edited_one(schema: Path) -> None:
    (schema / "migrations" / "0999_new.sql").write_text("SELECT 1", encoding="utf-8")
    stamp(schema)
    recorded = json.loads((schema / "revision.json").read_text(encoding="utf-8"))["migrations"]
    assert list(recorded)[-1] == "0999_new.sql"
    (schema / "migrations" / "0002_streams.sql").write_text("SELECT 1", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"0002_streams\.sql is released"):
        stamp(schema)
