"""Telemetry: metrics and spans of this process. While they are off, the code that measures reads one attribute.

The counters and histograms, for Prometheus, belong to the process, not to an engine: one scrape describes one process.
They do not exist until `enable_metrics` is called, which `COGNIZES_METRICS=1` does; `TELEMETRY.instruments` is None
until then. Values that a part of the engine has anyway (the pool, subscribers, reconnections) are not counted here:
`api/metrics.py` reads them at each scrape.

The spans of OpenTelemetry are requests, batches of appends, runs, steps, waits, calls of models and tools. The engine
uses the tracer provider of the process, which the application or the command has set before an engine starts. Without
one no span is made. The position in a trace is the text of the W3C header `traceparent`: a run stores it, so that each
attempt continues the trace of the request, in any process. Names and attributes follow the semantic conventions for
generative AI (`gen_ai.*`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_Result = TypeVar("_Result")
Attribute = str | int | float | bool | None
Attributes = Mapping[str, Attribute]
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACER = trace.get_tracer("cognizes.engine")
_received: ContextVar[str | None] = ContextVar("received_traceparent", default=None)


class Instruments:
    """What the parts of the engine count and measure. Each attribute is an instrument of `prometheus_client`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A late import: the extra `metrics` has the package.
        from prometheus_client import Counter, Histogram  # noqa: PLC0415

        self.registry = registry
        self.requests = Counter(
            "cognizes_http_requests",
            "HTTP requests by method, route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "cognizes_http_request_duration_seconds",
            "Duration of HTTP requests that are not streams.",
            ["method", "route"],
            buckets=_SHORT,
            registry=registry,
        )
        self.appends = Counter(
            "cognizes_appends",
            "Appended events by result: stored, duplicate, conflict, missing or fenced.",
            ["result"],
            registry=registry,
        )
        self.append_seconds = Histogram(
            "cognizes_append_duration_seconds",
            "Seconds from the submission of an event to the answer after its commit.",
            buckets=_SHORT,
            registry=registry,
        )
        self.append_batch = Histogram(
            "cognizes_append_batch_events",
            "Events of one transaction of group commit.",
            buckets=_ITEMS,
            registry=registry,
        )
        self.retries = Counter(
            "cognizes_database_retries",
            "Calls that were repeated because PostgreSQL was unavailable.",
            registry=registry,
        )
        self.feed_lag = Histogram(
            "cognizes_feed_lag_seconds",
            "Seconds from the time of a stored event to its delivery to a subscriber.",
            buckets=_SHORT,
            registry=registry,
        )
        self.pool_acquire_seconds = Histogram(
            "cognizes_pool_acquire_duration_seconds",
            "Seconds that a task waited for a connection of the pool.",
            buckets=_SHORT,
            registry=registry,
        )
        self.pool_timeouts = Counter(
            "cognizes_pool_timeouts", "Tasks that got no connection of the pool in time.", registry=registry
        )
        self.runs_ended = Counter(
            "cognizes_runs_ended", "Runs that this process ended, by status.", ["status"], registry=registry
        )
        self.run_claim_delay = Histogram(
            "cognizes_run_claim_delay_seconds",
            "Seconds from the time at which a run became claimable to its first claim.",
            buckets=_LONG,
            registry=registry,
        )
        self.run_wait_seconds = Histogram(
            "cognizes_run_wait_duration_seconds",
            "Seconds that a run waited, observed when it resumes, by kind of wait.",
            ["kind"],
            buckets=_LONG,
            registry=registry,
        )
        self.leases_lost = Counter(
            "cognizes_run_leases_lost",
            "Leases of runs that this process lost while it executed the runs.",
            registry=registry,
        )
        self.stream_errors = Counter(
            "cognizes_stream_backend_errors",
            "Failed calls of the backend of token streams, by operation.",
            ["operation"],
            registry=registry,
        )

    async def time_append(self, submit: Callable[[], Awaitable[_Result]]) -> _Result:
        """Await an append and observe its duration."""
        started = time.perf_counter()
        answer = await submit()
        self.append_seconds.observe(time.perf_counter() - started)
        return answer


