"""The log of `serve` and `worker`: options, format and destination."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from cognizes.engine.access.audit import printable, without_query
from cognizes.engine.settings import Settings

_LINE_SEPARATORS = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)}
"""Characters that JSON does not escape and that terminals or log readers interpret as line ends or commands."""
_STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


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
    handler = logging.StreamHandler()
    handler.addFilter(_is_not_a_cancellation)
    handler.addFilter(without_query)
    handler.setFormatter(
        JsonLines()
        if settings.log_format == "json"
        else TextLines("%(asctime)s %(levelname)-8s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _is_not_a_cancellation(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that uvicorn logs for requests cancelled by the shutdown."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class TextLines(logging.Formatter):
    """Write a record as one line and indent its traceback, so that no text can imitate another record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging
        record.message = printable(record.message)
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
