"""Durable runs: claimed by workers, waiting for signals, going on after any crash."""

from cognizes.engine.runs.durable_runs import DurableRuns
from cognizes.engine.runs.resumption import Resumption
from cognizes.engine.runs.run_context import HandledRun, InProcessRun, RunContext
from cognizes.engine.runs.steps import Step
from cognizes.engine.runs.waits import RunSuspended, SignalOutcome, WaitKind
from cognizes.engine.runs.worker import Handler, Worker

__all__ = [
    "DurableRuns",
    "HandledRun",
    "Handler",
    "InProcessRun",
    "Resumption",
    "RunContext",
    "RunSuspended",
    "SignalOutcome",
    "Step",
    "WaitKind",
    "Worker",
]
