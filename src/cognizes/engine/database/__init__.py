"""The only code that opens connections: embedded PostgreSQL, pool, migrations, queries, JSON text."""

from cognizes.engine.database.connection_pool import Database
from cognizes.engine.database.embedded import EmbeddedPostgres

__all__ = ["Database", "EmbeddedPostgres"]