class Telemetry:
    """What this process measures; see `TELEMETRY`."""

    def __init__(self) -> None:
        self.instruments: Instruments | None = None
        """The counters and histograms; None while metrics are off."""
        self.is_tracing = False
        """Whether spans are made."""


TELEMETRY = Telemetry()
"""Of the process: one scrape describes one process, and OpenTelemetry has one provider per process."""


def enable_metrics() -> Instruments:
    """Create the instruments of this process, once. `ImportError` without the extra `metrics`."""
    if TELEMETRY.instruments is None:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        TELEMETRY.instruments = Instruments(registry)
    return TELEMETRY.instruments


def count_run_end(status: str) -> None:
    if (counted := TELEMETRY.instruments) is not None:
        counted.runs_ended.labels(status).inc()


def observe_claim(attempt: int, claimable_since: datetime | None, claimed_at: datetime | None) -> None:
    """Observe how long a run was claimable: only for the first claim, whose beginning is known."""
    measured = TELEMETRY.instruments
    if measured is not None and attempt == 1 and claimable_since is not None and claimed_at is not None:
        measured.run_claim_delay.observe(_seconds(claimable_since, claimed_at))


def observe_wait(kind: str, since: datetime | None, until: datetime | None) -> None:
    if (measured := TELEMETRY.instruments) is not None and since is not None and until is not None:
        measured.run_wait_seconds.labels(kind).observe(_seconds(since, until))


def _seconds(since: datetime, until: datetime) -> float:
    return max(0.0, (until - since).total_seconds())


# Spans


def detect_tracing() -> bool:
    """Trace from now on if the process has a tracer provider; return whether it has one. Engines call it."""
    TELEMETRY.is_tracing = not isinstance(trace.get_tracer_provider(), (ProxyTracerProvider, NoOpTracerProvider))
    return TELEMETRY.is_tracing


