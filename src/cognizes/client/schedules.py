"""Schedules of a remote server: runs of a handler at times of a cron expression, or at an interval."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import JsonValue

from cognizes.client.models import Schedule, SchedulePage
from cognizes.client.transport import Query, Transport, parse
from cognizes.client.wire import JsonObject

_SCHEDULES = "/api/schedules"
_SCHEDULE = "/api/schedules/{schedule_id}"


class Schedules:
    """The schedules of a server, as `client.schedules`. A key of some apps must name the `app_name`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        when: str | timedelta,
        handler: str,
        *,
        app_name: str,
        user_id: str,
        timezone: str = "UTC",
        thread_id: str | None = None,
        name: str | None = None,
        input: JsonValue = None,  # noqa: A002 - the name of the field
        catch_up: Literal["skip", "one", "all"] = "one",
        queue: str | None = None,
        priority: int = 0,
    ) -> Schedule:
        """Create a schedule of a cron expression or an interval. Without `thread_id` each run gets a new session."""
        body: JsonObject = {
            "app_name": app_name,
            "user_id": user_id,
            "handler": handler,
            "cron": when if isinstance(when, str) else None,
            "every_seconds": when.total_seconds() if isinstance(when, timedelta) else None,
            "timezone": timezone,
            "thread_id": thread_id,
            "name": name,
            "input": input,
            "catch_up": catch_up,
            "queue": queue,
            "priority": priority,
        }
        return await self._transport.post(Schedule, _SCHEDULES, body=body)

    async def get(self, schedule_id: str, *, app_name: str | None = None, count: int = 1) -> Schedule:
        """Return a schedule with its next `count` due times."""
        query: Query = {"app_name": app_name, "count": count}
        return await self._transport.get(Schedule, _SCHEDULE, schedule_id, query=query)

    async def list(
        self, *, app_name: str | None = None, user_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> SchedulePage:
        query: Query = {"app_name": app_name, "user_id": user_id, "limit": limit, "cursor": cursor}
        return await self._transport.get(SchedulePage, _SCHEDULES, query=query)

    async def pause(self, schedule_id: str, *, app_name: str | None = None) -> Schedule:
        return await self._switch("/api/schedules/{schedule_id}/pause", schedule_id, app_name)

    async def resume(self, schedule_id: str, *, app_name: str | None = None) -> Schedule:
        """Continue a paused schedule, at the next due time after now."""
        return await self._switch("/api/schedules/{schedule_id}/resume", schedule_id, app_name)

    async def _switch(self, path: str, schedule_id: str, app_name: str | None) -> Schedule:
        query: Query = {"app_name": app_name}
        return parse(Schedule, await self._transport.call("POST", path, schedule_id, query=query, repeatable=True))

    async def delete(self, schedule_id: str, *, app_name: str | None = None) -> None:
        """Delete a schedule; its runs stay."""
        await self._transport.delete(_SCHEDULE, schedule_id, query={"app_name": app_name})
