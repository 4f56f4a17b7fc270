"""The data of one user of an app: an export of every row, and its erasure.

The tables are found in the catalogue: every table with `app_name` and `user_id`, or with `app_name` and the id of a
thread, and the tables whose rows are deleted with theirs. A new table is covered without a change here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from uuid import uuid4

from cognizes.engine.archive.threads import header_line, row_line
from cognizes.engine.artifacts import Artifacts
from cognizes.engine.database import Database
from cognizes.engine.errors import NotFoundError
from cognizes.engine.streams.chunks import StreamKey
from cognizes.engine.streams.message_streams import MessageStreams

USER_FORMAT = "cognizes-user"
USER_VERSION = 1
_ERASE_SECONDS = 3600.0
_ROWS_AT_ONCE = 200


class UserData:
    """Exports and erases the data of one user, with the privileges of the engine.

    The caller checks who may ask. While a request of a tenant is served, the apps of other tenants have no data.
    """

    def __init__(self, database: Database, streams: MessageStreams, artifacts: Artifacts) -> None:
        self._database = database
        self._artifacts = artifacts
        self._streams = streams

    async def export(self, app_name: str, user_id: str) -> AsyncGenerator[str, None]:
        """Yield the lines of an NDJSON export: a header, then every row of the user as one transaction sees them.

        `NotFoundError`, before the first line, when the app has no row of this user.
        """
        self._check_tenant(app_name, user_id)
        queries, begun = self._database.queries, False
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            tables = [row["name"] for row in await connection.fetch(queries["list_user_tables"])]
            rows, names = queries["read_user_rows"], (app_name, user_id)
            sources = [
                *((table, rows, (table, *names)) for table in tables),
                ("artifact_blobs", queries["read_user_blobs"], names),
                ("conversation_entries", queries["read_user_conversation_entries"], names),
                ("audit_log", queries["read_user_audit"], names),
            ]
            for table, query, arguments in sources:
                async for row in connection.cursor(query, *arguments, prefetch=_ROWS_AT_ONCE):
                    if not begun:
                        yield header_line(USER_FORMAT, USER_VERSION, app_name=app_name, user_id=user_id)
                        begun = True
                    yield row_line(table, row["row"])
        if not begun:
            raise _unknown(app_name, user_id)

    async def erase(self, app_name: str, user_id: str) -> dict[str, int]:
        """Delete all data of the user in one transaction; return the number of rows per table.

        Entries of the audit log stay with a pseudonym, which is made for this erasure and stored nowhere else.
        `NotFoundError` when the app has no row of this user, `StreamUnavailableError` when Redis holds chunks of the
        user and does not answer; nothing is changed then.
        """
        self._check_tenant(app_name, user_id)
        found = await self._database.fetch_within(_ERASE_SECONDS, "list_streams_of_user", app_name, user_id)
        streams = [StreamKey(row["thread_id"], row["message_id"]) for row in found]
        await self._streams.delete_chunks(streams)
        pseudonym = f"erased-{uuid4().hex[:12]}"
        rows = await self._database.fetch_within(_ERASE_SECONDS, "erase_user", app_name, user_id, pseudonym)
        if not rows:
            raise _unknown(app_name, user_id)
        # A producer may have written chunks until its thread was deleted.
        await self._streams.delete_chunks(streams)
        # Bytes in the database are gone with their artifacts; those in files or S3 are deleted here.
        await self._artifacts.sweep()
        return {row["table_name"]: row["rows"] for row in rows}

    def _check_tenant(self, app_name: str, user_id: str) -> None:
        apps = self._database.acting_apps
        if apps is not None and app_name not in apps:
            raise _unknown(app_name, user_id)


def _unknown(app_name: str, user_id: str) -> NotFoundError:
    return NotFoundError(f"the app {app_name!r} has no data of a user {user_id!r}; check both names")
