"""The client of a remote server.

async with Client("http://127.0.0.1:8000", api_key="...") as client:
    session = await client.sessions.create("shop", "ada")
    await client.sessions.append(session.thread_id, "user_message", author="user", text="Hi", state={"step": 1})
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Self

import httpx
from pydantic import JsonValue

from cognizes.client.errors import ServerUnavailableError
from cognizes.client.memory import Memories
from cognizes.client.models import Caller, ErasedRows, Usage
from cognizes.client.runs import Agents, Runs, Schedules
from cognizes.client.sessions import Sessions
from cognizes.client.signal_pull import Connection, ContextCopy, SignalPullClient
from cognizes.client.transport import Query, Transport, parse, parse_json

_USER_DATA = "/api/user-data"


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

    async def export_user_data(self, app_name: str, user_id: str) -> AsyncGenerator[bytes, None]:
        """Yield all data of a user of an app as lines of JSON, without line ends; the first line is a header.

        The rows are those of one moment, so a lost connection is an error and the export starts again.
        """
        query: Query = {"app_name": app_name, "user_id": user_id}
        try:
            async with self._transport.stream("GET", _USER_DATA, query=query) as response:
                rest = b""
                async for data in response.aiter_bytes():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        yield line
        except httpx.TransportError as error:
            raise ServerUnavailableError(f"the export of user {user_id} broke off: {error!r}") from error
        if rest:
            yield rest

    async def erase_user_data(self, app_name: str, user_id: str) -> Mapping[str, int]:
        """Delete all data of a user of an app for good; return the number of deleted rows by table."""
        query: Query = {"app_name": app_name, "user_id": user_id}
        return parse(ErasedRows, await self._transport.call("DELETE", _USER_DATA, query=query)).rows

    async def call(
        self,
        method: str,
        path: str,
        *ids: str,
        query: Query | None = None,
        body: JsonValue = None,
        repeatable: bool | None = None,
    ) -> JsonValue:
        """Call an operation of the REST API that has no method of its own; return its answer, None if it has none.

        `ids` replace the placeholders of `path` in order: `call("GET", "/contexts/{id}/llm-context", thread_id)`.
        `repeatable` says that the call may be repeated after a lost answer; by default a GET may.
        """
        if repeatable is None:
            repeatable = method.upper() == "GET"
        response = await self._transport.call(method, path, *ids, query=query, body=body, repeatable=repeatable)
        return parse_json(response) if response.content else None

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
