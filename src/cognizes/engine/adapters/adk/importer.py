"""Copies sessions, events and states out of the tables of ADK's own DatabaseSessionService.

Every batch of events is a transaction that also stores its position, so an interrupted import continues where it
stopped, and a second import copies only what was added since. The import never overwrites the target: a session that
was continued there, and existing keys of user and app state, stay unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from google.adk.sessions.migration import _schema_check_utils
from google.adk.sessions.schemas.v1 import StorageAppState, StorageEvent, StorageSession, StorageUserState
from sqlalchemy import func, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from cognizes.engine import models
from cognizes.engine.adapters.adk.events import encode_event, to_json
from cognizes.engine.database.documents import dump_jsonb
from cognizes.engine.engine import Engine
from cognizes.engine.errors import AlreadyExistsError, EngineError, SetupError
from cognizes.engine.models import JsonObject
from cognizes.engine.pulse.events import append_item, state_delta
from cognizes.engine.pulse.group_commit import AppendItem

_ASYNC_DRIVERS: Final = {"sqlite": "aiosqlite", "postgresql": "asyncpg", "mysql": "aiomysql", "mariadb": "asyncmy"}


@dataclass(frozen=True)
class ImportProgress:
    sessions_done: int
    sessions_total: int
    events_done: int
    events_total: int


@dataclass(frozen=True)
class SkippedSession:
    """A session that was not copied completely, and the reason."""

    app_name: str
    user_id: str
    session_id: str
    reason: str


@dataclass(frozen=True)
class ImportReport:
    """The result of an import. `is_complete` says that every session and event of the source is in the target."""

    sessions_found: int = 0
    events_found: int = 0
    sessions_created: int = 0
    events_copied: int = 0
    events_present: int = 0
    app_states: int = 0
    user_states: int = 0
    skipped: tuple[SkippedSession, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Return whether the counts of source and target agree."""
        return not self.skipped and self.events_copied + self.events_present == self.events_found


async def import_sessions(
    source_url: str, engine: Engine, *, progress: Callable[[ImportProgress], None] | None = None, batch: int = 500
) -> ImportReport:
    """Copy everything from an SQLAlchemy URL into the engine's database. A second call continues."""
    try:
        async with _open_source(source_url) as connection:
            await _check_schema(connection)
            async with AsyncSession(bind=connection, expire_on_commit=False) as session:
                return await _Import(session, engine, progress=progress, batch=batch).run()
    except (SQLAlchemyError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise SetupError(f"the source cannot be read ({reason}); check its URL, then run it again") from error


@asynccontextmanager
async def _open_source(url: str) -> AsyncIterator[AsyncConnection]:
    full_url = _with_async_driver(url)
    _require_sqlite_file(full_url)
    source = create_async_engine(full_url)
    try:
        async with source.connect() as connection:
            yield connection
    finally:
        await source.dispose()


class _Import:
    def __init__(
        self, source: AsyncSession, engine: Engine, *, progress: Callable[[ImportProgress], None] | None, batch: int
    ) -> None:
        self._source = source
        self._engine = engine
        self._progress = progress
        self._batch = batch
        self._report = ImportReport()

    async def run(self) -> ImportReport:
        keys = await self._count()
        await self._copy_states()
        for done, key in enumerate(keys):
            self._tell(done)
            try:
                await self._copy_session(*key)
            except EngineError as error:
                self._skip(key, str(error))
        self._tell(len(keys))
        return self._report

    async def _count(self) -> list[tuple[str, str, str]]:
        columns = StorageSession.app_name, StorageSession.user_id, StorageSession.id
        keys = [(row[0], row[1], row[2]) for row in await self._source.execute(select(*columns).order_by(*columns))]
        events = await self._source.scalar(select(func.count()).select_from(StorageEvent))
        self._report = replace(self._report, sessions_found=len(keys), events_found=events or 0)
        return keys

    async def _copy_states(self) -> None:
        fetch, limit = self._engine._database.fetch, self._engine.settings.max_state_bytes
        apps = [row for row in await self._source.scalars(select(StorageAppState)) if row.state]
        for app in apps:
            await fetch("adk_import_app_state", app.app_name, _document(app.state), limit)
        users = [row for row in await self._source.scalars(select(StorageUserState)) if row.state]
        for user in users:
            await fetch("adk_import_user_state", user.app_name, user.user_id, _document(user.state), limit)
        self._report = replace(self._report, app_states=len(apps), user_states=len(users))

    async def _copy_session(self, app_name: str, user_id: str, session_id: str) -> None:
        key = app_name, user_id, session_id
        stored = await self._source.get_one(StorageSession, key)
        rows = await self._source.scalars(
            select(StorageEvent)
            .where(
                StorageEvent.app_name == app_name,
                StorageEvent.user_id == user_id,
                StorageEvent.session_id == session_id,
            )
            # The order in which ADK reads a session.
            .order_by(StorageEvent.timestamp, StorageEvent.id)
        )
        events = [(encode_event(row.to_event(), thread_id=""), _utc(row.timestamp)) for row in rows]
        self._source.expunge_all()
        final_state: JsonObject = to_json(dict(stored.state))
        target = await self._find_or_create(key, _initial_state(final_state, [event for event, _ in events]))
        present = target.metadata.get("imported_events")
        if present is None:
            self._skip(key, "the target has a session of this name that was not imported")
        elif target.last_sequence != present and len(events) > present:
            self._skip(key, "it went on both in the source and in the target")
        else:
            self._report = replace(self._report, events_present=self._report.events_present + min(present, len(events)))
            await self._copy_events(stored, target, events[present:], final_state)

    async def _find_or_create(self, key: tuple[str, str, str], state: JsonObject) -> models.Session:
        app_name, user_id, source_id = key
        # The engine refuses blank and padded ids.
        session_id = source_id.strip() or "blank"
        metadata = {"imported_from": {"service": "google-adk", "session_id": source_id}, "imported_events": 0}
        try:
            created = await self._engine.sessions.create(
                app_name, user_id, session_id=session_id, state=state, metadata=metadata
            )
        except AlreadyExistsError:
            existing = await self._engine.sessions.get(app_name, user_id, session_id)
            if existing is None:
                raise
            if existing.metadata.get("imported_from") != metadata["imported_from"]:
                existing.metadata.pop("imported_events", None)
            return existing
        self._report = replace(self._report, sessions_created=self._report.sessions_created + 1)
        return created

    async def _copy_events(
        self,
        stored: StorageSession,
        target: models.Session,
        events: list[tuple[models.Event, datetime]],
        final_state: JsonObject,
    ) -> None:
        times = _utc(stored.create_time), _utc(stored.update_time)
        position = target.metadata["imported_events"]
        state = {key: value for key, value in target.state.items() if not key.startswith(("user:", "app:"))}
        batches = list(_batches(events, self._batch)) or ([[]] if target.last_sequence == 0 else [])
        for number, batch in enumerate(batches, start=1):
            for event, _ in batch:
                state |= state_delta(event).session
            if number == len(batches):
                state = final_state
            items = [self._item(event, target) for event, _ in batch]
            is_stored = await self._engine._database.fetch_value(
                "adk_import_events",
                UUID(target.thread_id),
                position,
                *_columns(items),
                [created_at for _, created_at in batch],
                dump_jsonb(state),
                *times,
                [item.usage for item in items],
            )
            if not is_stored:
                self._skip((target.app_name, target.user_id, target.id), "it has other writes in the target")
                return
            position += len(batch)
            self._report = replace(self._report, events_copied=self._report.events_copied + len(batch))

    def _item(self, event: models.Event, target: models.Session) -> AppendItem:
        settings = self._engine.settings
        return append_item(
            event,
            state_delta(event),
            thread_id=UUID(target.thread_id),
            expected_version=None,
            max_bytes=settings.max_event_bytes,
            max_depth=settings.max_json_depth,
        )

    def _skip(self, key: tuple[str, str, str], reason: str) -> None:
        self._report = replace(self._report, skipped=(*self._report.skipped, SkippedSession(*key, reason)))

    def _tell(self, sessions_done: int) -> None:
        if self._progress is not None:
            report = self._report
            events_done = report.events_copied + report.events_present
            self._progress(ImportProgress(sessions_done, report.sessions_found, events_done, report.events_found))


def _with_async_driver(url: str) -> str:
    parsed = make_url(url)
    driver = _ASYNC_DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise SetupError(f"ADK keeps no sessions in {parsed.get_backend_name()}; give the URL its service was given")
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=f"{parsed.drivername}+{driver}")
    return parsed.render_as_string(hide_password=False)


