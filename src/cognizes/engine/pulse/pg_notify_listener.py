"""The import path of seed 000 for the listener of `cognizes.engine.database.notifications`."""

from cognizes.engine.database.notifications import DEFAULT_CHANNEL, LISTENER_NAME, NotifyEvent, PgNotifyListener

__all__ = ["DEFAULT_CHANNEL", "LISTENER_NAME", "NotifyEvent", "PgNotifyListener"]
