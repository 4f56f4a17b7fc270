"""Lines of NDJSON archives: a header with format and version, rows of tables, and an end.

A row is the JSON text that PostgreSQL made of it. It is not parsed and encoded again: a stored document comes back with
the same text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.version import __version__


def header_line(archive_format: str, version: int, **values: str) -> str:
    head = {
        "format": archive_format,
        "version": version,
        "engine": __version__,
        "exported_at": datetime.now(UTC).isoformat(),
    }
    return json.dumps({**head, **values}) + "\n"


def row_line(table: str, row: str) -> str:
    return f'{{"table": {json.dumps(table)}, "row": {row}}}\n'


@dataclass(frozen=True)
class Line:
    """A parsed line, and its text."""

    number: int
    text: str
    values: dict[str, Any]

    @property
    def table(self) -> str:
        return str(self.values.get("table", ""))

    @property
    def row(self) -> dict[str, Any]:
        return self.values.get("row") or {}


def parse_line(number: int, text: str) -> Line:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"line {number} is not JSON; the file is damaged or not an archive") from error
    if not isinstance(values, dict):
        raise InvalidInputError(f"line {number} is not a JSON object; the file is damaged or not an archive")
    return Line(number, text, values)


def check_header(line: Line, archive_format: str, version: int) -> None:
    """Raise `InvalidInputError` unless the line begins an archive of this format that this engine can read."""
    if line.values.get("format") != archive_format:
        raise InvalidInputError(f"the file is not a {archive_format} archive; `cognizes export` writes one")
    found = line.values.get("version")
    if not isinstance(found, int) or found < 1:
        raise InvalidInputError(f"the archive has no valid version ({found!r})")
    if found > version:
        raise InvalidInputError(
            f"the archive has version {found} of the format, and this engine reads up to {version}; "
            "upgrade cognizes-engine"
        )
