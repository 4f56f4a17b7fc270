"""A Signal-Pull client: keeps a copy of a context that is right again by itself, whatever gets lost on the way.

    async with SignalPullClient("http://127.0.0.1:8000", context_id) as client:
        await client.wait_for(lambda copy: copy.state == "Idle")
        print([message.text for message in client.copy.messages])

Signals only say that there is something to pull. A pull that fails moves nothing, so the next signal, the next
heartbeat or a retry of its own asks for the same again; after a reconnection everything is compared with the server.
The copy moves to the last chunk it *received*, never to the number that the server said.

It needs `httpx` (`pip install "cognizes-engine[client]"`): connections that are reused, TLS, proxies and compression
are not ours to write. Nothing else of the engine needs it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from cognizes.engine.database.documents import load_json
from cognizes.engine.models import JsonObject
from cognizes.engine.sync.context_copy import ContextCopy, MessageCopy
from cognizes.engine.sync.signals import parse_signal

logger = logging.getLogger(__name__)

_PAGE = 500
_IDS_AT_ONCE = 50
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_BRANCHES_KEPT = 16
_SILENCE_SECONDS = 90.0
"""Three heartbeats: a connection that says nothing for so long is dead."""


class Connection(StrEnum):
    """The state of the signal stream."""

    CONNECTING = "connecting"
    OPEN = "open"
    RECONNECTING = "reconnecting"


class SignalPullClient:
    """Follows one context. `copy` is what it knows; `on_change` is called after every change of it.

    `connection` is `reconnecting` from a broken stream until the next one is open; `on_connection` is called when it
    changes, so that a screen can show it. `ignored_signals` counts signals of types that this version does not know.
    """

    def __init__(
        self,
        base_url: str,
        context_id: str,
        *,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        debounce: float = 0.02,
        on_change: Callable[[ContextCopy], None] | None = None,
        on_connection: Callable[[Connection], None] | None = None,
    ) -> None:
        timeout = httpx.Timeout(_SILENCE_SECONDS, connect=10.0)
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout, transport=transport)
        self._path = f"/contexts/{quote(context_id, safe='')}"
        self._debounce = debounce
        self._on_change = on_change
        self._on_connection = on_connection
        self.copy = ContextCopy()
        self.error: Exception | None = None
        self.connection = Connection.CONNECTING
        self.connections = 0
        self.gaps = 0
        self.ignored_signals = 0
        self._left_branches: dict[str, ContextCopy] = {}
        self._last_event_id: str | None = None
        self._branch_told = ""
        self._needs_refresh = True
        self._unknown: dict[str, None] = {}
        self._wanted: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._work_to_do = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._listen_forever(), name="signal-pull-listen"),
            asyncio.create_task(self._work_forever(), name="signal-pull-work"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._http.aclose()

    async def wait_for(self, condition: Callable[[ContextCopy], Any]) -> ContextCopy:
        """Returns when the copy fulfils a condition; raises when the context is gone."""
        while True:
            if self.error is not None:
                raise self.error
            if condition(self.copy):
                return self.copy
            self._changed.clear()
            await self._changed.wait()

    # Hearing

    async def _listen_forever(self) -> None:
        pause = _FIRST_PAUSE
        while self.error is None:
            try:
                async for signal in self._signals():
                    pause = _FIRST_PAUSE
                    self.handle(signal)
            except httpx.HTTPStatusError as error:
                if error.response.status_code in (401, 403, 404, 410, 422):
                    self._fail(error)
            except (httpx.HTTPError, httpx.StreamError, OSError) as error:
                logger.debug("the signal stream of %s broke and is opened again: %s", self._path, error)
            except Exception as error:
                self._fail(error)
                raise
            if self.connection is Connection.OPEN:
                self._set_connection(Connection.RECONNECTING)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _signals(self) -> AsyncIterator[JsonObject]:
        headers = {} if self._last_event_id is None else {"Last-Event-ID": self._last_event_id}
        async with self._http.stream("GET", f"{self._path}/events", headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                response.raise_for_status()
            self.connections += 1
            self._set_connection(Connection.OPEN)
            # What was missed while nobody listened is not only what signals tell.
            self._needs_refresh = True
            self._work_to_do.set()
            frame: dict[str, str] = {}
            async for line in response.aiter_lines():
                if line:
                    name, _, value = line.partition(":")
                    frame[name] = value.removeprefix(" ")
                    continue
                if frame.get("event") == "signal":
                    if (signal := self._parse(frame.get("data", ""))) is not None:
                        yield signal
                    self._last_event_id = frame.get("id", self._last_event_id)
                frame = {}

    def _parse(self, text: str) -> JsonObject | None:
        """A signal, or None for one of a type that this version does not know: a newer server may send it."""
        try:
            return parse_signal(text)
        except ValueError:
            self.ignored_signals += 1
            logger.debug("ignored a signal of %s: %.200s", self._path, text)
            return None

    def _set_connection(self, state: Connection) -> None:
        if state is not self.connection:
            self.connection = state
            if self._on_connection is not None:
                self._on_connection(state)

    def handle(self, signal: JsonObject) -> None:
        """Notes what a signal says there is to do. It may come twice, or not at all."""
        name = signal.get("message_id", "")
        match signal["type"]:
            case "state_changed":
                self._branch_told = signal.get("active_branch_name", self._branch_told)
                if self._branch_told == self.copy.branch:
                    self.copy.state = signal["new_state"]
                    self._tell()
            case "message_created" if self.copy.find(name) is None:
                self._unknown[name] = None
            case "content_delta":
                self._want(name, signal["current_sequence"])
            case "message_completed":
                # One more than there is: the last pull sees that it is complete.
                self._want(name, signal["final_sequence"] + 1)
                self._places[name] = signal["sequence_num"]
            case "tool_approval":
                self.copy.approvals[signal["approval_id"]] = signal["status"]
                self._tell()
            case "title_updated":
                self._needs_refresh = True
            case "heartbeat":
                self._check_up(signal.get("sequence_num", 0))
        self._work_to_do.set()

    def _want(self, message_id: str, sequence: int) -> None:
        message = self.copy.find(message_id)
        if message is None and message_id not in self._unknown:
            self._unknown[message_id] = None
        local = message.sequence if message else 0
        if sequence - local > 1:
            self.gaps += 1
        self._wanted[message_id] = max(sequence, self._wanted.get(message_id, 0))

    def _check_up(self, sequence_num: int) -> None:
        """A heartbeat: whatever was lost on the way shows now."""
        if sequence_num > self.copy.last_sequence:
            self._needs_refresh = True
        for message in self.copy.news.values():
            if not message.is_complete:
                self._want(message.id, message.sequence + 1)

    # Pulling

    async def _work_forever(self) -> None:
        """One pull after the other: two answers never race for the same copy."""
        pause = _FIRST_PAUSE
        while True:
            await self._work_to_do.wait()
            await asyncio.sleep(self._debounce)
            self._work_to_do.clear()
            try:
                await self._work()
                pause = _FIRST_PAUSE
            except httpx.HTTPError as error:
                logger.debug("a pull failed and is tried again: %s", error)
                self._work_to_do.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception as error:
                self._fail(error)
                raise

    async def _work(self) -> None:
        if self._needs_refresh or self._branch_told not in ("", self.copy.branch):
            await self._refresh()
        while self._unknown:
            await self._pull_messages(list(self._unknown)[:_IDS_AT_ONCE])
        for message_id in list(self._wanted):
            # Taken out first: what is signalled while this is pulled is one more thing to do.
            sequence = self._wanted.pop(message_id, 0)
            try:
                if (message := self.copy.find(message_id)) is not None:
                    await self._pull_chunks(message)
            except BaseException:
                self._want(message_id, sequence)
                raise

    async def _refresh(self) -> None:
        self._needs_refresh = False
        try:
            metadata = await self._get("/metadata")
            branch = metadata["active_branch_name"]
            is_other = branch != self.copy.branch
            if is_other:
                # What signals told of before is of the branch that was left.
                self._unknown.clear()
                self._wanted.clear()
                self._places.clear()
            new = self._copy_of(branch) if is_other else self.copy
            rest = await self._read_rest(new)
        except BaseException:
            self._needs_refresh = True
            raise
        # From here on nothing waits: whoever looks at the copy sees the old or the new one.
        if is_other:
            self._leave_branch()
        new.extend(rest)
        new.id, new.state, new.title = metadata["id"], metadata["current_state"], metadata["title"]
        new.last_sequence, new.approvals = metadata["last_sequence"], self.copy.approvals
        self.copy = new
        for message in new.news.values():
            if not message.is_complete:
                self._want(message.id, message.sequence + 1)
        if self._branch_told not in ("", branch):
            self._needs_refresh = self._branch_told_later(branch)
        self._tell()

    def _branch_told_later(self, branch: str) -> bool:
        """Signals told of another branch than the server: it was switched again, or they are behind; ask once more."""
        self._branch_told = branch
        self._work_to_do.set()
        return True

    def _copy_of(self, branch: str) -> ContextCopy:
        """The copy of a branch that was left earlier, without what had no place in it yet; else an empty one."""
        copy = self._left_branches.get(branch) or ContextCopy(branch=branch)
        copy.news.clear()
        return copy

    def _leave_branch(self) -> None:
        """Keep the copy of the branch that was active, so that switching back pulls only what is new."""
        self._left_branches.pop(self.copy.branch, None)
        self._left_branches[self.copy.branch] = self.copy
        while len(self._left_branches) > _BRANCHES_KEPT:
            del self._left_branches[next(iter(self._left_branches))]

    async def _read_rest(self, copy: ContextCopy) -> list[JsonObject]:
        """The messages behind those of a copy.

        The last known message is read again: when the server has another one there, the branch was deleted and
        created again, and the copy starts over.
        """
        known = len(copy.stored)
        if known and copy is not self.copy:
            rest = await self._read_list(copy.branch, offset=known - 1)
            if rest and rest[0]["id"] == copy.stored[-1].id:
                return rest[1:]
            copy.stored.clear()
        return await self._read_list(copy.branch, offset=len(copy.stored))

    async def _read_list(self, branch: str, *, offset: int) -> list[JsonObject]:
        found: list[JsonObject] = []
        has_more = True
        while has_more:
            answer = await self._get("/messages", branch=branch, offset=offset, limit=_PAGE)
            found += answer["messages"]
            offset += sum(message["status"] != "streaming" for message in answer["messages"])
            has_more = answer["has_more"]
        return found

    async def _pull_messages(self, ids: list[str]) -> None:
        answer = await self._get("/messages", ids=",".join(ids))
        for message in answer["messages"]:
            copy = self.copy.add(message["id"])
            if not copy.is_complete:
                copy.replace(message)
        if answer["has_more"] and answer["messages"]:
            # The answer ended at the server's limit of bytes: the rest is asked for next.
            ids = ids[: ids.index(answer["messages"][-1]["id"]) + 1]
        for name in ids:
            self._unknown.pop(name, None)
        self._tell()

    async def _pull_chunks(self, message: MessageCopy) -> None:
        path = f"/messages/{quote(message.id, safe='')}/streaming-chunks"
        while not message.is_complete:
            try:
                page = await self._get(path, from_sequence=message.sequence)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 404:
                    raise
                self.copy.news.pop(message.id, None)  # it ended without having said anything
                return
            taken = message.append(page["chunks"])
            if page["status"] != "streaming" and message.sequence > page["current_sequence"]:
                # Its producer and the last chunks were lost before they were stored: the stored message is shorter.
                self._unknown[message.id] = None
                self._work_to_do.set()
                return
            if page["status"] != "streaming" and message.sequence >= page["current_sequence"]:
                message.is_complete, message.is_interrupted = True, page["status"] == "interrupted"
                message.sequence_num = self._places.pop(message.id, None)
            self._tell()
            if not taken or not (page["has_more"] or message.lacks(page["current_sequence"])):
                return

    async def _get(self, path: str, **params: Any) -> JsonObject:
        response = await self._http.get(self._path + path, params=params)
        response.raise_for_status()
        document: JsonObject = load_json(response.text)
        return document

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._changed.set()

    def _tell(self) -> None:
        self._changed.set()
        if self._on_change is not None:
            self._on_change(self.copy)