class ActiveSpan:
    """A span that is current in a block. An exception is recorded; a cancellation or a wait is not an error."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span | None) -> None:
        self._span = span
        self._token: Token[Context] | None = None

    def __enter__(self) -> Self:
        if self._span is not None:
            self._token = otel_context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._token is not None:
            otel_context.detach(self._token)
            self._token = None
        if isinstance(error, Exception):
            self.fail(error)
        self.end()

    @property
    def is_recording(self) -> bool:
        """Whether the span can still be changed."""
        return self._span is not None and self._span.is_recording()

    def set(self, attributes: Attributes) -> None:
        if self._span is not None:
            self._span.set_attributes(_known(attributes))

    def rename(self, name: str) -> None:
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, error: Exception | str) -> None:
        """Mark the span as failed."""
        if self._span is None or not self._span.is_recording():
            return
        if isinstance(error, Exception):
            self._span.record_exception(error)
            self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(Status(StatusCode.ERROR, str(error)))

    def end(self) -> None:
        """End the span; its children may continue."""
        if self._span is not None and self._span.is_recording():
            self._span.end()


NO_SPAN = ActiveSpan(None)
"""Instead of a span while tracing is off."""


class _ReceivedTrace(ActiveSpan):
    """The trace of a request to a process that does not trace."""

    __slots__ = ("_reset", "_traceparent")

    def __init__(self, traceparent: str | None) -> None:
        super().__init__(None)
        self._traceparent = traceparent
        self._reset: Token[str | None] | None = None

    def __enter__(self) -> Self:
        self._reset = _received.set(self._traceparent)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._reset is not None:
            _received.reset(self._reset)


def span(
    name: str, attributes: Attributes, *, parent: str | None = None, kind: SpanKind = SpanKind.INTERNAL
) -> ActiveSpan:
    """Return a span for a `with` block; its parent is a `traceparent`, else the current span."""
    if not TELEMETRY.is_tracing:
        return NO_SPAN
    return ActiveSpan(_TRACER.start_span(name, _context_of(parent), kind=kind, attributes=_known(attributes)))


def request_span(method: str, path: str, headers: Mapping[bytes, bytes]) -> ActiveSpan:
    """Return the span of a request, in the trace that its headers name.

    While tracing is off, the `traceparent` of the request is kept for the runs that the request creates.
    """
    if not TELEMETRY.is_tracing:
        given = headers.get(b"traceparent")
        return NO_SPAN if given is None else _ReceivedTrace(checked_traceparent(given.decode("latin-1")))
    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    attributes = {"http.request.method": method, "url.path": path}
    started = _TRACER.start_span(method, propagate.extract(carrier), kind=SpanKind.SERVER, attributes=attributes)
    return ActiveSpan(started)


def batch_span(name: str, contexts: Sequence[SpanContext | None], attributes: Attributes) -> ActiveSpan:
    """Return the span of work for several callers: a child of the first, with links to the others."""
    if not TELEMETRY.is_tracing:
        return NO_SPAN
    found = list({context.span_id: context for context in contexts if context is not None}.values())
    parent = trace.set_span_in_context(NonRecordingSpan(found[0])) if found else Context()
    links = [Link(context) for context in found[1:]]
    return ActiveSpan(_TRACER.start_span(name, parent, links=links, attributes=_known(attributes)))


def record_span(
    name: str,
    attributes: Attributes,
    *,
    started: int | datetime,
    ended: int | datetime | None = None,
    parent: str | None = None,
    error: str | None = None,
) -> None:
    """Record a span that is over. Times are moments, or nanoseconds since 1970 as `time.time_ns` returns them."""
    if not TELEMETRY.is_tracing:
        return
    over = ActiveSpan(
        _TRACER.start_span(name, _context_of(parent), attributes=_known(attributes), start_time=_nanoseconds(started))
    )
    if error is not None:
        over.fail(error)
    assert over._span is not None  # noqa: S101 - made above
    over._span.end(_nanoseconds(ended) if ended is not None else time.time_ns())


def current_context() -> SpanContext | None:
    """Return the context of the current span, for `batch_span`."""
    if not TELEMETRY.is_tracing:
        return None
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def current_traceparent() -> str | None:
    """Return the position in the current trace: of the current span, else what the request brought."""
    context = current_context()
    if context is None:
        return _received.get()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def checked_traceparent(text: str | None) -> str | None:
    """Return a `traceparent` that is valid; None for any other text, as the W3C recommendation says."""
    found = _TRACEPARENT.fullmatch(text.strip()) if text else None
    if found is None or not int(found[1], 16) or not int(found[2], 16):
        return None
    return found[0]


def agent_attributes(agent: str, *, conversation_id: str, run_id: str, attempt: int) -> Attributes:
    """Return the attributes of the span of one attempt of an agent's run."""
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": agent,
        "gen_ai.conversation.id": conversation_id,
        "cognizes.run.id": run_id,
        "cognizes.run.attempt": attempt,
    }


def model_attributes(
    model: str, *, input_tokens: int, output_tokens: int, conversation_id: str, agent: str | None = None
) -> Attributes:
    """Return the attributes of the span of a call of a model."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.usage.input_tokens": input_tokens,
        "gen_ai.usage.output_tokens": output_tokens,
        "gen_ai.conversation.id": conversation_id,
        "gen_ai.agent.name": agent,
    }


def tool_attributes(tool: str, *, call_id: str, conversation_id: str, agent: str | None = None) -> Attributes:
    """Return the attributes of the span of a tool call."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.id": call_id,
        "gen_ai.conversation.id": conversation_id,
        "gen_ai.agent.name": agent,
    }


def _context_of(parent: str | None) -> Context | None:
    found = _TRACEPARENT.fullmatch(parent) if parent is not None else None
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    remote = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(NonRecordingSpan(remote))


def _known(attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in attributes.items() if value is not None}


def _nanoseconds(moment: int | datetime) -> int:
    return moment if isinstance(moment, int) else int(moment.timestamp() * 1e9)
