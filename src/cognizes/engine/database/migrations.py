"""Bring a database to the schema that this engine knows.

Numbered files of `schema/migrations` run in order and are never edited after release; `schema_migrations` keeps their
checksums. The views of `schema/views` and the functions of `schema/functions/<subject>` may be replaced. The set of
them has a revision, which grows with every change, and `schema_migrations` records the revision that is installed. An
engine of a lower revision leaves them alone. `schema/revision.json` holds the revision and the checksums;
`scripts/stamp_schema.py` writes it.

A migration is one transaction under an advisory lock, so that several processes may start at once and a crash leaves
nothing half done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import asyncpg

from cognizes.engine.concurrency import retry_while_unavailable
from cognizes.engine.database.driver_errors import translated
from cognizes.engine.database.embedded import EmbeddedPostgres
from cognizes.engine.database.queries import Queries, quote_schema, read_sql, render
from cognizes.engine.errors import DatabaseError, MigrationError, SetupError
from cognizes.engine.models import JsonObject
from cognizes.engine.version import __version__

logger = logging.getLogger(__name__)

MINIMUM_SERVER = 160000
PROTECTION = "row level security"
"""What `pending` and `migrate` call the role, grants and policies that `protect_tenants` makes."""
FUNCTIONS = "functions and views"
"""The name under which a plan shows all replaced functions, views and triggers."""
_BLOCKED = {
    "AccessExclusiveLock": "blocks reads and writes",
    "ExclusiveLock": "blocks writes",
    "ShareRowExclusiveLock": "blocks writes",
    "ShareLock": "blocks writes",
    "ShareUpdateExclusiveLock": "blocks no reads and no writes",
    "RowExclusiveLock": "changes rows, blocks no reads and no other rows",
}
_SHOWN = list(_BLOCKED)
_LOCK = 0x434F474E49  # "COGNI"
_LONGEST_PAUSE = 10.0
"""Seconds between two attempts of a migration that found a locked table; other sessions work in between."""
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


@dataclass(frozen=True)
class Release:
    """What `revision.json` records of the released SQL files.

    `functions` is the checksum of the whole set of functions at `revision`. `migrations` maps each name to its
    checksum, followed by those of earlier contents that a database may have run and that a later migration repairs.
    """

    revision: int
    functions: str
    migrations: dict[str, tuple[str, ...]]


def migrations(root: Traversable | None = None) -> list[Script]:
    return [Script(name=name, number=int(name.split("_", 1)[0]), sql=sql) for name, sql in _read(root, "migrations")]


def functions(root: Traversable | None = None) -> list[Script]:
    """Return the replaceable scripts: views first, since functions return rows of them, then functions by subject.

    The order of functions carries no meaning: PostgreSQL checks their bodies when they are called, not when they are
    created (`check_function_bodies = off`).
    """
    found = [(f"views/{name}", sql) for name, sql in _read(root, "views")] + _read(root, "functions")
    return [Script(name=name, number=0, sql=sql) for name, sql in found]


def functions_checksum(scripts: list[Script]) -> str:
    return hashlib.sha256("".join(f"{script.checksum} {script.name}\n" for script in scripts).encode()).hexdigest()


def read_release(root: Traversable | None = None) -> Release:
    recorded = json.loads((root or _package()).joinpath("revision.json").read_text(encoding="utf-8"))
    return Release(
        revision=recorded["functions"]["revision"],
        functions=recorded["functions"]["sha256"],
        migrations={name: tuple(checksums) for name, checksums in recorded["migrations"].items()},
    )


def _package() -> Traversable:
    return files("cognizes.engine.schema")


def _bootstrap() -> str:
    return _package().joinpath("bootstrap.sql").read_text(encoding="utf-8")


def _read(root: Traversable | None, folder: str) -> list[tuple[str, str]]:
    top = (root or _package()).joinpath(folder)
    return sorted(read_sql(top)) if top.is_dir() else []


class _LockedError(MigrationError):
    """A table was locked for longer than `lock_seconds`; the migration was rolled back."""


class Migrator:
    """Migrates one database.

    A statement that needs a lock waits for `lock_seconds`. Statements of other sessions queue behind it, so a longer
    wait would block them all. Then the migration is rolled back and begins again, for up to `wait_seconds`.
    """

    def __init__(
        self,
        connection: Any,
        *,
        schema: str,
        embedding_dimension: int,
        lock_seconds: float = 2.0,
        wait_seconds: float = 300.0,
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._dimension = embedding_dimension
        self._lock_seconds = lock_seconds
        self._wait_seconds = wait_seconds
        self.queries = Queries(schema)

    def on(self, connection: Any) -> Migrator:
        """Return a migrator of the same schema on another connection."""
        return Migrator(connection, schema=self._schema, embedding_dimension=self._dimension)

    async def pending(self) -> list[str]:
        """Return the names of the scripts that `migrate` would run. Refuse a schema that this engine does not know."""
        with translated():
            return await self._pending()

    async def pending_scripts(self) -> list[Script]:
        """Return the scripts that `migrate` would run."""
        with translated():
            return self._todo(await self._applied())

    async def migrate(self) -> list[str]:
        """Run the pending scripts in one transaction; return their names.

        `MigrationError` when another session holds a lock that a script needs for all of `wait_seconds`; nothing is
        changed then.
        """
        with translated():
            await self._check_server()
            if not await self._pending() and not await self._has_older_revision():
                return []

        def announce() -> None:
            logger.warning("a table is locked by another session; the migration was rolled back and is tried again")

        try:
            return await retry_while_unavailable(
                self._migrate_once,
                seconds=self._wait_seconds,
                errors=(_LockedError,),
                before_retry=announce,
                longest_pause=_LONGEST_PAUSE,
            )
        except _LockedError as error:
            raise MigrationError(await self._describe_blockers()) from error

    async def prepare(self) -> None:
        """Create the schema and the table of migrations."""
        await self._connection.execute(self._render(_bootstrap()))

    async def skip_function_body_checks(self) -> None:
        """Let functions refer to objects that are created after them, in this transaction."""
        await self._connection.execute(self.queries["skip_function_body_checks"])

    async def _migrate_once(self) -> list[str]:
        try:
            with translated():
                return await self._migrate()
        except DatabaseError as error:
            if isinstance(error.__cause__, asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError):
                raise _LockedError(str(error.__cause__)) from error
            raise

    async def _describe_blockers(self) -> str:
        with translated():
            rows = await self._connection.fetch(self.queries["read_long_transactions"], self._lock_seconds)
        found = "; ".join(f"process {row['pid']} ({row['application_name'] or '-'}, {row['age']})" for row in rows)
        return (
            f"a table was locked by another session for {self._wait_seconds:g} s; nothing was changed; end long "
            f"transactions, then run `cognizes migrate`; the oldest ones: {found or 'none is open now'}"
        )

    async def _migrate(self) -> list[str]:
        async with self._connection.transaction():
            await self._connection.execute(self.queries["limit_statements"], "0", True)
            await self._connection.execute(self.queries["lock_migrations"], _LOCK, timeout=_LONGEST_SECONDS)
            # After the lock of the migrations: the wait for another process that migrates has no limit.
            await self._connection.execute(self.queries["limit_locks"], f"{self._lock_seconds * 1000:.0f}")
            await self.skip_function_body_checks()
            await self.prepare()
            pending = await self._pending()
            for script in self._todo(await self._applied()):
                await self.apply(script)
            if await self._has_older_revision():
                names = [script.name for script in functions()]
                await self._connection.execute(self.queries["record_revision"], read_release().revision, names)
            await self._connection.execute(self.queries["protect_tenants"])
        return pending

    async def _pending(self) -> list[str]:
        applied = await self._applied()
        names = [script.name for script in self._todo(applied)]
        # A database that has tables; in a new one the functions that create the policies are pending themselves.
        if applied and await self._connection.fetchval(self.queries["lacks_protection"]):
            names.append(PROTECTION)
        return names

    async def _has_older_revision(self) -> bool:
        return _installed_revision(await self._applied()) < read_release().revision

    async def _check_server(self) -> None:
        server = await self._connection.fetchrow(self.queries["read_server"])
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
        if await self._connection.fetchval(self.queries["find_migrations_table"]) is None:
            return {}
        return {row["name"]: row for row in await self._connection.fetch(self.queries["read_migrations"])}

    def _todo(self, applied: dict[str, asyncpg.Record]) -> list[Script]:
        known, release = migrations(), read_release()
        newest = max((row["number"] for row in applied.values()), default=0)
        if newest > known[-1].number:
            raise MigrationError(
                f"the database is at schema {newest}, this engine knows {known[-1].number}; upgrade cognizes-engine"
            )
        for script in known:
            accepted = (script.checksum, *release.migrations.get(script.name, ()))
            if script.name in applied and applied[script.name]["checksum"] not in accepted:
                raise MigrationError(
                    f"the database ran another version of migration {script.name}, which no release has; if the file "
                    "was edited, restore it and add a new migration; if not, copy the data: pg_dump --data-only, then "
                    "restore into a database that this engine created"
                )
        todo = [script for script in known if script.name not in applied]
        if _installed_revision(applied) > release.revision:
            return todo  # A newer engine installed its functions: this one must not put its old ones back.
        checksums = {name: row["checksum"] for name, row in applied.items()}
        return todo + [script for script in functions() if checksums.get(script.name) != script.checksum]

    async def apply(self, script: Script) -> None:
        await self._connection.execute(self._render(script.sql), timeout=_LONGEST_SECONDS)
        await self._connection.execute(
            self.queries["record_migration"], script.name, script.number, script.checksum, __version__
        )

    def _render(self, sql: str) -> str:
        return render(sql, self._schema, embedding_dimension=self._dimension)


def _installed_revision(applied: dict[str, asyncpg.Record]) -> int:
    return max((row["revision"] for row in applied.values()), default=0)


@dataclass
class TablePlan:
    """What a script does to a table that exists before the migration; `rows` and `size` are those of the database."""

    table: str
    lock: str
    is_rewritten: bool = False
    indexes: list[str] = field(default_factory=list)
    rows: int = 0
    size: int = 0

    @property
    def effect(self) -> str:
        return _BLOCKED[self.lock]

    def to_json(self) -> JsonObject:
        return {
            "table": self.table,
            "lock": self.lock,
            "effect": self.effect,
            "rewrites_table": self.is_rewritten,
            "builds_indexes": self.indexes,
            "rows": self.rows,
            "bytes": self.size,
        }


@dataclass
class ScriptPlan:
    """A pending script, and the existing tables that it locks. `count` scripts are shown as one."""

    name: str
    tables: list[TablePlan]
    count: int = 1

    def to_json(self) -> JsonObject:
        return {"name": self.name, "scripts": self.count, "tables": [table.to_json() for table in self.tables]}


async def make_plan(migrator: Migrator, connection: Any) -> list[ScriptPlan]:
    """Return what `migrate` will do to a database, in the order in which it does it.

    The plan is not guessed from the text of the scripts. A temporary embedded PostgreSQL gets the migrations that the
    database has, then runs the pending ones, each in a transaction of its own, and reports what PostgreSQL did: the
    locks that they take, and whether they rewrite a table. The database itself is only read.
    """
    pending = await migrator.pending_scripts()
    if not pending:
        return []
    sizes = {row["name"]: row for row in await connection.fetch(migrator.queries["read_table_sizes"])}
    waiting = {script.name for script in pending}
    applied = [script for script in migrations() if script.name not in waiting]
    with tempfile.TemporaryDirectory(prefix="cognizes-plan-") as directory:
        server = EmbeddedPostgres(Path(directory))
        await server.start()
        try:
            temporary = await asyncpg.connect(server.url)
            try:
                plans = await _try_out(migrator.on(temporary), temporary, applied, pending)
            finally:
                await temporary.close()
        finally:
            await server.close()
    for plan in plans:
        for table in plan.tables:
            if (known := sizes.get(table.table)) is not None:
                table.rows, table.size = known["rows"], known["size"]
    return plans


async def _try_out(
    migrator: Migrator, connection: Any, applied: Sequence[Script], pending: Sequence[Script]
) -> list[ScriptPlan]:
    plans = []
    await migrator.prepare()
    async with connection.transaction():
        await migrator.skip_function_body_checks()
        for script in applied:
            await migrator.apply(script)
    existing = [row["name"] for row in await connection.fetch(migrator.queries["read_table_files"])]
    for script in pending:
        if script.number:
            plans.append(ScriptPlan(script.name, await _observe(migrator, connection, [script], existing)))
    replaced = [script for script in pending if not script.number]
    if replaced:
        # The database has functions, triggers and policies already: the second installation is like its own.
        async with connection.transaction():
            await migrator.skip_function_body_checks()
            for script in functions():
                await migrator.apply(script)
        plans.append(ScriptPlan(FUNCTIONS, await _observe(migrator, connection, replaced, existing), len(replaced)))
    return plans


async def _observe(
    migrator: Migrator, connection: Any, scripts: Sequence[Script], existing: Sequence[str]
) -> list[TablePlan]:
    """Run scripts in one transaction; return what they do to the tables that existed before the migration."""
    queries: Queries = migrator.queries
    before = {row["name"]: row for row in await connection.fetch(queries["read_table_files"])}
    async with connection.transaction():
        await migrator.skip_function_body_checks()
        for script in scripts:
            await migrator.apply(script)
        locks = await connection.fetch(queries["read_own_locks"], _SHOWN)
        after = {row["name"]: row for row in await connection.fetch(queries["read_table_files"])}
    found: dict[str, TablePlan] = {}
    for row in locks:
        name, lock = row["name"], row["mode"]
        if name in existing and (name not in found or _SHOWN.index(lock) < _SHOWN.index(found[name].lock)):
            found[name] = TablePlan(name, lock)
    for name, plan in found.items():
        if name in before and name in after:
            plan.is_rewritten = before[name]["file"] != after[name]["file"]
            plan.indexes = sorted(set(after[name]["indexes"]) - set(before[name]["indexes"]))
    return [found[name] for name in sorted(found)]


def whole_schema(*, schema: str = "public", embedding_dimension: int = 256) -> str:
    """Return the whole schema as one script for `psql -f`; `agent_schema.sql` is this text, and a test keeps it so."""
    table = f"{quote_schema(schema)}.schema_migrations"
    revision = read_release().revision
    newest = migrations()[-1].number
    begin = f"BEGIN;\nSET LOCAL check_function_bodies = off;\nSELECT pg_advisory_xact_lock({_LOCK});"
    parts = [_HEADER, begin, render(_bootstrap(), schema).strip()]
    parts.append(
        f"""DO $$
