"""A Signal-Pull client: a local copy of a context that repairs itself after lost signals and failed pulls.

    async with SignalPullClient("http://127.0.0.1:8000", context_id) as client:
        await client.wait_for(lambda copy: copy.state == "Idle")
        print([message.text for message in client.copy.messages])

A signal only announces data to pull. A failed pull changes nothing, so the next signal, the next heartbeat or a retry
repeats it; after a reconnection the client compares the copy with the server. The copy advances to the last chunk that
it *received*, never to the number in a signal.

The client needs `httpx` and `httpx-sse` (`pip install "cognizes-engine[client]"`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
from cachetools import LRUCache
from httpx_sse import EventSource

from cognizes.client.models import decode
from cognizes.client.transport import SILENCE_SECONDS, Backoff

logger = logging.getLogger(__name__)

_PAGE = 500
_IDS_AT_ONCE = 50
_BRANCHES_KEPT = 16
_MAX_SEQUENCE = 2**63
_SIGNALS = (
    *("state_changed", "content_delta", "message_created", "message_completed", "tool_approval", "title_updated"),
    "heartbeat",
)
_Document = dict[str, Any]
"""A document of the server, whose form this module knows."""


def parse_signal(text: str) -> _Document:
    """Return the data of a signal; `ValueError` if it is not a signal."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("type") not in _SIGNALS:
        raise ValueError("this is not a signal")
    return document


class Connection(StrEnum):
    CONNECTING = "connecting"
    OPEN = "open"
    RECONNECTING = "reconnecting"


@dataclass
class MessageCopy:
    """The received part of a message. `sequence` is the last chunk in `text`; `sequence_num` is that of its event and
    orders the messages, None until the message is stored."""

    id: str
    role: str = "assistant"
    text: str = ""
    sequence: int = 0
    sequence_num: int | None = None
    is_complete: bool = False
    is_interrupted: bool = False
    content: list[_Document] = field(default_factory=list)

    def lacks(self, server_sequence: int) -> bool:
        return not self.is_complete and server_sequence > self.sequence

    def append(self, chunks: Iterable[_Document]) -> int:
        """Append the chunks that follow `sequence`; return their number. Skips known chunks and stops at a gap."""
        deltas: list[str] = []
        for chunk in chunks:
            if chunk["sequence"] == self.sequence + 1 and not self.is_complete:
                deltas.append(chunk["delta"])
                self.sequence += 1
        self.text += "".join(deltas)
        return len(deltas)

    def replace(self, message: _Document) -> None:
        self.role = message["role"]
        if message["status"] == "streaming":
            return
        self.content = message["content"]
        self.text = "".join(part["text"] for part in self.content if isinstance(part.get("text"), str))
        self.sequence, self.sequence_num = message["final_sequence"] or 1, message["sequence_num"]
        self.is_complete, self.is_interrupted = True, message["status"] == "interrupted"


