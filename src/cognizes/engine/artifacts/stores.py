"""Stores for bytes that are too large for the database: a directory, or an S3-compatible bucket.

A store keeps bytes under the id of their blob and knows nothing else of them. Its identity is stored with each blob, so
a process never looks for bytes in, or deletes them from, another directory or bucket than the one that has them.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from cognizes.engine.errors import ArtifactStoreError, SetupError
from cognizes.engine.settings import Settings

if TYPE_CHECKING:
    from obstore.store import S3Store

READ_BYTES = 256 * 1024
_IDENTITY_FILE = ".store"
_S3_SCHEME = "s3"


class BlobStore(Protocol):
    async def identity(self, *, create: bool = True) -> str | None:
        """Return the identity of the store; None if it does not exist and `create` is false."""

    async def write(self, blob_id: UUID, chunks: AsyncIterator[bytes]) -> None:
        """Write bytes; they survive a crash of the machine when this returns."""

    def read(self, blob_id: UUID, *, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` up to and without `end`."""

    async def delete(self, blob_id: UUID) -> None:
        """Delete bytes; do nothing if there are none."""


def choose_store(settings: Settings) -> BlobStore:
    """Return the store of the settings: a bucket for `s3://bucket/prefix`, else a directory."""
    place = settings.artifact_store
    if place.startswith(f"{_S3_SCHEME}://"):
        return S3BlobStore(place, settings)
    if "://" in place:
        raise SetupError(f"unknown store of artifacts {place!r}; COGNIZES_ARTIFACT_STORE is a directory or s3://bucket")
    return FileBlobStore(Path(place).expanduser().resolve() if place else settings.data_dir / "artifacts")


