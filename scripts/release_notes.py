"""Print the release notes of a version: `uv run python scripts/release_notes.py [VERSION]`, by default the newest.

The notes are the section of CHANGELOG.md with links that work outside of the repository, and upgrade notes: the
migrations and the settings that are new since the version before. `scripts/releases.json` has the last migration and
the settings of each version; `--record` adds those of the version in pyproject.toml, as a step of its release.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TypedDict

REPOSITORY = Path(__file__).parents[1]
RELEASES = Path(__file__).with_name("releases.json")
MIGRATIONS = REPOSITORY / "src" / "cognizes" / "engine" / "schema" / "migrations"
_SECTION = re.compile(r"^## \[(?P<version>[\d.]+)\] - (?P<date>\d{4}-\d{2}-\d{2})$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")
_PAGE = re.compile(r"(?<![\w/(\[])docs/[\w-]+\.md\b")


class Release(TypedDict):
    """What a version has: the name of its last migration, and all names of its settings."""

    last_migration: str
    settings: list[str]


def read_releases() -> dict[str, Release]:
    """Return the recorded versions, oldest first."""
    releases: dict[str, Release] = json.loads(RELEASES.read_text())
    return dict(sorted(releases.items(), key=lambda item: _numbers(item[0])))


def project_version() -> str:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version


def present() -> Release:
    """Return what the working tree has."""
    settings = set(re.findall(r"^# (COGNIZES_\w+)=", (REPOSITORY / ".env.example").read_text(), re.MULTILINE))
    return {"last_migration": _migrations()[-1], "settings": sorted(settings)}


def record(version: str) -> None:
    """Store what the working tree has as that of a version."""
    releases = {**read_releases(), version: present()}
    RELEASES.write_text(json.dumps(releases, indent=2) + "\n")


def section(changelog: str, version: str) -> tuple[str, str]:
    """Return the date and the text of a version's section of the changelog; `SystemExit` if it has none."""
    for found in _SECTION.finditer(changelog):
        if found["version"] == version:
            rest = changelog[found.end() :]
            return found["date"], rest.split("\n## [")[0].strip()
    raise SystemExit(f"CHANGELOG.md has no section of version {version}; rename Unreleased to [{version}] - YYYY-MM-DD")


def notes(version: str, changelog: str, releases: dict[str, Release], *, base_url: str = "") -> str:
    """Return the release notes of a version as Markdown. Links to files of the repository get the base URL."""
    date, text = section(changelog, version)
    if version not in releases:
        raise SystemExit(f"scripts/releases.json lacks version {version}; run scripts/release_notes.py --record")
    parts = [f"# Cognizes Engine {version}", f"Released on {date}.", _upgrade(version, releases), "## Changes", text]
    joined = "\n\n".join(parts) + "\n"
    # A page that a line only names becomes a link.
    joined = _PAGE.sub(lambda found: f"[{found[0]}]({found[0]})", joined)
    return _LINK.sub(lambda found: f"]({base_url}{found[1]})", joined)


def _upgrade(version: str, releases: dict[str, Release]) -> str:
    earlier = [name for name in releases if _numbers(name) < _numbers(version)]
    release = releases[version]
    previous = releases[earlier[-1]] if earlier else None
    last = previous["last_migration"] if previous else ""
    scripts = [name for name in _migrations() if last < name <= release["last_migration"]]
    known = set(previous["settings"]) if previous else set()
    added = [name for name in release["settings"] if name not in known]
    removed = sorted(known - set(release["settings"]))
    lines = [f"## Upgrade{f' from {earlier[-1]}' if earlier else ''}", ""]
    if scripts:
        lines += [
            f"The first start applies {len(scripts)} migrations: {', '.join(f'`{name}`' for name in scripts)}.",
            "Make a backup first (`cognizes backup`). `cognizes migrate --plan` shows locks and rewrites;",
            "`cognizes migrate` applies them before the first new node starts.",
            "See [versions and compatibility](docs/compatibility.md).",
        ]
    else:
        lines.append("No migration is needed.")
    if added:
        lines += [
            "",
            f"New settings, described in [.env.example](.env.example): {', '.join(f'`{name}`' for name in added)}.",
        ]
    if removed:
        lines += ["", f"Removed settings: {', '.join(f'`{name}`' for name in removed)}."]
    return "\n".join(lines)


def _migrations() -> list[str]:
    return sorted(path.name for path in MIGRATIONS.glob("*.sql"))


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="by default the version in pyproject.toml")
    parser.add_argument("--record", action="store_true", help="store migrations and settings of the project's version")
    parser.add_argument("--base-url", default="", help="the address of the repository's files, with a slash at the end")
    options = parser.parse_args()
    if options.record:
        record(project_version())
        return
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    version = options.version or project_version()
    sys.stdout.write(notes(version, changelog, read_releases(), base_url=options.base_url))


if __name__ == "__main__":
    main()
