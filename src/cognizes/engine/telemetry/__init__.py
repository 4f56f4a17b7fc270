"""Telemetry: metrics and spans of this process. While they are off, the code that measures costs one call."""

from cognizes.engine.telemetry.instruments import (
    Instruments,
    count_run_end,
    enable_metrics,
    instruments,
    observe_claim,
    observe_wait,
)
from cognizes.engine.telemetry.tracing import (
    NO_SPAN,
    ActiveSpan,
    agent_attributes,
    batch_span,
    checked_traceparent,
    current_context,
    current_traceparent,
    detect_tracing,
    is_tracing,
    model_attributes,
    record_span,
    request_span,
    span,
    tool_attributes,
)

__all__ = [
    "NO_SPAN",
    "ActiveSpan",
    "Instruments",
    "agent_attributes",
    "batch_span",
    "checked_traceparent",
    "count_run_end",
    "current_context",
    "current_traceparent",
    "detect_tracing",
    "enable_metrics",
    "instruments",
    "is_tracing",
    "model_attributes",
    "observe_claim",
    "observe_wait",
    "record_span",
    "request_span",
    "span",
    "tool_attributes",
]
