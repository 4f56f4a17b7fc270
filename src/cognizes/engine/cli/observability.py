"""The log and the traces of `serve` and `worker`.

The standard variables of OpenTelemetry set up its SDK:

- `OTEL_TRACES_EXPORTER`: `otlp`, `console`, `none` or another installed exporter; several with commas
- `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`: where spans are sent; it turns `otlp` on
- `OTEL_SDK_DISABLED=true`: no traces
- `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*` and others: read by the SDK

An application that uses the engine as a library sets its own tracer provider instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Annotated, Any, TextIO

import typer
from opentelemetry import trace
from opentelemetry.trace import ProxyTracerProvider

from cognizes.engine.access.audit import printable, without_query
from cognizes.engine.errors import SetupError
from cognizes.engine.settings import Settings
from cognizes.engine.version import __version__

_LINE_SEPARATORS = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)}
"""Characters that JSON does not escape and that terminals or log readers interpret as line ends or commands."""
_BUFFER_SECONDS = 0.05
_BUFFERED_LINES = 1000
_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


_ROUTINE_LOGGERS = frozenset(
    {
        "google_adk.google.adk.plugins.plugin_manager",
        "mcp.server.streamable_http",
        "mcp.server.streamable_http_manager",
    }
)
"""Loggers of libraries that write several lines at INFO for each request or run."""


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


LogLevelOption = Annotated[
    LogLevel | None,
    typer.Option(case_sensitive=False, help="Lowest level to log (COGNIZES_LOG_LEVEL, INFO).", show_default=False),
]
LogFormatOption = Annotated[
    LogFormat | None, typer.Option(help="Format of the log lines (COGNIZES_LOG_FORMAT, text).", show_default=False)
]


def configure_logging(settings: Settings) -> None:
    """Write the log to standard error, as text or as one JSON object per line."""
    handler = BufferedLines()
    handler.addFilter(_is_not_a_cancellation)
    handler.addFilter(without_query)
    if settings.log_level.upper() != LogLevel.DEBUG:
        handler.addFilter(_is_not_routine)
    handler.setFormatter(
        JsonLines()
        if settings.log_format == "json"
        else TextLines("%(asctime)s %(levelname)-8s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _is_not_routine(record: logging.LogRecord) -> bool:
    return record.levelno > logging.INFO or record.name not in _ROUTINE_LOGGERS


def _is_not_a_cancellation(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that uvicorn logs for requests cancelled by the shutdown."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class BufferedLines(logging.StreamHandler[TextIO]):
    """Write the lines of an event loop together: a system call for each request costs more than its line.

    A warning or an error, a line of another thread and a full buffer are written at once, after the lines before them.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record))
            if record.levelno > logging.INFO or len(self._lines) >= _BUFFERED_LINES or not self._flush_soon():
                self.flush()
        except Exception:  # noqa: BLE001 - as every handler of `logging` treats it
            self.handleError(record)

    def flush(self) -> None:
        """Write the lines that wait."""
        with self.lock or nullcontext():
            self._timer = None
            if self._lines:
                lines, self._lines = self._lines, []
                self.stream.write("".join(f"{line}{self.terminator}" for line in lines))
            super().flush()

    def _flush_soon(self) -> bool:
        """Set a timer of the running event loop; return False when there is none."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if self._timer is None:
            self._timer = loop.call_later(_BUFFER_SECONDS, self.flush)
        return True


class TextLines(logging.Formatter):
    """Write a record as one line and indent its traceback, so that no text can imitate another record."""

    _second = -1
    _time = ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - overrides logging
        if int(record.created) != self._second:
            self._second, self._time = int(record.created), super().formatTime(record, datefmt)
        return self._time

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = record.message if record.message.isprintable() else printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """Write a record as one line of JSON, including its `extra` values."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str).translate(_LINE_SEPARATORS)


logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_SERVICE = "cognizes-engine"
_OTLP = "otlp"
_OTLP_OVER_HTTP = "otlp_proto_http"


@contextmanager
def exporting_traces() -> Iterator[None]:
    """Export spans for the length of a block, if the environment asks for it; send the last ones at its end.

    `SetupError` when the environment asks for it and the SDK or the exporter is not installed.
    """
    names = wanted_exporters()
    if not names or not isinstance(trace.get_tracer_provider(), ProxyTracerProvider):
        yield
        return
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - the extra `otel` has it
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise SetupError(
            "the environment asks for traces (OTEL_*) and the SDK of OpenTelemetry is not installed; "
            "`pip install cognizes-engine[otel]`, or set OTEL_SDK_DISABLED=true"
        ) from error
    service = os.environ.get("OTEL_SERVICE_NAME") or _DEFAULT_SERVICE
    provider = TracerProvider(resource=Resource.create({"service.name": service, "service.version": __version__}))
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_find_exporter(name)()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def wanted_exporters() -> list[str]:
    """Return the exporters that the environment names."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = os.environ.get("OTEL_TRACES_EXPORTER")
    if named is None:
        return [_OTLP] if any(os.environ.get(endpoint) for endpoint in _ENDPOINTS) else []
    return [name for name in map(str.strip, named.split(",")) if name and name != "none"]


def _find_exporter(name: str) -> Any:
    """Return the class of an exporter, by the name under which its package registers it."""
    wanted = _OTLP_OVER_HTTP if name == _OTLP and not _is_grpc() else name
    for found in entry_points(group="opentelemetry_traces_exporter", name=wanted):
        return found.load()
    raise SetupError(
        f"OTEL_TRACES_EXPORTER names {name!r}, and no such exporter is installed; "
        "`pip install cognizes-engine[otel]` has otlp and console"
    )


def _is_grpc() -> bool:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return protocol == "grpc"
