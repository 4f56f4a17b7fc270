"""The SQL of `schema/`, loaded by name.

A file of `queries/`, or of a folder in it, holds several statements, each after a line ``-- name: purpose``.
``{schema}`` is replaced by the quoted name of the schema of the engine's tables, ``{channel_suffix}`` by the end of its
channel names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from cognizes.engine.errors import SetupError

_NAME = re.compile(r"^-- (\w+): .+$", re.MULTILINE)
_LONGEST_SUFFIX = 40
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")


def quote_schema(name: str) -> str:
    """Return a schema's name as an SQL identifier; `SetupError` for other characters."""
    if not _IDENTIFIER.fullmatch(name):
        raise SetupError(f"{name!r} is not a schema name; use letters, digits and underscores (COGNIZES_DB_SCHEMA)")
    return f'"{name}"'


def channel_suffix(schema: str) -> str:
    """Return the end of the channel names of a schema; channels belong to the database, so schemas need their own.

    In `public` it is empty. PostgreSQL limits a channel name to 63 bytes, so a digest replaces a long schema name.
    """
    if schema == "public":
        return ""
    return f"_{schema}" if len(schema) <= _LONGEST_SUFFIX else f"_{hashlib.md5(schema.encode()).hexdigest()}"  # noqa: S324


def render(sql: str, schema: str, **values: object) -> str:
    """Return a statement for one schema. The values are names and numbers of settings, never a caller's values."""
    rendered = sql.replace("{schema}", quote_schema(schema)).replace("{channel_suffix}", channel_suffix(schema))
    for name, value in values.items():
        rendered = rendered.replace(f"{{{name}}}", str(value))
    return rendered


def read_sql(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path below `folder` and the text of each SQL file in it and in its folders."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from read_sql(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".sql"):
            yield f"{prefix}{entry.name}", entry.read_text(encoding="utf-8")


@cache
def _templates() -> dict[str, str]:
    found: dict[str, str] = {}
    for _, text in read_sql(files("cognizes.engine.schema").joinpath("queries")):
        parts = _NAME.split(text)
        for name, sql in zip(parts[1::2], parts[2::2], strict=True):
            if name in found:
                raise SetupError(f"two queries are called {name}")
            found[name] = sql.strip().rstrip(";")
    return found


class Queries(dict[str, str]):
    """The named statements, rendered for one schema. `queries["read_events"]` is SQL text."""

    def __init__(self, schema: str = "public") -> None:
        super().__init__((name, render(sql, schema)) for name, sql in _templates().items())
        self.schema = schema
