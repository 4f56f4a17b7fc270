"""Who may come in: API keys, tokens, tickets, and what a caller may see and do."""

from cognizes.engine.access.desk import AccessDesk
from cognizes.engine.access.principal import ANYONE, Permission, Principal

__all__ = ["ANYONE", "AccessDesk", "Permission", "Principal"]
