"""Where the log of `serve` goes, and how its lines look. Standard output belongs to the banner."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime

from cognizes.engine.api.quiet_logs import without_query
from cognizes.engine.settings import Settings

_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


def configure_logging(settings: Settings) -> None:
    """Sends everything to standard error, as text or as one JSON object a line."""
    handler = logging.StreamHandler()
    handler.addFilter(_is_no_cancellation)
    handler.addFilter(without_query)
    handler.setFormatter(
        JsonLines()
        if settings.log_format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-8s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """uvicorn logs a traceback for each request that the shutdown cuts off; that was our wish, not an error."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


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
        return json.dumps(line, ensure_ascii=False, default=str)
