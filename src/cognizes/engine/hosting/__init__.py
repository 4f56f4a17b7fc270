"""Agents of any framework, hosted by the server: see `AgentHost` and the protocol `HostedAgent`."""

from cognizes.engine.hosting.agent import AgentCapabilities, HostedAgent, RunContext, Turn
from cognizes.engine.hosting.host import AgentHost
from cognizes.engine.hosting.hosted_run import HostedRun
from cognizes.engine.hosting.predicted_state import PredictedState, ServedAgent

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
