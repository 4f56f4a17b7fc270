"""The internal parts of an engine that tests look at or replace: the only access to private attributes of src."""

from __future__ import annotations

from cognizes.client import Client
from cognizes.client.transport import Transport
from cognizes.engine import Engine
from cognizes.engine.agui.event_bridge import PulseEventBridge
from cognizes.engine.agui.monitor import MonitorFrames
from cognizes.engine.agui.observation import Observer
from cognizes.engine.concurrency import Sweeper
from cognizes.engine.database import Database, EmbeddedPostgres
from cognizes.engine.database.maintenance import Maintenance
from cognizes.engine.database.notifications import PgNotifyListener
from cognizes.engine.database.replicas import ReadDatabase
from cognizes.engine.pulse.events import EventLog
from cognizes.engine.pulse.state_debug import StateDebugService
from cognizes.engine.supervision import Supervisor


def database_of(engine: Engine) -> Database:
    """Return the connections of an engine, for SQL that checks what is stored."""
    return engine._database


def reads_of(engine: Engine) -> ReadDatabase:
    """Return the database whose reads replicas answer."""
    return engine._reads


def replica_of(engine: Engine) -> Database:
    """Return the connections to the first replica, which is open."""
    replica = engine._reads._replicas[0].database
    assert replica is not None
    return replica


def history_of(engine: Engine) -> EventLog:
    return engine._history


def embedded_of(engine: Engine) -> EmbeddedPostgres:
    assert engine._embedded is not None
    return engine._embedded


def url_of(engine: Engine) -> str:
    return engine._url


def listener_of(engine: Engine) -> PgNotifyListener:
    return engine._listener


def maintenance_of(engine: Engine) -> Maintenance:
    return engine._maintenance


def supervisor_of(engine: Engine) -> Supervisor:
    return engine._supervisor


def sweeper_of(engine: Engine) -> Sweeper:
    return engine._sweeper


def observer_of(engine: Engine) -> Observer:
    return engine._observer


def debug_of(engine: Engine) -> StateDebugService:
    return engine._debug


def monitor_of(engine: Engine) -> MonitorFrames:
    return engine._monitor_frames


def bridge_of(engine: Engine) -> PulseEventBridge:
    """Return the bridge of seed 000 on the parts of an engine."""
    return PulseEventBridge(engine._listener, engine._monitor_frames)


def transport_of(client: Client) -> Transport:
    """Return the connection of a client, for routes that it has no method for."""
    return client._transport
