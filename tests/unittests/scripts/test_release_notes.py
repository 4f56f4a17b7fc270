"""Release notes: the section of the changelog with links, and what an upgrade brings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from itertools import pairwise

import pytest

from tests.unittests.scripts.test_supply_chain import ROOT, script

CHANGELOG = """# Changelog

## [Unreleased]

### Added
- A thing of the future.

## [0.3.0] - 2027-01-02

### Added
- A page: docs/new.md.
- [Another](docs/other.md#part), and [outside](https://example.org/docs/x.md).

### Fixed
- One defect.

## [0.2.0] - 2026-11-18

### Added
- An older thing.
"""
RELEASES = {
    "0.2.0": {"last_migration": "0091_traceparent.sql", "settings": ["COGNIZES_OLD", "COGNIZES_PORT"]},
    "0.3.0": {"last_migration": "0094_queues.sql", "settings": ["COGNIZES_NEW", "COGNIZES_PORT"]},
}


def test_the_notes_of_a_version() -> None:
    text = script("release_notes").notes("0.3.0", CHANGELOG, RELEASES, base_url="https://host/files/")
    assert text.startswith("# Cognizes Engine 0.3.0\n\nReleased on 2027-01-02.\n\n## Upgrade from 0.2.0\n")
    assert "\n\n## Changes\n\n### Added\n" in text
    assert "applies 2 migrations: `0093_schedules.sql`, `0094_queues.sql`." in text
    assert "`COGNIZES_NEW`" in text
    assert "Removed settings: `COGNIZES_OLD`." in text
    assert "COGNIZES_PORT" not in text
    assert "[docs/new.md](https://host/files/docs/new.md)" in text
    assert "[Another](https://host/files/docs/other.md#part)" in text
    assert "[outside](https://example.org/docs/x.md)" in text
    assert text.endswith("### Fixed\n- One defect.\n")
    assert "future" not in text
    assert "older" not in text


def test_the_first_version_and_one_without_migrations() -> None:
    release_notes = script("release_notes")
    first = release_notes.notes("0.2.0", CHANGELOG, RELEASES)
    assert "## Upgrade\n" in first
    assert "`0001_pulse.sql`" in first
    same = {**RELEASES, "0.3.0": {**RELEASES["0.3.0"], "last_migration": "0091_traceparent.sql"}}
    assert "No migration is needed." in release_notes.notes("0.3.0", CHANGELOG, same)


def test_a_version_that_is_not_prepared() -> None:
    release_notes = script("release_notes")
    with pytest.raises(SystemExit, match=r"no section of version 0\.4\.0"):
        release_notes.notes("0.4.0", CHANGELOG, RELEASES)
    with pytest.raises(SystemExit, match="--record"):
        release_notes.notes("0.3.0", CHANGELOG, {})


def test_recorded_versions_name_migrations_that_exist() -> None:
    release_notes = script("release_notes")
    existing = {path.name for path in release_notes.MIGRATIONS.glob("*.sql")}
    for version, release in release_notes.read_releases().items():
        assert release["last_migration"] in existing, version
        assert set(release["settings"]) <= set(release_notes.present()["settings"]), version


def test_the_notes_of_the_project_are_printed() -> None:
    version = script("release_notes").project_version()
    command = [sys.executable, str(ROOT / "scripts" / "release_notes.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith(f"# Cognizes Engine {version}\n")
    assert "## Upgrade from " in printed
    assert "\n\n\n" not in printed


def test_the_changelog_has_lists_without_gaps_and_no_line_twice() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    gaps = [after for gap, after in pairwise(lines) if not gap and after.startswith("- ")]
    assert gaps == []
    entries = [line for line in lines if line.startswith("- ")]
    assert [line for line in set(entries) if entries.count(line) > 1] == []
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]"
    assert headings[1].startswith(f"## [{script('release_notes').project_version()}] - ")


def test_all_packages_and_images_have_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    package = json.loads((ROOT / "clients" / "typescript" / "package.json").read_text())
    assert package["version"] == version
    for name in ("compose.yaml", "kubernetes.yaml"):
        assert set(re.findall(r"image: cognizes-engine:(\S+)", (ROOT / "deploy" / name).read_text())) == {version}
