"""The import path of seed 000 for `cognizes.engine.database.listener`."""

from cognizes.engine.database.listener import APPLICATION_NAME, DEFAULT_CHANNEL, NotifyEvent, PgNotifyListener

__all__ = ["APPLICATION_NAME", "DEFAULT_CHANNEL", "NotifyEvent", "PgNotifyListener"]
