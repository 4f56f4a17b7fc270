"""Where the log of `serve` goes, and how its lines look. Standard output belongs to the banner."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import Any

from cognizes.engine.access.audit import printable
from cognizes.engine.api.quiet_logs import without_query
from cognizes.engine.settings import Settings

_LINE_SEPARATORS = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)}
"""What JSON leaves as it is and other programs take for the end of a line or for a command."""
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


def configure_logging(settings: Settings) -> None:
    """Sends everything to standard error, as text or as one JSON object a line."""
    handler = logging.StreamHandler()
    handler.addFilter(_is_no_cancellation)
    handler.addFilter(without_query)
    handler.setFormatter(
        JsonLines()
        if settings.log_format == "json"
        else TextLines("%(asctime)s %(levelname)-8s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """uvicorn logs a traceback for each request that the shutdown cuts off; that was our wish, not an error."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class TextLines(logging.Formatter):
    """A record as one line. A traceback follows it indented, so that no text in it can look like another record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging has it
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """A record as one line of JSON, with whatever `extra` was given to it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _USUAL},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str).translate(_LINE_SEPARATORS)
