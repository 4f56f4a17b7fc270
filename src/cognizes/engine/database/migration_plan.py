"""What pending migrations will do: the locks that they take, and whether they rewrite or read a table.

The plan is not guessed from the text of the scripts. A temporary embedded PostgreSQL gets the migrations that the
database has, then runs the pending ones, each in a transaction of its own, and reports what PostgreSQL did. The
database itself is only read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from cognizes.engine.database.embedded import EmbeddedPostgres
from cognizes.engine.database.migrations import Migrator, Script, functions, migrations
from cognizes.engine.database.queries import Queries
from cognizes.engine.models import JsonObject

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
    """Return what `migrate` will do to a database, in the order in which it does it."""
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
            rehearsal = await asyncpg.connect(server.url)
            try:
                plans = await _rehearse(migrator.on(rehearsal), rehearsal, applied, pending)
            finally:
                await rehearsal.close()
        finally:
            await server.close()
    for plan in plans:
        for table in plan.tables:
            if (known := sizes.get(table.table)) is not None:
                table.rows, table.size = known["rows"], known["size"]
    return plans


async def _rehearse(
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
