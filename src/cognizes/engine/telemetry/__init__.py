"""Telemetry: the metrics of this process. While they are off, the code that measures costs one call."""

from cognizes.engine.telemetry.instruments import (
    Instruments,
    count_run_end,
    enable_metrics,
    instruments,
    observe_claim,
    observe_wait,
)

__all__ = ["Instruments", "count_run_end", "enable_metrics", "instruments", "observe_claim", "observe_wait"]
