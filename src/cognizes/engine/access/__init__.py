"""Access: API keys, tokens and tickets become principals; the audit log records what administrators change."""

from cognizes.engine.access.authenticator import ApiKey, ApiKeys, Authenticator
from cognizes.engine.access.principal import ANONYMOUS, Permission, Principal

__all__ = ["ANONYMOUS", "ApiKey", "ApiKeys", "Authenticator", "Permission", "Principal"]