BEGIN
    IF (SELECT max(revision) > {revision} OR max(number) > {newest} FROM {table}) THEN
        RAISE EXCEPTION 'a newer engine has migrated this database; use the agent_schema.sql of that engine';
    END IF;
END
$$;"""
    )
    for script in [*migrations(), *functions()]:
        parts.append(
            f"-- {script.name}\n" + render(script.sql, schema, embedding_dimension=embedding_dimension).strip()
        )
        parts.append(
            f"INSERT INTO {table} (name, number, checksum, engine_version)\n"
            f"VALUES ('{script.name}', {script.number}, '{script.checksum}', '{__version__}')\n"
            "ON CONFLICT (name) DO UPDATE SET checksum = EXCLUDED.checksum, engine_version = EXCLUDED.engine_version,\n"
            "                                 applied_at = now();"
        )
    parts.append(f"UPDATE {table} SET revision = {revision} WHERE number = 0;\nCOMMIT;")
    return "\n\n".join(parts) + "\n"


_HEADER = """-- Cognizes Engine: the unified schema, for PostgreSQL 16+ with pgvector.
--     psql -d cognizes-engine -f agent_schema.sql
-- Written by `cognizes migrate --sql` from migrations/ and functions/; change those, then write it again.
-- Running it twice is safe, and the engine knows afterwards what has been applied. It is one transaction, and refuses a
-- database that a newer engine has migrated."""
