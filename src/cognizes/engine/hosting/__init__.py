"""Agents of any framework, hosted by the server: see `AgentHost` and the protocol `HostedAgent`."""

from cognizes.engine.hosting.agent import (
    AgentCapabilities,
    HostedAgent,
    PredictedState,
    RunContext,
    ServedAgent,
    Turn,
)
from cognizes.engine.hosting.host import AgentHost
from cognizes.engine.hosting.hosted_run import HostedRun

__all__ = [
    "AgentCapabilities",
    "AgentHost",
    "HostedAgent",
    "HostedRun",
    "PredictedState",
    "RunContext",
    "ServedAgent",
    "Turn",
]
