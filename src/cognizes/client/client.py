"""The client of a remote server.

async with Client("http://127.0.0.1:8000", api_key="...") as client:
    session = await client.sessions.create("shop", "ada")
    await client.sessions.append(session.thread_id, "user_message", author="user", text="Hi", state={"step": 1})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

import httpx

from cognizes.client.memory import Memories
from cognizes.client.models import Caller, Usage
from cognizes.client.runs import Agents, Runs, Schedules
from cognizes.client.sessions import Sessions
from cognizes.client.signal_pull import Connection, ContextCopy, SignalPullClient
from cognizes.client.transport import Query, Transport


class Client:
    """Calls a Cognizes server. Use it with `async with`, or call `close`; several tasks may share it.

    `api_key` is an API key, or a token of the identity provider. `user_id` is the user for whom a caller acts that is
    bound to none. A call has `timeout` seconds for its answer; one that may be repeated is repeated for up to
    `retry_seconds` while the server is unavailable.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        user_id: str | None = None,
        timeout: float = 30.0,
        retry_seconds: float = 60.0,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        given = dict(headers or {})
        if api_key is not None:
            given["Authorization"] = f"Bearer {api_key}"
        if user_id is not None:
            given["X-User-ID"] = user_id
        self._transport = Transport(
            base_url, headers=given, timeout=timeout, retry_seconds=retry_seconds, transport=transport
        )
        self.sessions = Sessions(self._transport)
        self.runs = Runs(self._transport)
        self.agents = Agents(self._transport)
        self.memory = Memories(self._transport)
        self.schedules = Schedules(self._transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def caller(self) -> Caller:
        """Return the rights of the key or token."""
        return await self._transport.get(Caller, "/api/access/me")

    async def usage(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Usage:
        """Return tokens and cost of the model calls of an app, or of one of its users; times have a time zone."""
        query: Query = {"app_name": app_name, "user_id": user_id, "since": since, "until": until}
        return await self._transport.get(Usage, "/api/usage", query=query)

    async def usage_of_session(self, thread_id: str) -> Usage:
        return await self._transport.get(Usage, "/api/sessions/{thread_id}/usage", thread_id)

    async def usage_of_run(self, run_id: str) -> Usage:
        return await self._transport.get(Usage, "/api/runs/{run_id}/usage", run_id)

    def signal_pull(
        self,
        context_id: str,
        *,
        on_change: Callable[[ContextCopy], None] | None = None,
        on_connection: Callable[[Connection], None] | None = None,
    ) -> SignalPullClient:
        """Return a client that keeps a copy of a session by Signal-Pull; use it with `async with`."""
        return SignalPullClient(
            self._transport.base_url,
            context_id,
            headers=self._transport.headers,
            on_change=on_change,
            on_connection=on_connection,
        )
