"""OpenMemoryService: ADK's memory service on this engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from cognizes.engine.adapters.adk.events import to_json
from cognizes.engine.adapters.engines import (
    SHARED_ENGINES,
    EngineLease,
    EngineUser,
    GivenEngine,
    known_settings,
    parse_address,
)
from cognizes.engine.database.documents import canonical_json
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.memory.records import Hit, MemoryScope, Remembered
from cognizes.engine.models import MAX_QUERY_LENGTH, JsonObject

_MICROSECONDS = 1_000_000


class OpenMemoryService(EngineUser, BaseMemoryService):
    """Memories of Google ADK in PostgreSQL, found by words of any script and by meaning.

    - Connects when first used; services with the same settings share one engine. `close()` releases it.
    - Adding is incremental and idempotent: a session that is added again brings only what is new.
    - A memory that was deleted stays deleted, also when its session is added again.
    - A search returns the best `max_results`, and besides turns also the agent's facts and episodes of that user.

    Other keyword arguments are settings of the engine (`pool_size`, `embedder`, …).
    """

    def __init__(
        self, database_url: str | None = None, *, uri: str | None = None, max_results: int = 10, **settings: Any
    ) -> None:
        """Accept `uri`, which `services.yaml` passes, as another name of `database_url`."""
        address = parse_address(database_url if database_url is not None else uri)
        options: dict[str, Any] = {"max_results": max_results} | settings | address.options
        self._max_results = int(options["max_results"])
        self._lease = EngineLease(
            SHARED_ENGINES.settings(known_settings(options, "OpenMemoryService") | address.settings)
        )

    async def flush(self) -> None:
        """Do nothing: additions are stored when they return."""

    # The interface of ADK

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the messages of a session; skip those that are stored."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add the messages of events. A search returns the metadata with them."""
        engine = await self.engine()
        turns = list(_turns(events, session_id, custom_metadata))
        await engine.memory.remember_turns(MemoryScope(app_name, user_id), turns)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add memories. One with an id replaces the memory of that id; one without an id is stored once."""
        engine = await self.engine()
        await engine.memory.remember(
            MemoryScope(app_name, user_id), [_note(memory, custom_metadata) for memory in memories]
        )

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the memories of a user that match a query best, best first."""
        engine = await self.engine()
        # ADK sends whole user messages as queries: the beginning of a long one is enough.
        hits = await engine.memory.recall(query[:MAX_QUERY_LENGTH], app=app_name, user=user_id, k=self._max_results)
        return SearchMemoryResponse(memories=[_entry(hit) for hit in hits])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory permanently, by the id that a search returned; ignore an unknown id."""
        if not memory_id:
            return
        engine = await self.engine()
        try:
            await engine.memory.forget(app_name, user_id, memory_id)
        except InvalidInputError:
            return


class HostedMemoryService(OpenMemoryService):
    """The memories of hosted agents, on the server's engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._lease = GivenEngine(engine)


def _turns(
    events: Sequence[Event], session_id: str | None, metadata: Mapping[str, object] | None
) -> Iterator[Remembered]:
    for event in events:
        text = _text(event.content)
        if event.content is None or not text:
            continue
        document = _document(event.content, metadata)
        moment = event.timestamp or 0.0
        yield Remembered(
            source_id=event.id or _digest([event.author, moment, document]),
            text=text,
            session_id=session_id,
            position=int(moment * _MICROSECONDS),
            author=event.author,
            content=document,
            created_at=datetime.fromtimestamp(moment, UTC) if moment else None,
        )


def _note(memory: MemoryEntry, metadata: Mapping[str, object] | None) -> Remembered:
    document = _document(memory.content, {**memory.custom_metadata, **(metadata or {})})
    document["timestamp"] = memory.timestamp
    return Remembered(
        source_id=memory.id or _digest([memory.author, document]),
        text=_text(memory.content),
        author=memory.author,
        content=document,
        created_at=_moment(memory.timestamp),
    )


def _document(content: types.Content, metadata: Mapping[str, object] | None) -> JsonObject:
    said: JsonObject = to_json(content.model_dump(exclude_none=True))
    return {"content": said, "custom_metadata": to_json(dict(metadata or {}))}


def _text(content: types.Content | None) -> str:
    """Return the text of a message without thoughts: searches do not return thoughts."""
    parts = (content.parts if content else None) or []
    return " ".join(part.text.strip() for part in parts if part.text and part.text.strip() and not part.thought)


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _moment(timestamp: str | None) -> datetime | None:
    """Return the time of an ISO timestamp; without a zone it is local time, as ADK writes it."""
    try:
        return datetime.fromisoformat(timestamp).astimezone(UTC) if timestamp else None
    except ValueError:
        return None


def _entry(hit: Hit) -> MemoryEntry:
    memory = hit.memory
    document = memory.content if isinstance(memory.content, dict) else {}
    said = document.get("content") or {"role": "user", "parts": [{"text": memory.text}]}
    about = {"kind": memory.kind, "session_id": memory.session_id, "source_id": memory.source_id, "score": hit.score}
    return MemoryEntry(
        id=memory.id,
        content=types.Content.model_validate(said),
        author=memory.author,
        timestamp=document.get("timestamp") or memory.created_at.astimezone().replace(tzinfo=None).isoformat(),
        custom_metadata={name: value for name, value in about.items() if value is not None}
        | document.get("custom_metadata", {}),
    )
