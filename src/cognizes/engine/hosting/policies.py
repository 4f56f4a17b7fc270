"""What the host does when a client leaves, when a thread is busy, and what it says about its agents."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ag_ui.core import AgentCapabilities as ProtocolCapabilities
from ag_ui.core import (
    HumanInTheLoopCapabilities,
    IdentityCapabilities,
    MultimodalCapabilities,
    MultimodalInputCapabilities,
    RunAgentInput,
    StateCapabilities,
    ToolsCapabilities,
    TransportCapabilities,
)

from cognizes.engine.errors import InvalidInputError
from cognizes.engine.hosting.agent import HostedAgent
from cognizes.engine.models import JsonObject
from cognizes.engine.settings import Settings

PROPERTIES = "cognizes"
"""The key of `forwardedProps` with the properties of a request: `{"onDisconnect": "cancel", "onBusy": "queue"}`."""


class OnDisconnect(StrEnum):
    """What happens to a run when the last client that follows it leaves."""

    CONTINUE = "continue"
    CANCEL = "cancel"


class OnBusy(StrEnum):
    """What happens to an input on a thread whose run executes: refused, accepted after that run, or instead of it."""

    REJECT = "reject"
    QUEUE = "queue"
    CANCEL = "cancel"


@dataclass(frozen=True)
class RunPolicy:
    on_disconnect: OnDisconnect = OnDisconnect.CONTINUE
    on_busy: OnBusy = OnBusy.REJECT

    @classmethod
    def of(cls, run_input: RunAgentInput, settings: Settings) -> RunPolicy:
        """Return the policy of a request; the settings hold for what it does not say."""
        props = run_input.forwarded_props
        given = props.get(PROPERTIES) if isinstance(props, dict) else None
        if given is not None and not isinstance(given, dict):
            raise InvalidInputError(f"forwardedProps.{PROPERTIES} must be an object")
        asked: dict[str, Any] = given or {}
        try:
            return cls(
                OnDisconnect(asked.get("onDisconnect", settings.on_disconnect)),
                OnBusy(asked.get("onBusy", settings.on_busy)),
            )
        except ValueError as error:
            raise InvalidInputError(
                f"invalid forwardedProps.{PROPERTIES}: {error}; onDisconnect is continue or cancel, "
                "onBusy is reject, queue or cancel"
            ) from error


_LIMITS = {
    "resumes_after_crash": "A run whose server is killed fails; its answer until then is kept.",
    "interrupts": "It cannot ask a person and wait for the answer.",
    "client_tools": "It cannot call tools of the client.",
    "streams_tool_arguments": "The arguments of a tool call arrive as a whole.",
    "multimodal": "It reads text only.",
}


def limits_of(agent: HostedAgent) -> list[str]:
    """Return what an agent cannot do, in sentences."""
    return [sentence for name, sentence in _LIMITS.items() if not getattr(agent.capabilities, name)]


def describe_agent(agent: HostedAgent) -> JsonObject:
    """Return an agent for listings."""
    can = agent.capabilities
    return {
        "name": agent.name,
        "description": agent.description,
        "capabilities": {
            "resumesAfterCrash": can.resumes_after_crash,
            "interrupts": can.interrupts,
            "clientTools": can.client_tools,
            "streamsToolArguments": can.streams_tool_arguments,
            "multimodal": can.multimodal,
        },
        "limits": limits_of(agent),
    }


def protocol_capabilities(agent: HostedAgent) -> ProtocolCapabilities:
    """Return the capabilities of an agent in the form of AG-UI 1.0."""
    can = agent.capabilities
    media = MultimodalInputCapabilities(
        image=can.multimodal, audio=can.multimodal, video=can.multimodal, pdf=can.multimodal, file=can.multimodal
    )
    described = describe_agent(agent)
    return ProtocolCapabilities(
        identity=IdentityCapabilities(name=agent.name, description=agent.description),
        transport=TransportCapabilities(
            streaming=True, websocket=False, http_binary=False, push_notifications=False, resumable=True
        ),
        tools=ToolsCapabilities(supported=True, client_provided=can.client_tools),
        state=StateCapabilities(snapshots=True, deltas=True, memory=True, persistent_state=True),
        multimodal=MultimodalCapabilities(input=media),
        human_in_the_loop=HumanInTheLoopCapabilities(supported=can.interrupts, interrupts=can.interrupts),
        custom={PROPERTIES: {**described["capabilities"], "limits": described["limits"]}},
    )