class FileBlobStore:
    """Bytes as files below a directory, which all servers of a database share.

    The directory has a random identity in a file of its own, which moves with it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._identity: str | None = None

    async def identity(self, *, create: bool = True) -> str | None:
        if self._identity is None:
            self._identity = await asyncio.to_thread(self._read_identity, create)
        return self._identity

    async def write(self, blob_id: UUID, chunks: AsyncIterator[bytes]) -> None:
        path = self._path(blob_id)
        try:
            file = await asyncio.to_thread(_create, path)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            async for chunk in chunks:
                await asyncio.to_thread(_write, file, chunk)
            await asyncio.to_thread(_flush, file)
        finally:
            # Closing writes what is buffered, which fails on a full disk.
            with suppress(OSError):
                await asyncio.to_thread(file.close)

    async def read(self, blob_id: UUID, *, start: int, end: int) -> AsyncGenerator[bytes, None]:
        path = self._path(blob_id)
        try:
            file = await asyncio.to_thread(_open, path, start)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            while start < end:
                chunk = await asyncio.to_thread(file.read, min(READ_BYTES, end - start))
                if not chunk:
                    raise ArtifactStoreError(f"{path} ends after {start} bytes; restore it from a backup")
                start += len(chunk)
                yield chunk
        finally:
            await asyncio.to_thread(file.close)

    async def delete(self, blob_id: UUID) -> None:
        path = self._path(blob_id)
        try:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        except OSError as error:
            raise _unusable(path, error) from error

    def _path(self, blob_id: UUID) -> Path:
        return self._directory / blob_id.hex[-2:] / blob_id.hex

    def _read_identity(self, create: bool) -> str | None:
        path = self._directory / _IDENTITY_FILE
        try:
            if create and not path.exists():
                self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._write_identity(path)
            return f"file:{path.read_text('ascii').strip()}"
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _unusable(path, error) from error

    def _write_identity(self, path: Path) -> None:
        """Create the file at once with its content: of several processes that start, one wins."""
        own = path.with_name(f"{path.name}.{uuid4().hex}")
        own.write_text(uuid4().hex, "ascii")
        try:
            with suppress(FileExistsError):
                os.link(own, path)
        finally:
            own.unlink()


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    return path.open("xb")


def _open(path: Path, start: int) -> BinaryIO:
    file = path.open("rb")
    file.seek(start)
    return file


def _write(file: BinaryIO, chunk: bytes) -> None:
    try:
        file.write(chunk)
    except OSError as error:
        raise _unusable(Path(file.name), error) from error


def _flush(file: BinaryIO) -> None:
    """Write a file and the entry of its directory to the disk."""
    path = Path(file.name)
    try:
        file.flush()
        os.fsync(file.fileno())
        for directory in (path.parent, path.parent.parent):
            entry = os.open(directory, os.O_RDONLY)
            try:
                os.fsync(entry)
            finally:
                os.close(entry)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> ArtifactStoreError:
    return ArtifactStoreError(f"the store of artifacts cannot use {path}: {error}")


class S3BlobStore:
    """Bytes as objects of an S3-compatible bucket.

    Uploads have several parts. A crash in the middle of one leaves parts that only the bucket's own lifecycle rule for
    incomplete uploads removes.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        parts = urlsplit(url)
        if not parts.netloc:
            raise SetupError(
                f"COGNIZES_ARTIFACT_STORE={url!r} names no bucket; write s3://bucket or s3://bucket/prefix"
            )
        if importlib.util.find_spec("obstore") is None:
            raise SetupError("an S3 store of artifacts needs obstore; get it with `pip install 'cognizes-engine[s3]'`")
        self._bucket = parts.netloc
        self._prefix = parts.path.strip("/")
        self._settings = settings

    async def identity(self, *, create: bool = True) -> str | None:
        return f"{_S3_SCHEME}://{self._bucket}/{self._prefix}"

    async def write(self, blob_id: UUID, chunks: AsyncIterator[bytes]) -> None:
        source = _Source(chunks)
        try:
            await self._store.put_async(self._key(blob_id), source, use_multipart=True)
        except Exception as error:
            # The library wraps what the iterator raises: the caller wants the cause.
            if source.failure is not None:
                raise source.failure from error
            raise self._failed("written", error) from error

    async def read(self, blob_id: UUID, *, start: int, end: int) -> AsyncGenerator[bytes, None]:
        if start >= end:
            return
        try:
            found = await self._store.get_async(self._key(blob_id), options={"range": (start, end)})
            async for chunk in found.stream(min_chunk_size=READ_BYTES):
                yield bytes(chunk)
        except (self._errors, OSError) as error:
            raise self._failed("read", error) from error

    async def delete(self, blob_id: UUID) -> None:
        try:
            await self._store.delete_async(self._key(blob_id))
        except FileNotFoundError:
            return
        except (self._errors, OSError) as error:
            raise self._failed("deleted", error) from error

    @cached_property
    def _store(self) -> S3Store:
        # Imported on demand: it is an extra.
        from obstore.store import S3Store  # noqa: PLC0415

        settings = self._settings
        secret = settings.artifact_secret_key
        given = {
            "endpoint": settings.artifact_endpoint,
            "region": settings.artifact_region,
            "access_key_id": settings.artifact_access_key,
            "secret_access_key": secret.get_secret_value() if secret else "",
        }
        # What is not set here comes from the environment (AWS_…) or the role of the machine.
        return S3Store(
            self._bucket,
            prefix=self._prefix or None,
            config={name: value for name, value in given.items() if value},  # type: ignore[arg-type]
            client_options={"allow_http": settings.artifact_endpoint.startswith("http://")},
        )

    @cached_property
    def _errors(self) -> type[Exception]:
        from obstore.exceptions import BaseError  # noqa: PLC0415

        return BaseError

    def _key(self, blob_id: UUID) -> str:
        return f"{blob_id.hex[-2:]}/{blob_id.hex}"

    def _failed(self, what: str, error: Exception) -> ArtifactStoreError:
        place = f"{_S3_SCHEME}://{self._bucket}/{self._prefix}"
        return ArtifactStoreError(f"an artifact could not be {what} in {place}: {error}")


class _Source:
    """Iterates over chunks and remembers why it failed."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.failure: BaseException | None = None

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise
