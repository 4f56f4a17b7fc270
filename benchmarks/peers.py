"""Peers of the append benchmark: pgbench, and the append of seed 001."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import asyncpg

from cognizes.engine import Session
from cognizes.engine.database.embedded import binaries

_HERE = Path(__file__).parent
_PROGRESS = re.compile(r"^progress: [\d.]+ s, ([\d.]+) tps", re.MULTILINE)


class Pgbench:
    """`pgbench -M prepared` with the single-append function: the rate of the server without Python."""

    def __init__(self, url: str, *, snapshot_every: int, max_state_bytes: int) -> None:
        parts = urlsplit(url)
        self._server = ["-h", parse_qs(parts.query)["host"][0], "-U", parts.username or "postgres", parts.path[1:]]
        self._values = {
            "is_started": "false",
            "snapshot_every": str(snapshot_every),
            "max_state_bytes": str(max_state_bytes),
        }

    async def run(self, clients: int, seconds: int) -> float:
        """Measure appends per second. Each client writes to the session `pgbench-<client>`.

        The first second is discarded: every connection compiles the function and plans its statements.
        """
        process = await asyncio.create_subprocess_exec(
            str(binaries() / "pgbench"),
            *("-M", "prepared", "-n", "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(seconds + 1)),
            *("-P", "1", "-f", str(_HERE / "append.pgbench.sql")),
            *(argument for name, value in self._values.items() for argument in ("-D", f"{name}={value}")),
            *self._server,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        rates = [float(rate) for rate in _PROGRESS.findall(output)][1:]
        if process.returncode or not rates or "failed transactions: 0 " not in output:
            raise RuntimeError(f"pgbench failed:\n{output}")
        return sum(rates) / len(rates)


class Seed001:
    """The append of seed 001: acquire, BEGIN, UPDATE, INSERT, COMMIT, with its tables and its trigger per row."""

    def __init__(self, pool: asyncpg.Pool[Any]) -> None:
        self.pool = pool

    @classmethod
    async def open(cls, url: str, *, connections: int) -> Self:
        """Create the schema `seed001` and a pool."""
        connection = await asyncpg.connect(url)
        await connection.execute((_HERE / "seed001.sql").read_text())
        await connection.close()
        settings = {"search_path": "seed001"}
        return cls(
            await asyncpg.create_pool(
                url, min_size=connections, max_size=connections, init=_decode_json, server_settings=settings
            )
        )

    async def close(self) -> None:
        await self.pool.close()

    async def create_session(self, app_name: str, user_id: str) -> Session:
        thread_id = uuid.uuid4()
        await self.pool.execute(
            "INSERT INTO threads (id, app_name, user_id) VALUES ($1, $2, $3)", thread_id, app_name, user_id
        )
        return Session(id=str(thread_id), app_name=app_name, user_id=user_id)

    async def append(self, session: Session, delta: dict[str, Any]) -> None:
        """`StateManager.append_event` of the seed."""
        async with self.pool.acquire() as connection, connection.transaction():
            state = {**session.state, **delta}
            row = await connection.fetchrow(
                "UPDATE threads SET state = $1, version = version + 1, updated_at = NOW() "
                "WHERE id = $2 AND version = $3 RETURNING version",
                state,
                uuid.UUID(session.id),
                session.version,
            )
            if row is None:
                raise RuntimeError(f"version conflict on {session.id}")
            session.state = state
            session.version = row["version"]
            await connection.fetchrow(
                "INSERT INTO events (id, thread_id, invocation_id, author, event_type, content, actions) "
                "VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id, created_at",
                uuid.uuid4(),
                uuid.UUID(session.id),
                uuid.uuid4(),
                "agent",
                "state_update",
                {},
                {"state_delta": delta},
            )


async def _decode_json(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
