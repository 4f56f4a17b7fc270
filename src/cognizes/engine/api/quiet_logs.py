"""What uvicorn's own log would say too much of: a query string may hold a ticket."""

from __future__ import annotations

import logging

_LOGGERS = ("uvicorn.error", "uvicorn.access")


def keep_queries_out_of_logs() -> None:
    """From now on no query string stands in uvicorn's log, whoever started it and however it is configured."""
    for name in _LOGGERS:
        # Twice is once: a logger keeps a filter only one time.
        logging.getLogger(name).addFilter(without_query)


def without_query(record: logging.LogRecord) -> bool:
    """A filter: uvicorn logs the path of a WebSocket, and in its access log that of every request, with the query."""
    if record.name in _LOGGERS and isinstance(record.args, tuple):
        record.args = tuple(
            argument.partition("?")[0] if isinstance(argument, str) and argument.startswith("/") else argument
            for argument in record.args
        )
    return True
