"""Attachments: images, audio and files of messages, stored as artifacts of their session.

A message refers to an attachment of its own session with the URL `attachment:<id>`. The id is of no use in another
session, so a reference never reaches the bytes of another user.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cognizes.engine.artifacts.artifacts import Artifact, Artifacts, ArtifactScope
from cognizes.engine.errors import InvalidInputError, NotFoundError
from cognizes.engine.models import JsonObject, Page, Session, new_id

SCHEME = "attachment:"
"""The scheme of a URL that refers to an attachment of the same session."""
UNKNOWN_TYPE = "application/octet-stream"
_PREFIX = "attachments/"
_MAX_NAME_LENGTH = 255
_MIME_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f/\\]")
_KINDS = {"image": "image", "audio": "audio", "video": "video"}


@dataclass(frozen=True)
class Attachment:
    """A file of a session to which its messages can refer."""

    id: str
    name: str
    mime_type: str
    size: int
    sha256: str
    created_at: datetime
    artifact: Artifact

    @property
    def kind(self) -> str:
        """Return the type of the AG-UI part that shows it: `image`, `audio`, `video` or `document`."""
        return _KINDS.get(self.mime_type.partition("/")[0], "document")

    def part(self) -> JsonObject:
        """Return the part of an AG-UI message that refers to this attachment."""
        return {
            "type": self.kind,
            "source": {"type": "url", "value": f"{SCHEME}{self.id}", "mimeType": self.mime_type},
            "metadata": {"name": self.name, "size": self.size},
        }


class Attachments:
    """The attachments of sessions."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    async def save(
        self, session: Session, data: bytes | AsyncIterable[bytes], *, name: str = "", mime_type: str | None = None
    ) -> Attachment:
        """Store a file; data that arrives in chunks is never whole in memory if it is large.

        `LimitExceededError` above `COGNIZES_MAX_ARTIFACT_BYTES`, `InvalidInputError` for an empty file. After an error
        nothing is stored.
        """
        attachment_id = str(new_id())
        kind = checked_type(mime_type)
        shown = _CONTROL.sub("_", name.strip())[-_MAX_NAME_LENGTH:].strip(". ") or "attachment"
        artifact = await self._artifacts.save(
            ArtifactScope.of(session),
            f"{_PREFIX}{attachment_id}",
            data,
            mime_type=kind,
            metadata={"name": shown},
        )
        if not artifact.size:
            await self._artifacts.delete(artifact.scope, artifact.filename)
            raise InvalidInputError("the attachment is empty; send its bytes as the body of the request")
        return _attachment(artifact)

    async def find(self, session: Session, attachment_id: str) -> Attachment | None:
        """Return an attachment of the session; None if the session has none of this id.

        An id has one spelling, so that readers can compare ids.
        """
        try:
            if str(UUID(attachment_id)) != attachment_id:
                return None
        except ValueError:
            return None
        found = await self._artifacts.find(ArtifactScope.of(session), f"{_PREFIX}{attachment_id}")
        return None if found is None else _attachment(found)

    async def get(self, session: Session, attachment_id: str) -> Attachment:
        """Return an attachment of the session; `NotFoundError` if the session has none of this id."""
        if (found := await self.find(session, attachment_id)) is None:
            raise NotFoundError(f"there is no attachment {attachment_id[:80]!r} in this session; upload it there")
        return found

    async def read_page(self, session: Session, *, limit: int = 100, cursor: str | None = None) -> Page[Attachment]:
        """Return a page of the session's attachments, in the order of their upload."""
        page = await self._artifacts.read_page(ArtifactScope.of(session), limit=limit, cursor=cursor)
        items = [
            _attachment(artifact)
            for artifact in page.items
            if artifact.filename.startswith(_PREFIX) and artifact.scope.session_id is not None
        ]
        return Page(items, page.next_cursor)

    async def read(self, attachment: Attachment) -> bytes:
        """Return all bytes."""
        return await self._artifacts.read(attachment.artifact)

    def stream(self, attachment: Attachment, *, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` up to and without `end`, in chunks."""
        return self._artifacts.stream(attachment.artifact, start=start, end=end)


def attachment_id_of(url: str) -> str | None:
    """Return the id of the attachment to which a URL refers; None for a URL of another scheme."""
    return url.removeprefix(SCHEME) if url.startswith(SCHEME) else None


def checked_type(given: str | None) -> str:
    """Return a media type without its parameters; `InvalidInputError` for a text that is none."""
    name = (given or "").partition(";")[0].strip().lower()
    if not name:
        return UNKNOWN_TYPE
    if not _MIME_TYPE.fullmatch(name):
        raise InvalidInputError(f"invalid media type {name[:80]!r}; send one such as image/png")
    return name


def _attachment(artifact: Artifact) -> Attachment:
    return Attachment(
        id=artifact.filename.removeprefix(_PREFIX),
        name=str(artifact.metadata.get("name") or "attachment"),
        mime_type=artifact.mime_type or UNKNOWN_TYPE,
        size=artifact.size,
        sha256=artifact.sha256,
        created_at=artifact.created_at,
        artifact=artifact,
    )