@dataclass
class ContextCopy:
    """The state of a context and the messages of its active branch.

    `stored` are the messages listed by the server, in its order; `unplaced` are those announced by signals since.
    """

    id: str = ""
    state: str = ""
    branch: str = ""
    title: str | None = None
    last_sequence: int = 0
    stored: list[MessageCopy] = field(default_factory=list)
    unplaced: dict[str, MessageCopy] = field(default_factory=dict)
    approvals: dict[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> list[MessageCopy]:
        """All messages in order; those without a sequence number are last."""
        return self.stored + sorted(self.unplaced.values(), key=lambda message: message.sequence_num or _MAX_SEQUENCE)

    def find(self, message_id: str) -> MessageCopy | None:
        return self.unplaced.get(message_id) or next((found for found in self.stored if found.id == message_id), None)

    def add(self, message_id: str) -> MessageCopy:
        """Return the message of an id; create it if it does not exist."""
        found = self.find(message_id)
        if found is None:
            found = self.unplaced[message_id] = MessageCopy(message_id)
        return found

    def extend(self, messages: list[_Document]) -> None:
        """Append messages of the server's list to `stored`."""
        for message in messages:
            copy = self.unplaced.get(message["id"]) or MessageCopy(message["id"])
            if message["status"] == "streaming":
                copy.role = message["role"]
                self.unplaced[copy.id] = copy
                continue
            if not copy.is_complete or not copy.content:
                copy.replace(message)
            self.unplaced.pop(copy.id, None)
            self.stored.append(copy)


class SignalPullClient:
    """Follows one context. `copy` is the local copy; the client calls `on_change` after each change of it.

    `connection` is `reconnecting` while a broken stream is being reopened; the client calls `on_connection` when it
    changes. `ignored_signals` counts signals of unknown types.
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
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=10.0)
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
        self._inactive_branches: LRUCache[str, ContextCopy] = LRUCache(_BRANCHES_KEPT)
        self._last_event_id: str | None = None
        self._signalled_branch = ""
        self._must_read_all = False
        self._needs_refresh = True
        self._unknown_messages: dict[str, None] = {}
        self._pending_chunks: dict[str, int] = {}
        self._sequence_nums: dict[str, int] = {}
        self._seen_sequence = 0
        self._has_work = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._receive_forever(), name="signal-pull-receive"),
            asyncio.create_task(self._pull_forever(), name="signal-pull-pull"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._http.aclose()

    async def wait_for(self, condition: Callable[[ContextCopy], object]) -> ContextCopy:
        """Return the copy when it satisfies a condition; raise if the context does not exist any more."""
        while True:
            changed = self._changed
            if self.error is not None:
                raise self.error
            if condition(self.copy):
                return self.copy
            await changed.wait()

    async def _receive_forever(self) -> None:
        backoff = Backoff()
        while self.error is None:
            try:
                async for signal in self._signals():
                    backoff.restart()
                    self.handle(signal)
            except httpx.HTTPStatusError as error:
                if error.response.status_code in (401, 403, 404, 410, 422):
                    self._fail(error)
            except (httpx.HTTPError, httpx.StreamError, OSError) as error:
                logger.debug("the signal stream of %s is broken, reconnecting: %s", self._path, error)
            except Exception as error:
                self._fail(error)
                raise
            if self.connection is Connection.OPEN:
                self._set_connection(Connection.RECONNECTING)
            await backoff.pause()

    async def _signals(self) -> AsyncIterator[_Document]:
        headers = {} if self._last_event_id is None else {"Last-Event-ID": self._last_event_id}
        async with self._http.stream("GET", f"{self._path}/events", headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                response.raise_for_status()
            self.connections += 1
            self._set_connection(Connection.OPEN)
            # Signals sent while the client was disconnected are lost: compare everything with the server.
            self._needs_refresh = True
            self._has_work.set()
            async for event in EventSource(response).aiter_sse():
                if event.event == "signal":
                    if (signal := self._parse(event.data)) is not None:
                        yield signal
                    self._last_event_id = event.id or self._last_event_id

    def _parse(self, text: str) -> _Document | None:
        """Return a signal, or None for an unknown type, which a newer server may send."""
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

    def handle(self, signal: _Document) -> None:
        """Record what a signal announces. A signal may arrive twice or never."""
        name = signal.get("message_id", "")
        if signal.get("messages_removed"):
            self._seen_sequence = 0
        self._seen_sequence = max(self._seen_sequence, signal.get("sequence_num", 0))
        match signal["type"]:
            case "state_changed":
                self._signalled_branch = signal.get("active_branch_name", self._signalled_branch)
                if signal.get("messages_removed"):
                    self._must_read_all = self._needs_refresh = True
                if self._signalled_branch == self.copy.branch:
                    self.copy.state = signal["new_state"]
                    self._notify()
            case "message_created" if self.copy.find(name) is None:
                self._unknown_messages[name] = None
            case "content_delta":
                self._request_chunks(name, signal["current_sequence"])
            case "message_completed":
                # One more than exists, so that the last pull sees the message complete.
                self._request_chunks(name, signal["final_sequence"] + 1)
                self._sequence_nums[name] = signal["sequence_num"]
            case "tool_approval":
                self.copy.approvals[signal["approval_id"]] = signal["status"]
                self._notify()
            case "title_updated":
                self._needs_refresh = True
            case "heartbeat":
                self._check_completeness(signal.get("sequence_num", 0))
        self._has_work.set()

    def _request_chunks(self, message_id: str, sequence: int) -> None:
        message = self.copy.find(message_id)
        if message is None and message_id not in self._unknown_messages:
            self._unknown_messages[message_id] = None
        local = message.sequence if message else 0
        if sequence - local > 1:
            self.gaps += 1
        self._pending_chunks[message_id] = max(sequence, self._pending_chunks.get(message_id, 0))

    def _check_completeness(self, sequence_num: int) -> None:
        """Compare the copy with the sequence number of a heartbeat."""
        if sequence_num > self.copy.last_sequence:
            self._needs_refresh = True
        for message in self.copy.unplaced.values():
            if not message.is_complete:
                self._request_chunks(message.id, message.sequence + 1)

    async def _pull_forever(self) -> None:
        """Pull sequentially, so that two responses never race for the same copy."""
        backoff = Backoff()
        while True:
            await self._has_work.wait()
            await asyncio.sleep(self._debounce)
            # Cleared before the pull: work that arrives during the pull starts the next one.
            self._has_work.clear()
            try:
                await self._pull()
                backoff.restart()
            except httpx.HTTPError as error:
                logger.debug("a pull of %s failed, retrying: %s", self._path, error)
                self._has_work.set()
                await backoff.pause()
            except Exception as error:
                self._fail(error)
                raise

    async def _pull(self) -> None:
        if self._needs_refresh or self._signalled_branch not in ("", self.copy.branch):
            await self._refresh()
        while self._unknown_messages:
            await self._pull_messages(list(self._unknown_messages)[:_IDS_AT_ONCE])
        for message_id in list(self._pending_chunks):
            # Removed before the pull, so that a signal that arrives during it is not lost.
            sequence = self._pending_chunks.pop(message_id, 0)
            try:
                if (message := self.copy.find(message_id)) is not None:
                    await self._pull_chunks(message)
            except BaseException:
                self._request_chunks(message_id, sequence)
                raise

    async def _refresh(self) -> None:
        self._needs_refresh = False
        must_read_all, self._must_read_all = self._must_read_all, False
        try:
            metadata = await self._get("/metadata")
            branch = metadata["active_branch_name"]
            is_other = branch != self.copy.branch
            if is_other or must_read_all:
                # Earlier signals concern the branch that was active, or messages that may have been removed.
                self._unknown_messages.clear()
                self._pending_chunks.clear()
                self._sequence_nums.clear()
            if must_read_all:
                self._inactive_branches.clear()
            new = self._copy_of(branch) if is_other else self.copy
            known = [message.id for message in new.unplaced.values() if message.is_complete]
            rest = None if must_read_all else await self._read_rest(new)
            is_replaced = rest is None
            if rest is None:
                rest = await self._read_list(branch, offset=0)
        except BaseException:
            self._needs_refresh = True
            self._must_read_all |= must_read_all
            raise
        # No await from here on: readers see the old copy or the new one.
        if is_other:
            # Keep the copy of the branch that was active: switching back then pulls only new messages.
            self._inactive_branches[self.copy.branch] = self.copy
        if is_replaced:
            new.stored.clear()
            new.unplaced.clear()
        new.extend(rest)
        for name in known:
            # The server listed all its messages and not this one: it lost the message in a failover.
            new.unplaced.pop(name, None)
        new.id, new.state, new.title = metadata["id"], metadata["current_state"], metadata["title"]
        new.last_sequence, new.approvals = metadata["last_sequence"], self.copy.approvals
        self.copy = new
        for message in new.unplaced.values():
            if not message.is_complete:
                self._request_chunks(message.id, message.sequence + 1)
        if self._signalled_branch not in ("", branch):
            self._needs_refresh = self._request_refresh(branch)
        self._notify()

    def _request_refresh(self, branch: str) -> bool:
        """Refresh again: the branch was switched once more, or the signals are older than the metadata."""
        self._signalled_branch = branch
        self._has_work.set()
        return True

    def _copy_of(self, branch: str) -> ContextCopy:
        """Return the stored copy of a branch without its unplaced messages, or an empty copy."""
        copy = self._inactive_branches.get(branch) or ContextCopy(branch=branch)
        copy.unplaced.clear()
        return copy

    async def _read_rest(self, copy: ContextCopy) -> list[_Document] | None:
        """Read the messages that follow those of a copy; None if all must be read.

        The last known message is read again: if the server has a different one there, or none, the branch was deleted
        and created again, or the server lost messages in a failover.
        """
        known = len(copy.stored)
        rest = await self._read_list(copy.branch, offset=max(known - 1, 0))
        if not known:
            return rest
        return rest[1:] if rest and rest[0]["id"] == copy.stored[-1].id else None

    async def _read_list(self, branch: str, *, offset: int) -> list[_Document]:
        found: list[_Document] = []
        has_more = True
        while has_more:
            page = await self._get("/messages", branch=branch, offset=offset, limit=_PAGE)
            found += page["messages"]
            offset += sum(message["status"] != "streaming" for message in page["messages"])
            has_more = page["has_more"]
        return found

    async def _pull_messages(self, ids: list[str]) -> None:
        page = await self._get("/messages", ids=",".join(ids))
        for message in page["messages"]:
            copy = self.copy.add(message["id"])
            if not copy.is_complete:
                copy.replace(message)
        if page["has_more"] and page["messages"]:
            # The response ended at the byte limit of the server: the next pull requests the rest.
            ids = ids[: ids.index(page["messages"][-1]["id"]) + 1]
        found = {message["id"] for message in page["messages"]}
        for name in ids:
            self._unknown_messages.pop(name, None)
            if name not in found:
                self.copy.unplaced.pop(name, None)  # a stream that ended without text leaves no message
        self._notify()

    async def _pull_chunks(self, message: MessageCopy) -> None:
        path = f"/messages/{quote(message.id, safe='')}/streaming-chunks"
        while not message.is_complete:
            try:
                page = await self._get(path, from_sequence=message.sequence)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 404:
                    raise
                self.copy.unplaced.pop(message.id, None)  # it ended without text
                return
            taken = message.append(page["chunks"])
            has_ended = page["status"] != "streaming"
            if has_ended and (message.sequence > page["current_sequence"] or not page["current_sequence"]):
                # The producer was killed before its last chunks were stored, so the stored message is shorter; or there
                # is no text, and maybe no message.
                self._unknown_messages[message.id] = None
                self._has_work.set()
                return
            if has_ended and message.sequence >= page["current_sequence"]:
                message.is_complete, message.is_interrupted = True, page["status"] == "interrupted"
                message.sequence_num = self._sequence_nums.pop(message.id, None)
            self._notify()
            if not taken or not (page["has_more"] or message.lacks(page["current_sequence"])):
                return

    async def _get(self, path: str, **params: Any) -> _Document:
        # A server that reads from replicas answers with no less than the client has seen.
        headers = {"X-Seen-Sequence": str(self._seen_sequence)}
        response = await self._http.get(self._path + path, params=params, headers=headers)
        response.raise_for_status()
        document = decode(response.text)
        if not isinstance(document, dict):
            raise ValueError(f"{self._path}{path} answered something other than an object: {response.text[:200]!r}")
        return document

    def _fail(self, error: Exception) -> None:
        self.error = error
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _notify(self) -> None:
        self._wake_waiters()
        if self._on_change is not None:
            self._on_change(self.copy)
