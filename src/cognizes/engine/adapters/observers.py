"""An AG-UI observer of an engine, for the HTTP edge and for hosts of agents."""

from __future__ import annotations

from cognizes.engine.agui.observation import Observer
from cognizes.engine.engine import Engine


def make_observer(engine: Engine) -> Observer:
    """An observer of everything an engine stores."""
    return Observer(
        events=engine.manager.events,
        sessions=engine.manager.sessions,
        runs=engine.runs,
        time_travel=engine.time_travel,
        hub=engine.hub,
        streams=engine.streams,
    )
