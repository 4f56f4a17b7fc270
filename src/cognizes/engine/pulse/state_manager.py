"""StateManager: the names of seed 000 over `Sessions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import asyncpg

from cognizes.engine.database import Database
from cognizes.engine.errors import ConcurrencyConflictError
from cognizes.engine.models import Event, JsonObject, Session
from cognizes.engine.pulse.events import TEMP, apply_delta, only_temp, parse_state_prefix
from cognizes.engine.pulse.sessions import Sessions, StateFunction
from cognizes.engine.settings import Settings

__all__ = ["ConcurrencyConflictError", "Event", "Session", "StateManager"]


class StateManager:
    """Creates sessions, appends events and changes state, on a bare `asyncpg` pool.

    `Sessions` does the same for an engine, which is its `engine.sessions`. The caller closes the pool.
    """

    def __init__(self, pool: asyncpg.Pool[Any] | Database, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        database = (
            pool
            if isinstance(pool, Database)
            else Database(pool, schema=settings.db_schema, page_bytes=settings.page_bytes)
        )
        self.pool = database.pool
        self.sessions = Sessions(database, settings)

    async def close(self) -> None:
        """Refuse new appends and sessions, and return when all submitted ones have been answered."""
        await self.sessions.close()

    async def create_session(
        self, app_name: str, user_id: str, initial_state: Mapping[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session at version 1; `AlreadyExistsError` when the session id is taken."""
        return await self.sessions.create(app_name, user_id, state=initial_state, session_id=session_id)

    async def get_session(self, app_name: str, user_id: str, session_id: str) -> Session | None:
        return await self.sessions.get(app_name, user_id, session_id)

    async def list_sessions(self, app_name: str, user_id: str) -> list[Session]:
        """Return all sessions of a user, latest activity first."""
        found: list[Session] = []
        cursor: str | None = None
        while True:
            page = await self.sessions.list(app_name, user_id, limit=1000, cursor=cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def delete_session(self, app_name: str, user_id: str, session_id: str) -> bool:
        return await self.sessions.store.delete(app_name, user_id, session_id)

    async def append_event(self, session: Session, event: Event) -> Event:
        return await self.sessions.append_event(session, event)

    async def update_session_state(
        self,
        session: Session,
        change: Mapping[str, Any] | StateFunction,
        max_retries: int = 50,
        *,
        author: str = "system",
        run_id: str | None = None,
    ) -> Session:
        """Change state by a delta, or by a function of the fresh state; see `Sessions.update`."""
        return await self.sessions.update(session, change, author=author, run_id=run_id, max_retries=max_retries)

    def parse_state_prefix(self, key: str) -> tuple[str, str]:
        return parse_state_prefix(key)

    async def set_state(self, session: Session, key: str, value: Any) -> None:
        """Set one key in the scope of its prefix; a `temp:` key is set on this object only and never stored."""
        if parse_state_prefix(key)[0] == TEMP:
            session.state = apply_delta(session.state, {key: value})
        else:
            await self.sessions.update(session, {key: value})

    async def get_state(self, session: Session, key: str, default: Any = None) -> Any:
        return (await self.get_all_state(session)).get(key, default)

    async def get_all_state(self, session: Session) -> JsonObject:
        """Return the stored effective state with prefixed keys, and the `temp:` keys of this object."""
        store = self.sessions.store
        fresh = await store.get_thread(await store.find_thread(session))
        return fresh.state | only_temp(session.state)
