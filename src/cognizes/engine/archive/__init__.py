"""Moving data out and in: the data of one user, threads as NDJSON, and backups of the whole database."""

from cognizes.engine.archive.threads import ImportedThreads, ThreadArchive
from cognizes.engine.archive.user_data import UserData

__all__ = ["ImportedThreads", "ThreadArchive", "UserData"]
