"""The memory of a remote server: notes, facts, recall and the context of a prompt. Every call names app and user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import uuid4

from pydantic import JsonValue

from cognizes.client.errors import NotFoundError
from cognizes.client.models import (
    Fact,
    FactHistory,
    FactVersion,
    Hit,
    Hits,
    JsonObject,
    Memory,
    MemoryPage,
    MessageHit,
    MessageHits,
    PromptContext,
    Stored,
)
from cognizes.client.transport import Transport, parse

Visibility = Literal["user", "agent", "app"]
Kind = Literal["long_term", "episodic", "turn", "note"]
Role = Literal["user", "assistant", "tool", "system"]
_OWN: tuple[Visibility, ...] = ("user",)

_MEMORY = "/memory"
_FACTS = "/memory/long-term"
_FACT = "/memory/long-term/entry"


class Memories:
    """The memory of the users of a server, as `client.memory`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add(
        self,
        app_name: str,
        user_id: str,
        text: str,
        *,
        source_id: str | None = None,
        agent_id: str = "",
        session_id: str | None = None,
        namespace: str = "",
        tags: Sequence[str] = (),
        metadata: Mapping[str, JsonValue] | None = None,
        importance: float | None = None,
        expires_at: datetime | None = None,
    ) -> int:
        """Remember a text; return 1 if it is new or changed, else 0. A text with the same `source_id` is replaced."""
        note = _note(
            text,
            source_id=source_id,
            session_id=session_id,
            namespace=namespace,
            tags=tags,
            metadata=metadata,
            importance=importance,
            expires_at=expires_at,
        )
        body: JsonObject = {"app_name": app_name, "user_id": user_id, "agent_id": agent_id, "memories": [note]}
        return (await self._transport.post(Stored, _MEMORY, body=body, repeatable=True)).stored

    async def share(
        self,
        app_name: str,
        text: str,
        *,
        visibility: Literal["agent", "app"] = "app",
        agent_id: str = "",
        source_id: str | None = None,
        tags: Sequence[str] = (),
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> int:
        """Remember a text for all users of an app, or of one agent of it."""
        note = _note(text, source_id=source_id, tags=tags, metadata=metadata)
        body: JsonObject = {
            "app_name": app_name,
            "visibility": visibility,
            "agent_id": agent_id,
            "memories": [note],
        }
        return (await self._transport.post(Stored, "/memory/shared", body=body, repeatable=True)).stored

    async def recall(
        self,
        app_name: str,
        user_id: str,
        query: str,
        *,
        k: int = 10,
        min_score: float = 0.0,
        agent_id: str | None = None,
        kinds: Sequence[Kind] | None = None,
        namespace: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        half_life_days: float | None = None,
        visibility: Sequence[Visibility] = _OWN,
    ) -> list[Hit]:
        """Return the memories that answer a query, best first.

        A value of `metadata` is compared for equality; `{"gte": 2, "lt": 5}` is a range.
        """
        body: JsonObject = {
            "app_name": app_name,
            "user_id": user_id,
            "query": query,
            "k": k,
            "min_score": min_score,
            "agent_id": agent_id,
            "kinds": None if kinds is None else list(kinds),
            "namespace": namespace,
            "since": _time(since),
            "until": _time(until),
            "tags": None if tags is None else list(tags),
            "metadata": None if metadata is None else dict(metadata),
            "half_life_days": half_life_days,
            "visibility": list(visibility),
        }
        return (await self._transport.post(Hits, "/memory/recall", body=body, repeatable=True)).hits

    async def context(
        self,
        app_name: str,
        user_id: str,
        query: str,
        *,
        session_id: str | None = None,
        agent_id: str | None = None,
        budget_tokens: int = 2000,
        recent_turns: int = 20,
        k: int = 20,
        min_score: float = 0.3,
        kinds: Sequence[Kind] | None = None,
        namespace: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        tags: Sequence[str] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        half_life_days: float | None = None,
        visibility: Sequence[Visibility] = _OWN,
    ) -> PromptContext:
        """Return what a prompt needs within a budget: working memory and recent turns of a session, and memories.

        `session_id` is the name of the session, not its thread id.
        """
        body: JsonObject = {
            "app_name": app_name,
            "user_id": user_id,
            "query": query,
            "session_id": session_id,
            "agent_id": agent_id,
            "budget_tokens": budget_tokens,
            "recent_turns": recent_turns,
            "k": k,
            "min_score": min_score,
            "kinds": None if kinds is None else list(kinds),
            "namespace": namespace,
            "since": _time(since),
            "until": _time(until),
            "tags": None if tags is None else list(tags),
            "metadata": None if metadata is None else dict(metadata),
            "half_life_days": half_life_days,
            "visibility": list(visibility),
        }
        return await self._transport.post(PromptContext, "/memory/context", body=body, repeatable=True)

    async def search_messages(
        self,
        app_name: str,
        query: str,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        k: int = 10,
        min_score: float = 0.0,
        roles: Sequence[Role] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Sequence[MessageHit]:
        """Return the messages of an app, of a user or of one session of a user that answer a query, best first.

        New messages are found after some seconds.
        """
        body: JsonObject = {
            "app_name": app_name,
            "user_id": user_id,
            "session_id": session_id,
            "query": query,
            "k": k,
            "min_score": min_score,
            "roles": None if roles is None else [*roles],
            "since": _time(since),
            "until": _time(until),
        }
        path = "/memory/messages/search"
        return (await self._transport.post(MessageHits, path, body=body, repeatable=True)).hits

    async def list(
        self,
        app_name: str,
        user_id: str,
        *,
        agent_id: str | None = None,
        kinds: Sequence[Kind] | None = None,
        namespace: str | None = None,
        tags: Sequence[str] | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> MemoryPage:
        """Return a page of memories, newest first; `each` reads all pages."""
        query = {"app_name": app_name, "user_id": user_id, "agent_id": agent_id, "namespace": namespace}
        return await self._transport.get(
            MemoryPage, _MEMORY, query={**query, "kind": kinds, "tag": tags, "limit": limit, "before": before}
        )

    async def each(
        self, app_name: str, user_id: str, *, kinds: Sequence[Kind] | None = None, tags: Sequence[str] | None = None
    ) -> AsyncIterator[Memory]:
        """Yield all memories of a user, newest first."""
        before: str | None = None
        while True:
            page = await self.list(app_name, user_id, kinds=kinds, tags=tags, before=before)
            for memory in page.memories:
                yield memory
            if (before := page.next_before) is None:
                return

    async def forget(self, app_name: str, user_id: str, memory_id: str) -> None:
        """Delete a memory for good, with its fact or episode."""
        query = {"app_name": app_name, "user_id": user_id}
        await self._transport.delete("/memory/{memory_id}", memory_id, query=query)

    async def set_fact(
        self,
        app_name: str,
        user_id: str,
        key: str,
        value: JsonValue,
        *,
        namespace: str = "",
        agent_id: str = "",
        text: str | None = None,
    ) -> Fact:
        """Set a fact; its earlier values stay in its history. Recall reads `text`, by default key and value."""
        body: JsonObject = {
            "app_name": app_name,
            "user_id": user_id,
            "agent_id": agent_id,
            "namespace": namespace,
            "key": key,
            "value": value,
            "text": text,
        }
        return parse(Fact, await self._transport.call("PUT", _FACTS, body=body, repeatable=True))

    async def fact(
        self,
        app_name: str,
        user_id: str,
        key: str,
        *,
        namespace: str = "",
        agent_id: str = "",
        as_of: datetime | None = None,
    ) -> Fact | None:
        """Return a fact, or the value that it had at a time; None if there is none."""
        query = {"app_name": app_name, "user_id": user_id, "agent_id": agent_id, "namespace": namespace, "key": key}
        try:
            return await self._transport.get(Fact, _FACT, query={**query, "as_of": as_of})
        except NotFoundError:
            return None

    async def fact_history(
        self, app_name: str, user_id: str, key: str, *, namespace: str = "", agent_id: str = "", limit: int = 100
    ) -> Sequence[FactVersion]:
        """Return the values of a fact, newest first."""
        query = {"app_name": app_name, "user_id": user_id, "agent_id": agent_id, "namespace": namespace, "key": key}
        path = "/memory/long-term/history"
        return (await self._transport.get(FactHistory, path, query={**query, "limit": limit})).versions

    async def delete_fact(
        self, app_name: str, user_id: str, key: str, *, namespace: str = "", agent_id: str = ""
    ) -> None:
        query = {"app_name": app_name, "user_id": user_id, "agent_id": agent_id, "namespace": namespace, "key": key}
        await self._transport.delete(_FACT, query=query)


def _note(
    text: str,
    *,
    source_id: str | None,
    session_id: str | None = None,
    namespace: str = "",
    tags: Sequence[str] = (),
    metadata: Mapping[str, JsonValue] | None = None,
    importance: float | None = None,
    expires_at: datetime | None = None,
) -> JsonObject:
    return {
        # Chosen before the first attempt: a repeated call stores the text once.
        "source_id": source_id or str(uuid4()),
        "text": text,
        "session_id": session_id,
        "namespace": namespace,
        "tags": list(tags),
        "metadata": dict(metadata or {}),
        "importance": importance,
        "expires_at": _time(expires_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
