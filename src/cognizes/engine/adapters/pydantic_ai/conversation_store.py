"""OpenConversationStore: Pydantic AI's conversation store on this engine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal
from uuid import UUID

import asyncpg
from pydantic import BaseModel, ValidationError
from pydantic_ai import DeferredToolRequests, ModelMessage, ModelMessagesTypeAdapter, RunUsage
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.ui.ag_ui import AGUIAdapter

from cognizes.engine.adapters.conversations import WriteAttempt, write
from cognizes.engine.adapters.engines import EngineUser, lease_engine
from cognizes.engine.database.documents import check_depth, dump_json, load_json, text_bytes
from cognizes.engine.engine import Engine
from cognizes.engine.errors import LimitExceededError, UnreadableConversationError
from cognizes.engine.hosting.turns import read_thread_messages
from cognizes.engine.pulse.events import check_name, check_text
from cognizes.engine.pulse.session_store import thread_uuid

WRITTEN_BY = version("pydantic-ai-slim")
"""The version of Pydantic AI, stored with every record and entry."""


class _RecordDocument(BaseModel):
    """The fields of a record that SQL does not read."""

    usage: RunUsage
    deferred_tool_requests: DeferredToolRequests | None
    forked_from: str | None
    forked_at: str | None
    format_version: Literal[1]


class OpenConversationStore(EngineUser, ConversationStore):
    """Conversations of Pydantic AI in PostgreSQL: revisions, scopes, forks and branches.

    - Connects when first used; services with the same settings share one engine. `close()` releases it.
    - A save stores the record and its new messages in one transaction, after PostgreSQL compared the revision.
    - Reading a history of any length is one round trip.
    - `delete` deletes the messages that no other conversation uses. A fork keeps the messages that it shares.
    - The scope of a conversation is its user: the export and the erasure of that user's data include it.
    - `read_thread` returns the conversation of a thread of the engine as a message history.
    - Two stores with different `app_name` share nothing; row level security separates them.

    Other keyword arguments are settings of the engine (`pool_size`, `db_schema`, …). `engine` is an open engine to use.
    """

    def __init__(
        self,
        database_url: str | None = None,
        *,
        app_name: str = "pydantic_ai",
        engine: Engine | None = None,
        **settings: Any,
    ) -> None:
        self.app_name = check_name("app_name", app_name)
        self._lease = lease_engine("OpenConversationStore", database_url, settings, engine=engine)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is none."""
        engine = await self.engine()
        row = await engine._database.fetch_row("read_conversation", self.app_name, _id(conversation_id))
        return None if row is None else _record(row)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of a scope, or all, the last saved first."""
        engine = await self.engine()
        wanted = None if scope is None else check_text("scope", scope)
        rows = await engine._database.fetch("list_conversations", self.app_name, wanted, limit)
        return [_record(row) for row in rows]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and its new entries, all or none; `ConversationConflict` if another writer was first."""
        engine = await self.engine()
        document = _RecordDocument(
            usage=record.usage,
            deferred_tool_requests=record.deferred_tool_requests,
            forked_from=record.forked_from,
            forked_at=record.forked_at,
            format_version=record.format_version,
        )
        messages = ModelMessagesTypeAdapter.dump_python([entry.message for entry in new_entries], mode="json")
        arguments = (
            self.app_name,
            _id(record.conversation_id),
            None if record.scope is None else check_name("scope", record.scope),
            record.head_id,
            record.branches,
            _encode(
                f"the record of conversation {record.conversation_id!r:.100}", document.model_dump(mode="json"), engine
            ),
            record.revision,
            record.updated_at,
            WRITTEN_BY,
            expected_revision,
        )
        entries = (
            [entry.id for entry in new_entries],
            [entry.parent_id for entry in new_entries],
            [entry.kind for entry in new_entries],
            [_encode("a message", message, engine) for message in messages],
        )

        async def attempt(state: WriteAttempt) -> object:
            return await engine._database.fetch_value("write_conversation", *arguments, state.is_repeated, *entries)

        if not await write(engine, attempt):
            raise ConversationConflict(record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a record, and the entries that no other one uses; `ConversationConflict` if its revision differs."""
        engine = await self.engine()
        may_be_gone = False

        async def attempt(state: WriteAttempt) -> object:
            nonlocal may_be_gone
            may_be_gone = state.is_repeated
            return await engine._database.fetch_value(
                "delete_conversation", self.app_name, _id(conversation_id), expected_revision
            )

        # After a lost answer the record may be deleted already; then no record with another revision is left.
        if not await write(engine, attempt) and not (may_be_gone and await self.read_record(conversation_id) is None):
            raise ConversationConflict(conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; `KeyError` if there is none."""
        (entry,) = await self.read_history(entry_id, limit=1)
        return entry

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to `head_id`, in order, or the last `limit`; `KeyError` if one was deleted."""
        if head_id is None or limit == 0:
            return []
        engine = await self.engine()
        rows = await engine._database.fetch(
            "read_conversation_history", self.app_name, check_text("id", head_id), limit
        )
        if not rows or (rows[-1]["parent_id"] is not None and (limit is None or len(rows) < limit)):
            raise KeyError(rows[-1]["parent_id"] if rows else head_id)
        rows.reverse()
        return [
            ConversationEntry(id=row["id"], parent_id=row["parent_id"], message=message, kind=row["kind"])
            for row, message in zip(rows, _messages(rows), strict=True)
        ]

    async def read_thread(self, thread_id: str | UUID) -> list[ModelMessage]:
        """Return the conversation of a thread of the engine as a message history, of any framework that wrote it."""
        messages = await read_thread_messages(await self.engine(), thread_uuid(thread_id))
        return AGUIAdapter.load_messages(messages)


def _id(conversation_id: str) -> str:
    return check_text("conversation_id", conversation_id)


def _name(conversation_id: str) -> str:
    return f"the record of conversation {conversation_id!r:.100}"


def _encode(what: str, value: object, engine: Engine) -> str:
    text = dump_json(value)
    if (size := text_bytes(text)) > (limit := engine.settings.max_event_bytes):
        raise LimitExceededError(what, size=size, limit=limit, setting="COGNIZES_MAX_EVENT_BYTES")
    check_depth(text, value, engine.settings.max_json_depth)
    return text


def _record(row: asyncpg.Record) -> ConversationRecord:
    try:
        document = _RecordDocument.model_validate(load_json(row["document"]))
    except ValidationError as error:
        raise _unreadable(_name(row["conversation_id"]), row["written_by"]) from error
    return ConversationRecord(
        conversation_id=row["conversation_id"],
        head_id=row["head_id"],
        usage=document.usage,
        deferred_tool_requests=document.deferred_tool_requests,
        scope=row["user_id"],
        forked_from=document.forked_from,
        forked_at=document.forked_at,
        branches=row["branches"],
        revision=row["revision"],
        updated_at=row["updated_at"],
        format_version=document.format_version,
    )


def _messages(rows: Sequence[asyncpg.Record]) -> list[ModelMessage]:
    for row in rows:
        if row["kind"] != "message":
            raise _unreadable(f"entry {row['id']} of the kind {row['kind']!r}", row["written_by"])
    try:
        return ModelMessagesTypeAdapter.validate_python([load_json(row["message"]) for row in rows])
    except ValidationError as error:
        place = error.errors()[0]["loc"][0]
        row = rows[place if isinstance(place, int) else 0]
        raise _unreadable(f"the message of entry {row['id']}", row["written_by"]) from error


def _unreadable(what: str, written_by: str) -> UnreadableConversationError:
    return UnreadableConversationError(
        f"cannot read {what}; pydantic-ai {written_by} wrote it and {WRITTEN_BY} is installed: install the version "
        "that wrote it or a later one"
    )
