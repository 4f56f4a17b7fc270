"""Artifacts: save, find, read, list and delete the files of sessions and users.

Bytes up to `artifact_database_bytes` are stored with the row of their blob. Larger ones go to a store: first the row of
the blob says that bytes are about to be written, then they are written, then the artifact refers to them, in the
transaction that makes it visible. So an artifact always has its bytes, and after a crash the sweep finds bytes that no
artifact refers to by their row.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg

from cognizes.engine.artifacts.stores import READ_BYTES, BlobStore, choose_store
from cognizes.engine.concurrency import Sweeper, WakeUp, retry_while_unavailable
from cognizes.engine.database import Database
from cognizes.engine.database.documents import check_depth, decode_cursor, dump_json, encode_cursor, load_json
from cognizes.engine.database.tenancy import acting_as_engine
from cognizes.engine.errors import (
    ArtifactStoreError,
    ConflictError,
    EngineError,
    InvalidInputError,
    LimitExceededError,
    NotFoundError,
)
from cognizes.engine.models import JsonObject, Page, Session, new_id
from cognizes.engine.pulse.events import check_name, check_object, check_text
from cognizes.engine.settings import Settings
from cognizes.engine.supervision import SupervisedLoop

logger = logging.getLogger(__name__)

USER_PREFIX = "user:"
"""The prefix of names that belong to the user instead of the session."""
MAX_FILENAME_LENGTH = 1024
_MAX_METADATA_BYTES = 16 * 1024
_MAX_MIME_LENGTH = 255
_MAX_PAGE = 1000
_LARGEST_VERSION = 2**31 - 1
_UPLOAD_LEASE = timedelta(hours=6)
"""How long an upload may take; the bytes of one that never ended are deleted after it."""
_SWEEP_SECONDS = 60.0
_SWEEP_BATCH = 100


@dataclass(frozen=True)
class ArtifactScope:
    """The owner of artifacts: a session, or a user of an app if `session_id` is None."""

    app_name: str
    user_id: str
    session_id: str | None = None

    def __post_init__(self) -> None:
        check_name("app_name", self.app_name)
        check_name("user_id", self.user_id)
        if self.session_id is not None and not check_text("session_id", self.session_id).strip():
            raise InvalidInputError("session_id is blank; name a session, or give None for artifacts of the user")

    @classmethod
    def of(cls, session: Session) -> ArtifactScope:
        return cls(session.app_name, session.user_id, session.id)

    @property
    def columns(self) -> tuple[str, str, str | None]:
        return self.app_name, self.user_id, self.session_id


@dataclass(frozen=True)
class Artifact:
    """One version of a file. `scope.session_id` is None for a file of the user; versions begin at 0."""

    id: str
    scope: ArtifactScope
    filename: str
    version: int
    mime_type: str | None
    size: int
    sha256: str
    metadata: JsonObject
    created_at: datetime
    attributes: JsonObject = field(default_factory=dict, repr=False)
    blob_id: UUID | None = field(default=None, repr=False, compare=False)
    store: str | None = field(default=None, repr=False, compare=False)

    @property
    def key(self) -> str:
        """The name with the prefix of its scope: `user:photo.png` for a file of the user."""
        return self.filename if self.scope.session_id is not None else f"{USER_PREFIX}{self.filename}"

    def to_json(self) -> JsonObject:
        return {
            "filename": self.key,
            "version": self.version,
            "mime_type": self.mime_type,
            "size": self.size,
            "sha256": self.sha256,
            "metadata": self.metadata,
            "created_at": self.created_at.isoformat(),
        }


class Artifacts:
    """The artifacts of all apps. A name that begins with `user:` belongs to the user, whatever the session."""

    def __init__(self, database: Database, settings: Settings, *, sweeper: Sweeper) -> None:
        self._database = database
        self._settings = settings
        self._sweeper = sweeper
        self._store: BlobStore = choose_store(settings)
        self._wake_up = WakeUp()
        self._one_sweep = asyncio.Lock()
        self._sweeping: SupervisedLoop | None = None

    async def start(self) -> None:
        """Begin to delete bytes that no artifact refers to, in the background."""
        self._sweeping = self._sweeper.start("artifacts", self.sweep, seconds=_SWEEP_SECONDS, wake_up=self._wake_up)

    async def close(self) -> None:
        if self._sweeping is not None:
            await self._sweeping.stop()
            self._sweeping = None

    async def save(
        self,
        scope: ArtifactScope,
        filename: str,
        data: bytes | AsyncIterable[bytes],
        *,
        mime_type: str | None = None,
        metadata: JsonObject | None = None,
        attributes: JsonObject | None = None,
    ) -> Artifact:
        """Store the next version of a file and return it.

        Data that arrives in chunks is never whole in memory if it is larger than `artifact_database_bytes`.
        `LimitExceededError` above `max_artifact_bytes`; `NotFoundError` if the session was deleted. After an error
        nothing is stored.
        """
        owner, name = _resolve(scope, filename)
        draft = Artifact(
            id=str(new_id()),
            scope=owner,
            filename=name,
            version=0,
            mime_type=None if mime_type is None else check_text("mime_type", mime_type, longest=_MAX_MIME_LENGTH),
            size=0,
            sha256="",
            metadata=self._check_metadata("metadata", metadata),
            created_at=datetime.now(UTC),
            attributes=self._check_metadata("attributes", attributes),
            blob_id=new_id(),
        )
        source = _Measured(_chunks_of(data), limit=self._settings.max_artifact_bytes)
        head = await source.read_up_to(self._settings.artifact_database_bytes)
        if source.has_ended:
            return await self._insert(draft, source, head)
        return await self._upload(draft, source, head)

    async def find(self, scope: ArtifactScope, filename: str, *, version: int | None = None) -> Artifact | None:
        """Return a version of a file, by default the newest; None if there is none."""
        row = await self._find_row(scope, filename, version, with_data=False)
        return None if row is None else _artifact(scope, row)

    async def get(self, scope: ArtifactScope, filename: str, *, version: int | None = None) -> Artifact:
        """Return a version of a file, by default the newest; `NotFoundError` if there is none."""
        found = await self.find(scope, filename, version=version)
        if found is None:
            which = "" if version is None else f" in version {version}"
            raise NotFoundError(f"there is no artifact {filename!r}{which}")
        return found

    async def load(
        self, scope: ArtifactScope, filename: str, *, version: int | None = None
    ) -> tuple[Artifact, bytes] | None:
        """Return a version of a file with its bytes; one round trip if they are in the database."""
        row = await self._find_row(scope, filename, version, with_data=True)
        if row is None:
            return None
        artifact = _artifact(scope, row)
        return artifact, await self.read(artifact) if row["store"] is not None else row["data"]

    async def read(self, artifact: Artifact) -> bytes:
        """Return all bytes of an artifact; `ArtifactStoreError` if they are not those that were saved."""
        async with aclosing(self.stream(artifact)) as chunks:
            data = b"".join([chunk async for chunk in chunks])
        if hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise ArtifactStoreError(f"the bytes of {artifact.key!r} are damaged; restore the store from a backup")
        return data

    async def stream(
        self, artifact: Artifact, *, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an artifact from `start` up to and without `end`, in chunks."""
        end = artifact.size if end is None else min(end, artifact.size)
        if artifact.blob_id is None:
            raise InvalidInputError("this Artifact was not read from the engine; use find() or save()")
        if artifact.store is None:
            while start < end:
                length = min(READ_BYTES, end - start)
                row = await self._database.fetch_row("read_artifact_bytes", artifact.blob_id, start + 1, length)
                if row is None:
                    raise NotFoundError(f"the artifact {artifact.key!r} was deleted while it was read")
                start += len(row["data"])
                yield row["data"]
            return
        await self._check_store(artifact)
        async with aclosing(self._store.read(artifact.blob_id, start=start, end=end)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def read_page(self, scope: ArtifactScope, *, limit: int = 100, cursor: str | None = None) -> Page[Artifact]:
        """Return a page of the newest versions, by name: of the session first, then of its user."""
        if not 1 <= limit <= _MAX_PAGE:
            raise InvalidInputError(f"invalid limit {limit}; it must be between 1 and {_MAX_PAGE}")
        is_user, name = decode_cursor(cursor, _position) if cursor else (None, "")
        rows = await self._database.fetch("list_artifacts", *scope.columns, is_user, name, limit + 1)
        items = [_artifact(scope, row) for row in rows[:limit]]
        return Page(items, _encode_cursor(items[-1]) if len(rows) > limit else None)

    async def list_keys(self, scope: ArtifactScope) -> list[str]:
        """Return the names of all artifacts of a session and of its user, sorted."""
        return sorted(row["key"] for row in await self._database.fetch("list_artifact_keys", *scope.columns))

    async def versions(self, scope: ArtifactScope, filename: str) -> list[Artifact]:
        """Return all versions of a file, oldest first; none if there is no such file."""
        owner, name = _resolve(scope, filename)
        rows = await self._database.fetch("list_artifact_versions", *owner.columns, name)
        return [_artifact(owner, row) for row in rows]

    async def delete(self, scope: ArtifactScope, filename: str) -> int:
        """Delete all versions of a file with their bytes; return how many there were."""
        owner, name = _resolve(scope, filename)
        deleted = await self._database.fetch("delete_artifact", *owner.columns, name)
        self._wake_up.notify()
        return len(deleted)

    async def sweep(self) -> int:
        """Delete the bytes in the store that no artifact refers to any more; return how many blobs there were.

        A sweep in progress is awaited first, so its deletions are done when this returns.
        """
        identity = await self._store.identity(create=False)
        if identity is None:
            return 0
        total = 0
        async with self._one_sweep:
            with acting_as_engine():
                while rows := await self._database.fetch("claim_deleted_blobs", identity, _SWEEP_BATCH):
                    deleted = [row["id"] for row in rows if await self._delete_bytes(row["id"])]
                    await self._database.fetch("remove_deleted_blobs", deleted)
                    total += len(deleted)
        return total

    async def _delete_bytes(self, blob_id: UUID) -> bool:
        try:
            await self._store.delete(blob_id)
        except ArtifactStoreError as error:
            logger.warning("the bytes of blob %s could not be deleted and stay for now: %s", blob_id, error)
            return False
        return True

    # Saving

    async def _upload(self, draft: Artifact, source: _Measured, head: bytes) -> Artifact:
        identity = await self._store.identity()
        await self._database.fetch(
            "begin_artifact_upload", draft.blob_id, draft.scope.app_name, identity, _UPLOAD_LEASE
        )
        assert draft.blob_id is not None  # noqa: S101 - every draft has one
        try:
            await self._store.write(draft.blob_id, source.with_head(head))
            return await self._insert(replace(draft, store=identity), source, None)
        except BaseException:
            # Without an answer of the database the lease of the upload deletes the bytes.
            with suppress(EngineError):
                await self._database.fetch("abandon_artifact_upload", draft.blob_id)
                self._wake_up.notify()
            raise

    async def _insert(self, draft: Artifact, source: _Measured, data: bytes | None) -> Artifact:
        digest = source.digest
        call = partial(
            self._database.fetch_row,
            "save_artifact",
            UUID(draft.id),
            *draft.scope.columns,
            draft.filename,
            draft.mime_type,
            source.size,
            digest,
            dump_json(draft.metadata),
            dump_json(draft.attributes),
            draft.blob_id,
            data,
        )
        row = await retry_while_unavailable(call, seconds=self._settings.retry_seconds)
        assert row is not None  # noqa: S101 - the function returns one row
        if row["status"] == "deleted":
            raise NotFoundError(f"the session {draft.scope.session_id!r} was deleted; nothing was stored")
        if row["status"] == "expired":
            raise ConflictError(f"the upload of {draft.key!r} took longer than {_UPLOAD_LEASE}; nothing was stored")
        return replace(
            draft, version=row["version"], created_at=row["created_at"], size=source.size, sha256=digest.hex()
        )

    def _check_metadata(self, what: str, value: JsonObject | None) -> JsonObject:
        given = check_object(what, value if value is not None else {})
        text = dump_json(given)
        check_depth(text, given, self._settings.max_json_depth)
        if len(text) > _MAX_METADATA_BYTES:
            raise LimitExceededError(f"{what} of an artifact", size=len(text), limit=_MAX_METADATA_BYTES)
        return given

    # Reading

    async def _find_row(
        self, scope: ArtifactScope, filename: str, version: int | None, *, with_data: bool
    ) -> asyncpg.Record | None:
        owner, name = _resolve(scope, filename)
        if version is not None and not 0 <= version <= _LARGEST_VERSION:
            return None
        return await self._database.fetch_row("find_artifact", *owner.columns, name, version, with_data)

    async def _check_store(self, artifact: Artifact) -> None:
        own = await self._store.identity(create=False)
        if artifact.store != own:
            raise ArtifactStoreError(
                f"the bytes of {artifact.key!r} are in the store {artifact.store}, and this server uses {own}; set "
                "COGNIZES_ARTIFACT_STORE to the directory or bucket that all servers of the database share"
            )


class _Measured:
    """Counts and hashes chunks while they are read, and ends them with an error above a limit."""

    def __init__(self, chunks: AsyncIterator[bytes], *, limit: int) -> None:
        self._chunks = chunks
        self._limit = limit
        self._hash = hashlib.sha256()
        self.size = 0
        self.has_ended = False

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    async def read_up_to(self, size: int) -> bytes:
        """Return chunks until they have more than `size` bytes, or all of them."""
        head: list[bytes] = []
        async for chunk in self:
            head.append(chunk)
            if self.size > size:
                break
        return head[0] if len(head) == 1 else b"".join(head)

    async def with_head(self, head: bytes) -> AsyncGenerator[bytes, None]:
        yield head
        async for chunk in self:
            yield chunk

    def __aiter__(self) -> _Measured:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            self.has_ended = True
            raise
        self.size += len(chunk)
        if self.size > self._limit:
            raise LimitExceededError(
                "an artifact", size=self.size, limit=self._limit, setting="COGNIZES_MAX_ARTIFACT_BYTES"
            )
        self._hash.update(chunk)
        return chunk


async def _slices(data: bytes) -> AsyncGenerator[bytes, None]:
    yield data


def _chunks_of(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(data, bytes | bytearray | memoryview):
        return _slices(bytes(data))
    if isinstance(data, AsyncIterable):
        return aiter(data)
    raise InvalidInputError(f"data must be bytes or an async iterable of bytes, not {type(data).__name__}")


def _resolve(scope: ArtifactScope, filename: str) -> tuple[ArtifactScope, str]:
    """Return the scope that a name belongs to, and the name without its prefix."""
    name = check_text("filename", filename, longest=MAX_FILENAME_LENGTH)
    if name.startswith(USER_PREFIX):
        scope, name = replace(scope, session_id=None), name.removeprefix(USER_PREFIX)
    if not name.strip():
        raise InvalidInputError("filename is blank; give the artifact a name")
    return scope, name


def _artifact(scope: ArtifactScope, row: asyncpg.Record) -> Artifact:
    return Artifact(
        id=str(row["id"]),
        scope=replace(scope, session_id=row["session_id"]),
        filename=row["filename"],
        version=row["version"],
        mime_type=row["mime_type"],
        size=row["size"],
        sha256=row["sha256"].hex(),
        metadata=load_json(row["metadata"]),
        created_at=row["created_at"],
        attributes=load_json(row["attributes"]),
        blob_id=row["blob_id"],
        store=row["store"],
    )


def _encode_cursor(artifact: Artifact) -> str:
    return encode_cursor(artifact.scope.session_id is None, artifact.filename)


def _position(is_user: bool, name: str) -> tuple[bool, str]:
    return bool(is_user), check_text("cursor", name)
