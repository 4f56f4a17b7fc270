"""Runs: created, claimed by workers, waiting for signals, resumed after any crash, ended once."""

from cognizes.engine.runs.consolidations import Consolidations
from cognizes.engine.runs.context import HandledRun, InProcessRun, RunContext, RunMemory, WriteMessage
from cognizes.engine.runs.queues import Queue, Queues
from cognizes.engine.runs.run_rows import Step
from cognizes.engine.runs.runs import CLIENT_LEASE, Runs
from cognizes.engine.runs.schedules import CatchUp, Firing, Schedule, Schedules
from cognizes.engine.runs.waits import Resumption, RunSuspended, SignalOutcome, WaitKind
from cognizes.engine.runs.worker import Handler, Worker

__all__ = [
    "CLIENT_LEASE",
    "CatchUp",
    "Consolidations",
    "Firing",
    "HandledRun",
    "Handler",
    "InProcessRun",
    "Queue",
    "Queues",
    "Resumption",
    "RunContext",
    "RunMemory",
    "RunSuspended",
    "Runs",
    "Schedule",
    "Schedules",
    "SignalOutcome",
    "Step",
    "WaitKind",
    "Worker",
    "WriteMessage",
]
