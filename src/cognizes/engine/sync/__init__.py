"""Signal-Pull (seed 003): contexts, branches and signals; `cognizes.client` has a client that keeps a copy."""

from cognizes.engine.sync.branches import Branch, Branches
from cognizes.engine.sync.context_state import ContextState
from cognizes.engine.sync.contexts import (
    ContextMessage,
    ContextMetadata,
    Contexts,
    FoundMessages,
    LlmContext,
    MessagesPage,
)
from cognizes.engine.sync.signals import Signal, Signals, SignalSubscription, SignalType
from cognizes.engine.sync.tool_approvals import ToolApproval, ToolApprovals

__all__ = [
    "Branch",
    "Branches",
    "ContextMessage",
    "ContextMetadata",
    "ContextState",
    "Contexts",
    "FoundMessages",
    "LlmContext",
    "MessagesPage",
    "Signal",
    "SignalSubscription",
    "SignalType",
    "Signals",
    "ToolApproval",
    "ToolApprovals",
]
