"""Record a change of the SQL files: `uv run python scripts/stamp_schema.py`.

It writes `schema/revision.json` (a changed function increases the revision of the functions; a new migration is added
with its checksum) and then `schema/agent_schema.sql`. Running it twice changes nothing. It refuses an edited migration:
restore the file and add a new one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cognizes.engine.database.migrations import functions, functions_checksum, migrations, read_release, whole_schema

SCHEMA = Path(__file__).parents[1] / "src" / "cognizes" / "engine" / "schema"


def stamp(schema: Path) -> int:
    """Bring `revision.json` of a schema directory up to date; return the revision of its functions."""
    release = read_release(schema)
    checksum = functions_checksum(functions(schema))
    revision = release.revision + (checksum != release.functions)
    recorded = {name: list(checksums) for name, checksums in release.migrations.items()}
    scripts = {script.name: script.checksum for script in migrations(schema)}
    for name, checksums in recorded.items():
        if scripts.get(name) != checksums[0]:
            raise SystemExit(f"{name} is released and was edited or removed; restore it and add a new migration")
    for name in scripts.keys() - recorded.keys():
        recorded[name] = [scripts[name]]
    text = json.dumps(
        {
            "functions": {"revision": revision, "sha256": checksum},
            "migrations": dict(sorted(recorded.items())),
        },
        indent=2,
    )
    schema.joinpath("revision.json").write_text(text + "\n", encoding="utf-8")
    return revision


def main() -> None:
    revision = stamp(SCHEMA)
    SCHEMA.joinpath("agent_schema.sql").write_text(whole_schema(), encoding="utf-8")
    sys.stdout.write(f"the functions are at revision {revision}; agent_schema.sql is written\n")


if __name__ == "__main__":
    main()
