"""Brings a database to the schema this engine knows, once, whoever starts first.

Numbered files of `schema/migrations` run in order and are never edited after release; their checksums are kept in
`schema_migrations`. The functions of `schema/functions` may be replaced by a newer engine at any time; an older
engine leaves them alone. All of it is one transaction under an advisory lock, so six processes may start at once and
a crash leaves nothing half done.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import asyncpg

from cognizes.engine.database.driver_errors import translated
from cognizes.engine.database.queries import Queries, quote_schema, render
from cognizes.engine.errors import MigrationError, SetupError
from cognizes.engine.version import __version__

MINIMUM_SERVER = 160000
_LOCK = 0x434F474E49  # "COGNI"
_LONGEST_SECONDS = 24 * 3600.0
"""The time limit of one script: an index on a large table takes longer than a request may."""


@dataclass(frozen=True)
class Script:
    """One SQL file: `number` is 0 for a function, which may be replaced."""

    name: str
    number: int
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Script]:
    """The numbered scripts, in order."""
    return [Script(name=name, number=int(name.split("_", 1)[0]), sql=sql) for name, sql in _read("migrations")]


def functions() -> list[Script]:
    """The replaceable scripts, in order."""
    return [Script(name=name, number=0, sql=sql) for name, sql in _read("functions")]


def _bootstrap() -> str:
    return files("cognizes.engine.schema").joinpath("bootstrap.sql").read_text(encoding="utf-8")


def _read(folder: str) -> list[tuple[str, str]]:
    found = files("cognizes.engine.schema").joinpath(folder).iterdir()
    return sorted((file.name, file.read_text(encoding="utf-8")) for file in found if file.name.endswith(".sql"))


class Migrator:
    """Applies the schema through one connection."""

    def __init__(self, connection: Any, *, schema: str, embedding_dimension: int) -> None:
        self._connection = connection
        self._schema = schema
        self._dimension = embedding_dimension
        self._queries = Queries(schema)

    async def pending(self) -> list[str]:
        """Names of the scripts that `migrate` would run. Refuses a schema it does not understand."""
        with translated():
            applied = await self._applied()
        return [script.name for script in self._todo(applied)]

    async def migrate(self) -> list[str]:
        """Runs what is pending; returns its names."""
        with translated():
            await self._check_server()
            if not self._todo(await self._applied()) and not await self._connection.fetchval(self._queries["is_blind"]):
                return []
            async with self._connection.transaction():
                await self._connection.execute(self._queries["limit_statements"], "0", True)
                await self._connection.execute(self._queries["lock_migrations"], _LOCK, timeout=_LONGEST_SECONDS)
                await self._connection.execute(self._render(_bootstrap()))
                todo = self._todo(await self._applied())
                for script in todo:
                    await self._apply(script)
                await self._connection.execute(self._queries["protect_tenants"])
        return [script.name for script in todo]

    async def _check_server(self) -> None:
        server = await self._connection.fetchrow(self._queries["read_server"])
        if server["number"] < MINIMUM_SERVER:
            raise SetupError(
                f"this is PostgreSQL {server['spelling']}; the engine needs 16 or newer: upgrade the server"
            )
        if not server["has_vector"]:
            raise SetupError(
                "the server lacks pgvector; install it there (Debian: "
                f"postgresql-{server['number'] // 10000}-pgvector, macOS: brew install pgvector), then try again"
            )

    async def _applied(self) -> dict[str, asyncpg.Record]:
        if await self._connection.fetchval(self._queries["find_migrations_table"]) is None:
            return {}
        return {row["name"]: row for row in await self._connection.fetch(self._queries["read_migrations"])}

    def _todo(self, applied: dict[str, asyncpg.Record]) -> list[Script]:
        known = migrations()
        newest = max((row["number"] for row in applied.values()), default=0)
        if newest > known[-1].number:
            raise MigrationError(
                f"the database is at schema {newest}, this engine knows {known[-1].number}; upgrade cognizes-engine"
            )
        for script in known:
            if script.name in applied and applied[script.name]["checksum"] != script.checksum:
                raise MigrationError(
                    f"migration {script.name} was edited after it ran; restore the file and add a new migration"
                )
        todo = [script for script in known if script.name not in applied]
        return todo + [script for script in functions() if self._is_newer(script, applied.get(script.name))]

    @staticmethod
    def _is_newer(script: Script, applied: asyncpg.Record | None) -> bool:
        if applied is None:
            return True
        if applied["checksum"] == script.checksum:
            return False
        # An older engine, still running beside a newer one, must not put its old function back.
        return _version_key(__version__) >= _version_key(applied["engine_version"])

    async def _apply(self, script: Script) -> None:
        await self._connection.execute(self._render(script.sql), timeout=_LONGEST_SECONDS)
        await self._connection.execute(
            self._queries["record_migration"], script.name, script.number, script.checksum, __version__
        )

    def _render(self, sql: str) -> str:
        return render(sql, self._schema, embedding_dimension=self._dimension)


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def whole_schema(*, schema: str = "public", embedding_dimension: int = 256) -> str:
    """All of it as one script for `psql -f`; `agent_schema.sql` is this text, and a test keeps it so."""
    parts = [_HEADER, render(_bootstrap(), schema).strip()]
    for script in [*migrations(), *functions()]:
        parts.append(
            f"-- {script.name}\n" + render(script.sql, schema, embedding_dimension=embedding_dimension).strip()
        )
        parts.append(
            f"INSERT INTO {quote_schema(schema)}.schema_migrations (name, number, checksum, engine_version)\n"
            f"VALUES ('{script.name}', {script.number}, '{script.checksum}', '{__version__}')\n"
            "ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, applied_at = now();"
        )
    return "\n\n".join(parts) + "\n"


_HEADER = """-- Cognizes Engine: the unified schema, for PostgreSQL 16+ with pgvector.
--     psql -d cognizes-engine -f agent_schema.sql
-- Written by `cognizes migrate --sql` from migrations/ and functions/; change those, then write it again.
-- Running it twice is safe, and the engine knows afterwards what has been applied."""
