"""Runs of a remote server: create, follow, wait for the result, answer, cancel; and the agents that it hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Literal
from uuid import uuid4

import httpx
from httpx_sse import EventSource, SSEError
from pydantic import JsonValue

from cognizes.client.errors import ApiError, ClientError, ConflictError, NotFoundError, ServerUnavailableError
from cognizes.client.models import (
    Agent,
    AgentList,
    JsonObject,
    NewToolCall,
    Run,
    RunDetail,
    RunPage,
    Schedule,
    SchedulePage,
    Signalled,
)
from cognizes.client.run_events import RunEnded, RunEvent, RunEventReader, RunWaiting
from cognizes.client.transport import BUSY, UNAVAILABLE, Backoff, Query, Transport, parse

WaitKind = Literal["human", "message", "signal", "webhook", "timer"]
Status = Literal["pending", "running", "waiting", "completed", "failed", "cancelled"]
_OF_SESSION = "/api/sessions/{thread_id}/runs"
_RUN = "/api/runs/{run_id}"
_SCHEDULES = "/api/schedules"
_SCHEDULE = "/api/schedules/{schedule_id}"


class Runs:
    """The runs of a server, as `client.runs`.

    A run is named by its id. Ids are chosen by clients, so that two threads may have the same; then add `thread_id`.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def enqueue(
        self,
        thread_id: str,
        handler: str,
        *,
        input: JsonValue = None,  # noqa: A002 - the name of the field
        run_id: str | None = None,
        max_attempts: int | None = None,
        available_at: datetime | None = None,
        queue: str | None = None,
        priority: int = 0,
    ) -> Run:
        """Create a run for the workers that have the handler. It is created once, however often it is sent."""
        run_id = run_id or str(uuid4())
        body: JsonObject = {
            "run_id": run_id,
            "handler": handler,
            "input": input,
            "max_attempts": max_attempts,
            "available_at": available_at.isoformat() if available_at else None,
            "queue": queue,
            "priority": priority,
        }
        return await self._create(thread_id, run_id, body)

    async def create(
        self, thread_id: str, *, run_id: str | None = None, start: bool = True, lease_seconds: float = 60.0
    ) -> Run:
        """Create a run that the caller executes; `start` makes it running at once, with a lease.

        The caller reports its work with `think`, `call_tool` and `finish_tool`, and ends the run with `finish` or
        `fail`. Each of these extends the lease; `heartbeat` extends it between them. A run whose lease expires fails.
        """
        run_id = run_id or str(uuid4())
        return await self._create(thread_id, run_id, {"run_id": run_id, "start": start, "lease_seconds": lease_seconds})

    async def _create(self, thread_id: str, run_id: str, body: JsonObject) -> Run:
        backoff = Backoff(self._transport.retry_seconds)
        try:
            answer = await self._transport.call(
                "POST", _OF_SESSION, thread_id, body=body, repeatable=True, backoff=backoff
            )
        except ConflictError:
            if not backoff.attempts:
                raise
            # An earlier attempt created the run, and its answer was lost.
            return await self.get(run_id, thread_id=thread_id)
        return parse(Run, answer)

    async def get(self, run_id: str, *, thread_id: str | None = None) -> RunDetail:
        """Return a run with its steps."""
        return await self._transport.get(RunDetail, _RUN, run_id, query={"thread_id": thread_id})

    async def list(
        self,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        status: Sequence[Status] | None = None,
        handler: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of runs of all sessions, newest first; `each` reads all pages."""
        query = {"app_name": app_name, "user_id": user_id, "handler": handler, "limit": limit, "cursor": cursor}
        return await self._transport.get(RunPage, "/api/runs", query={**query, "status": status})

    async def each(
        self,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        status: Sequence[Status] | None = None,
        handler: str | None = None,
    ) -> AsyncIterator[Run]:
        """Yield all runs that match, newest first."""
        cursor: str | None = None
        while True:
            page = await self.list(app_name=app_name, user_id=user_id, status=status, handler=handler, cursor=cursor)
            for run in page.runs:
                yield run
            if (cursor := page.next_cursor) is None:
                return

    async def of_session(self, thread_id: str, *, limit: int = 100) -> Sequence[Run]:
        """Return the newest runs of a session."""
        return (await self._transport.get(RunPage, _OF_SESSION, thread_id, query={"limit": limit})).runs

    async def cancel(self, run_id: str, *, thread_id: str | None = None) -> Run:
        """Cancel a run; a worker that executes it stops at once."""
        return await self._transport.post(Run, "/api/runs/{run_id}/cancel", run_id, query={"thread_id": thread_id})

    async def retry(self, run_id: str, *, thread_id: str | None = None) -> Run:
        """Put a failed run back into its queue; finished steps stay finished."""
        return await self._transport.post(Run, "/api/runs/{run_id}/retry", run_id, query={"thread_id": thread_id})

    async def signal(
        self, run_id: str, correlation_key: str, payload: JsonValue = None, *, thread_id: str | None = None
    ) -> Signalled:
        """End the wait for a key, now or as soon as the run waits for it. The same key again counts once."""
        body: JsonObject = {"correlation_key": correlation_key, "payload": payload}
        query: Query = {"thread_id": thread_id}
        path = "/api/runs/{run_id}/signal"
        return await self._transport.post(Signalled, path, run_id, query=query, body=body, repeatable=True)

    async def start(self, run: Run, *, lease_seconds: float = 60.0) -> RunDetail:
        """Begin the next attempt of a pending run that the caller executes, for example after its wait is over.

        `resumption` of the result has the payload of the wait. Use the result for all later calls: its attempt fences
        them.
        """
        path = "/api/sessions/{thread_id}/runs/{run_id}/start"
        body: JsonObject = {"lease_seconds": lease_seconds}
        return await self._transport.post(RunDetail, path, run.thread_id, run.id, body=body)

    async def heartbeat(self, run: Run, *, lease_seconds: float | None = None) -> Run:
        """Extend the lease of a run that the caller executes.

        `ConflictError` when the run has ended or another attempt executes it: stop the work.
        """
        body: JsonValue = None if lease_seconds is None else {"lease_seconds": lease_seconds}
        return parse(Run, await self._report("/api/sessions/{thread_id}/runs/{run_id}/heartbeat", run, body, True))

    async def think(self, run: Run, thought: str) -> Run:
        """Add a thinking step to a run that the caller executes."""
        path = "/api/sessions/{thread_id}/runs/{run_id}/thinking-steps"
        return parse(Run, await self._report(path, run, {"thought": thought}))

    async def call_tool(self, run: Run, tool_name: str, input: JsonValue = None) -> str:  # noqa: A002
        """Add a tool call to a run that the caller executes; return the id of the call."""
        path = "/api/sessions/{thread_id}/runs/{run_id}/tool-calls"
        answer = await self._report(path, run, {"tool_name": tool_name, "input": input})
        return parse(NewToolCall, answer).id

    async def finish_tool(self, run: Run, call_id: str, output: JsonValue, *, is_error: bool = False) -> Run:
        """Add the result of a tool call."""
        path = "/api/sessions/{thread_id}/runs/{run_id}/tool-calls/{call_id}/result"
        return parse(Run, await self._report(path, run, {"output": output, "is_error": is_error}, False, call_id))

    async def finish(self, run: Run) -> Run:
        """Complete a run that the caller executes."""
        return await self._end("/api/sessions/{thread_id}/runs/{run_id}/finish", run, None, "completed")

    async def fail(self, run: Run, error: str) -> Run:
        """Fail a run that the caller executes, with the reason."""
        return await self._end("/api/sessions/{thread_id}/runs/{run_id}/fail", run, {"error": error}, "failed")

    async def suspend(
        self,
        run: Run,
        kind: WaitKind,
        correlation_key: str,
        *,
        reason: str | None = None,
        expires_at: datetime | None = None,
    ) -> Run:
        """Let a run that the caller executes wait for a signal with this key; it has no lease while it waits.

        After the signal the run is pending: `start` continues it.
        """
        body: JsonObject = {
            "kind": kind,
            "correlation_key": correlation_key,
            "reason": reason,
            "expires_at": expires_at.isoformat() if expires_at else None,
        }
        query: Query = {"thread_id": run.thread_id, "attempt": run.attempt or None}
        return await self._transport.post(Run, "/api/runs/{run_id}/wait", run.id, query=query, body=body)

    async def _end(self, path: str, run: Run, body: JsonValue, status: Status) -> Run:
        backoff = Backoff(self._transport.retry_seconds)
        try:
            return parse(Run, await self._report(path, run, body, True, backoff=backoff))
        except ConflictError:
            found = await self.get(run.id, thread_id=run.thread_id) if backoff.attempts else None
            if found is None or (found.status, found.attempt) != (status, run.attempt):
                raise
            # An earlier attempt of the call ended the run, and its answer was lost.
            return found

    async def _report(
        self,
        path: str,
        run: Run,
        body: JsonValue,
        repeatable: bool = False,
        *ids: str,
        backoff: Backoff | None = None,
    ) -> httpx.Response:
        """Call a route of a run that the caller executes. The attempt fences it: another attempt is a conflict."""
        query: Query = {"attempt": run.attempt or None}
        return await self._transport.call(
            "POST", path, run.thread_id, run.id, *ids, query=query, body=body, repeatable=repeatable, backoff=backoff
        )

    async def answer(self, run_id: str, payload: JsonValue, *, thread_id: str | None = None) -> Run:
        """Answer what a waiting run waits for; `ClientError` if it does not wait.

        The payload for a hosted agent that asks a person is `{"confirmed": true}` or what its interrupt expects.
        """
        run = await self.get(run_id, thread_id=thread_id)
        if run.wait is None:
            raise ClientError(f"run {run_id} is {run.status} and waits for nothing; there is nothing to answer")
        return (await self.signal(run_id, run.wait.correlation_key, payload, thread_id=run.thread_id)).run

    async def follow(
        self, run_id: str, *, thread_id: str | None = None, after: int = 0, until_waiting: bool = False
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a run, stored and live ones, until it ends; with `until_waiting`, or waits.

        A lost connection is opened again, also to a restarted server, and every event is yielded once. `after` is the
        `sequence_num` to continue after. `ServerUnavailableError` when no server answers for the `retry_seconds` of
        the client.
        """
        run = await self.get(run_id, thread_id=thread_id)
        reader = RunEventReader(last_sequence=after)
        backoff = Backoff(self._transport.retry_seconds)
        while True:
            reader.reattach()
            retry_after: float | None = None
            failure: Exception | None = None
            try:
                async with aclosing(self._frames(run, reader, backoff)) as events:
                    async for event in events:
                        backoff.restart()
                        yield event
                        if isinstance(event, RunEnded) or (until_waiting and isinstance(event, RunWaiting)):
                            return
            except ApiError as error:
                if error.status not in (BUSY, *UNAVAILABLE):
                    raise
                failure, retry_after = error, error.retry_after
            except (httpx.TransportError, httpx.StreamError, SSEError, OSError) as error:
                failure = error
            if not await backoff.pause(retry_after):
                raise ServerUnavailableError(
                    f"the stream of run {run_id} is lost after event {reader.last_sequence}: {failure or 'it ended'}"
                ) from failure

    async def _frames(self, run: Run, reader: RunEventReader, backoff: Backoff) -> AsyncGenerator[RunEvent, None]:
        headers = {"Last-Event-ID": str(reader.last_sequence)} if reader.last_sequence else {}
        query = {"profile": "monitor", "thread_id": run.thread_id}
        path = "/api/runs/{run_id}/events"
        async with self._transport.stream("GET", path, run.id, query=query, headers=headers) as response:
            try:
                async for frame in EventSource(response).aiter_sse():
                    for event in reader.read(frame.data, frame.id):
                        yield event
            finally:
                backoff.renew()

    async def wait(
        self,
        run_id: str,
        *,
        thread_id: str | None = None,
        timeout: float | None = None,
        until_waiting: bool = False,
    ) -> RunDetail:
        """Return a run when it has ended; with `until_waiting`, or waits. `TimeoutError` after `timeout` seconds.

        A run that failed is returned like any other: see `status`, `error` and `result`.
        """
        after = 0
        async with asyncio.timeout(timeout):
            while True:
                run = await self.get(run_id, thread_id=thread_id)
                if run.has_ended or (until_waiting and run.is_waiting):
                    return run
                following = self.follow(run_id, thread_id=run.thread_id, after=after, until_waiting=until_waiting)
                async with aclosing(following) as events:
                    async for event in events:
                        # An earlier wait ends the stream, too: the next one begins after it.
                        after = event.sequence_num or after


class Agents:
    """The agents that a server hosts, as `client.agents`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> Sequence[Agent]:
        return (await self._transport.get(AgentList, "/agui")).agents

    async def start(
        self,
        agent: str,
        session_id: str,
        text: str,
        *,
        user_id: str | None = None,
        run_id: str | None = None,
        attachments: Sequence[JsonObject] = (),
        forwarded_props: Mapping[str, JsonValue] | None = None,
    ) -> Run:
        """Send a message to an agent and return its run, which belongs to the server: `runs.follow` shows it.

        `session_id` names the session, which is created if it does not exist. `user_id` is for callers that are bound
        to no user. `attachments` are the `part`s of uploaded files. The run is started once, however often the
        message is sent. `ConflictError` while another run executes in the session, or waits for an answer.
        """
        parts: JsonValue = text
        if attachments:
            parts = [{"type": "text", "text": text}, *attachments]
        run_id = run_id or str(uuid4())
        body: JsonObject = {
            "threadId": session_id,
            "runId": run_id,
            "protocolVersion": "1.0",
            "state": {},
            "messages": [{"id": str(uuid4()), "role": "user", "content": parts}],
            "tools": [],
            "context": [],
            "forwardedProps": {"cognizes": {"onDisconnect": "continue"}, **(forwarded_props or {})},
        }
        headers = {} if user_id is None else {"X-User-ID": user_id}
        backoff = Backoff(self._transport.retry_seconds)
        while True:
            try:
                async with self._transport.stream("POST", "/agui/{agent}", agent, body=body, headers=headers) as stream:
                    async for frame in EventSource(stream).aiter_sse():
                        if '"RUN_STARTED"' in frame.data:
                            break
                return await self._transport.get(Run, _RUN, run_id)
            except ApiError as error:
                is_known = isinstance(error, ConflictError) and backoff.attempts > 0
                if is_known and (run := await self._find(run_id)) is not None:
                    return run
                if error.status not in (BUSY, *UNAVAILABLE) or not await backoff.pause(error.retry_after):
                    raise
            except (httpx.TransportError, httpx.StreamError, SSEError, OSError) as error:
                if not await backoff.pause():
                    raise ServerUnavailableError(f"no answer to the message for {agent}: {error!r}") from error
                if (run := await self._find(run_id)) is not None:
                    return run

    async def _find(self, run_id: str) -> Run | None:
        try:
            return await self._transport.get(Run, _RUN, run_id)
        except NotFoundError:
            return None


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
