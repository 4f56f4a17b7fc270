"""Access: API keys, tokens and tickets become principals; the audit log records what administrators change."""

from cognizes.engine.access.authenticator import ANONYMOUS, ApiKey, ApiKeys, Authenticator, Permission, Principal

__all__ = ["ANONYMOUS", "ApiKey", "ApiKeys", "Authenticator", "Permission", "Principal"]
