"""Which backend carries the chunks of an engine's streams."""

from __future__ import annotations

from cognizes.engine.database import Database
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings
from cognizes.engine.streams.delta_stream import DeltaStream
from cognizes.engine.streams.postgres_deltas import PostgresDeltas
from cognizes.engine.supervision import Supervisor


def choose_backend(settings: Settings, database: Database, supervisor: Supervisor | None = None) -> DeltaStream:
    """Redis when a URL is set, else PostgreSQL."""
    if settings.redis_url is None:
        return PostgresDeltas(database, idle_seconds=settings.stream_idle_seconds)
    try:
        from cognizes.engine.streams.redis_deltas import RedisDeltas  # noqa: PLC0415 - an extra, loaded when wanted
    except ImportError as error:
        raise SetupError(
            "REDIS_URL is set and redis is not installed; `pip install cognizes-engine[redis]`, or unset it"
        ) from error
    return RedisDeltas(
        settings.redis_url.get_secret_value(),
        database,
        idle_seconds=settings.stream_idle_seconds,
        kept_seconds=settings.chunks_kept_hours * 3600,
        supervisor=supervisor,
    )
