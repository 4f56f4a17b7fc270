"""OpenArtifactService: ADK's artifact service on this engine."""

from __future__ import annotations

from typing import Any, cast

from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types
from typing_extensions import override

from cognizes.engine.adapters.adk.events import to_json
from cognizes.engine.adapters.engines import (
    SHARED_ENGINES,
    EngineLease,
    EngineUser,
    GivenEngine,
    known_settings,
    parse_address,
)
from cognizes.engine.artifacts import Artifact, ArtifactScope
from cognizes.engine.engine import Engine
from cognizes.engine.errors import InvalidInputError
from cognizes.engine.models import JsonObject

_PART = "adk_part"
"""The attribute with the fields of a part other than its bytes."""
_MAX_REFERENCES = 10
"""How many artifacts may refer to each other before one that has bytes."""
_OCTETS = "application/octet-stream"
_REMOVED = types.Part(inline_data=types.Blob(mime_type=_OCTETS, data=b""))
"""What ADK saves to remove an artifact when it rewinds a session."""


class OpenArtifactService(EngineUser, BaseArtifactService):
    """Artifacts of Google ADK in PostgreSQL, and large ones in a directory or an S3 bucket.

    - Connects when first used; services with the same settings share one engine. `close()` releases it.
    - A file name that begins with `user:`, or no session, means an artifact of the user.
    - Versions count from 0 without gaps, also for concurrent writers. Deleting a session deletes its artifacts.
    - A part that refers to an `artifact://` URI of the same user is resolved when it is loaded.

    Keyword arguments are settings of the engine (`artifact_store`, `max_artifact_bytes`, …).
    """

    def __init__(self, database_url: str | None = None, *, uri: str | None = None, **settings: Any) -> None:
        """Accept `uri`, which `services.yaml` passes, as another name of `database_url`."""
        address = parse_address(database_url if database_url is not None else uri)
        options: dict[str, Any] = settings | address.options
        self._lease = EngineLease(
            SHARED_ENGINES.settings(known_settings(options, "OpenArtifactService") | address.settings)
        )

    @override
    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        scope = _scope(app_name, user_id, session_id)
        part = ensure_part(artifact)
        data, mime_type = _bytes_of(part, scope)
        engine = await self.engine()
        try:
            saved = await engine.artifacts.save(
                scope,
                filename,
                data,
                mime_type=mime_type,
                metadata=to_json(custom_metadata or {}),
                attributes={_PART: _fields_of(part)},
            )
        except InvalidInputError as error:
            raise InputValidationError(str(error)) from error
        return saved.version

    @override
    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return the part that was saved; None if there is none, or if a rewind of the session removed it."""
        engine, scope = await self.engine(), _scope(app_name, user_id, session_id)
        for _ in range(_MAX_REFERENCES + 1):
            loaded = await engine.artifacts.load(scope, filename, version=version)
            if loaded is None:
                return None
            part = _part_of(*loaded)
            if not artifact_util.is_artifact_ref(part):
                return None if part == _REMOVED else part
            target = _target_of(part, scope)
            filename, version = target.filename, target.version
            scope = ArtifactScope(target.app_name, target.user_id, target.session_id)
        raise InputValidationError(f"more than {_MAX_REFERENCES} artifacts refer to each other; save one with bytes")

    @override
    async def list_artifact_keys(self, *, app_name: str, user_id: str, session_id: str | None = None) -> list[str]:
        engine = await self.engine()
        return await engine.artifacts.list_keys(_scope(app_name, user_id, session_id))

    @override
    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        engine = await self.engine()
        await engine.artifacts.delete(_scope(app_name, user_id, session_id), filename)

    @override
    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        engine = await self.engine()
        versions = await engine.artifacts.versions(_scope(app_name, user_id, session_id), filename)
        return [artifact.version for artifact in versions]

    @override
    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        engine = await self.engine()
        versions = await engine.artifacts.versions(_scope(app_name, user_id, session_id), filename)
        return [_version_of(artifact) for artifact in versions]

    @override
    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        engine = await self.engine()
        found = await engine.artifacts.find(_scope(app_name, user_id, session_id), filename, version=version)
        return None if found is None else _version_of(found)


class HostedArtifactService(OpenArtifactService):
    """The artifacts of hosted agents, on the server's engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._lease = GivenEngine(engine)


def _scope(app_name: str, user_id: str, session_id: str | None) -> ArtifactScope:
    try:
        return ArtifactScope(app_name, user_id, session_id)
    except InvalidInputError as error:
        raise InputValidationError(str(error)) from error


def _bytes_of(part: types.Part, scope: ArtifactScope) -> tuple[bytes, str | None]:
    """Return the bytes of a part and their type. A reference has none: its URI is in the fields of the part."""
    if part.inline_data is not None:
        return part.inline_data.data or b"", part.inline_data.mime_type
    if part.text is not None:
        return part.text.encode(errors="surrogatepass"), "text/plain"
    if part.file_data is None:
        raise InputValidationError("an artifact needs inline_data, text or file_data; this part has none of them")
    if artifact_util.is_artifact_ref(part):
        _target_of(part, scope)
        return b"", None
    return b"", part.file_data.mime_type


def _target_of(part: types.Part, scope: ArtifactScope) -> artifact_util.ParsedArtifactUri:
    """Return the artifact that a part refers to; only artifacts of the same session or user may be referred to."""
    uri = cast(str, part.file_data.file_uri if part.file_data else None)
    target = artifact_util.parse_artifact_uri(uri)
    if target is None:
        raise InputValidationError(f"invalid artifact reference {uri!r}")
    artifact_util.validate_artifact_reference_scope(
        app_name=scope.app_name, user_id=scope.user_id, session_id=scope.session_id, parsed_uri=target
    )
    return target


def _fields_of(part: types.Part) -> JsonObject:
    fields: JsonObject = part.model_dump(
        mode="json", exclude_none=True, exclude={"inline_data": {"data"}, "text": True}
    )
    return fields


def _part_of(artifact: Artifact, data: bytes) -> types.Part:
    fields = artifact.attributes.get(_PART)
    if fields is None:
        # Saved over REST or with `engine.artifacts`.
        return types.Part(inline_data=types.Blob(data=data, mime_type=artifact.mime_type or _OCTETS))
    part = types.Part.model_validate(fields)
    if part.inline_data is not None:
        part.inline_data.data = data
    elif part.file_data is None:
        part.text = data.decode(errors="surrogatepass")
    return part


def _version_of(artifact: Artifact) -> ArtifactVersion:
    scope = artifact.scope
    name = artifact.key if scope.session_id is None else artifact.filename
    uri = artifact_util.get_artifact_uri(scope.app_name, scope.user_id, name, artifact.version, scope.session_id)
    return ArtifactVersion(
        version=artifact.version,
        canonical_uri=uri,
        custom_metadata=artifact.metadata,
        create_time=artifact.created_at.timestamp(),
        mime_type=artifact.mime_type,
    )
