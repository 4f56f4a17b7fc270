"""The Signal-Pull client, at its first import path; `cognizes.client` has it beside the client of the REST API."""

from cognizes.client.signal_pull import Connection, ContextCopy, MessageCopy, SignalPullClient

__all__ = ["Connection", "ContextCopy", "MessageCopy", "SignalPullClient"]