def _require_sqlite_file(url: str) -> None:
    """Refuse a path without a file: SQLite would create one."""
    source = make_url(url)
    path = source.database or ""
    in_memory = path in ("", ":memory:") or path.startswith("file:")
    if source.get_backend_name() == "sqlite" and not in_memory and not Path(path).is_file():
        raise SetupError(f"there is no SQLite file {path}; check the URL (an absolute path has four slashes)")


async def _check_schema(connection: AsyncConnection) -> None:
    if not await connection.run_sync(lambda sync: inspect(sync).has_table(StorageSession.__tablename__)):
        raise SetupError("there are no tables of ADK's DatabaseSessionService at this URL; check it")
    version = await connection.run_sync(_schema_check_utils.get_db_schema_version_from_connection)
    if version != _schema_check_utils.LATEST_SCHEMA_VERSION:
        raise SetupError(
            f"the source has ADK's schema {version}; bring it to version "
            f"{_schema_check_utils.LATEST_SCHEMA_VERSION} with `adk migrate session`, then import it"
        )
    await connection.rollback()


def _initial_state(final: JsonObject, events: list[models.Event]) -> JsonObject:
    """Return the initial state of a session, which ADK does not store: the keys that no event has set."""
    changed = {key for event in events for key in event.actions.get("state_delta", {})}
    return {key: value for key, value in final.items() if key not in changed}


def _columns(items: list[AppendItem]) -> list[list[Any]]:
    return [
        [item.event_id for item in items],
        [item.invocation_id for item in items],
        [item.author for item in items],
        [item.event_type for item in items],
        [item.content for item in items],
        [item.actions for item in items],
        [any((item.delta, item.user_delta, item.app_delta)) for item in items],
        [item.role for item in items],
        [item.text for item in items],
        [item.message_id for item in items],
    ]


def _batches(events: list[tuple[models.Event, datetime]], size: int) -> Iterator[list[tuple[models.Event, datetime]]]:
    remaining = iter(events)
    while batch := list(islice(remaining, size)):
        yield batch


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _document(state: Any) -> str:
    return dump_jsonb(to_json(dict(state)))
