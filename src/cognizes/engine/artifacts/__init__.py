"""Artifacts: files of sessions and users, in versions. Bytes are in PostgreSQL, a directory or an S3 bucket."""

from cognizes.engine.artifacts.artifacts import Artifact, Artifacts, ArtifactScope
from cognizes.engine.artifacts.attachments import Attachment, Attachments

__all__ = ["Artifact", "ArtifactScope", "Artifacts", "Attachment", "Attachments"]
