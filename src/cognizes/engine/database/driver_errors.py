"""Driver errors become errors of the engine here, at the database's edge, with the cause kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from cognizes.engine.errors import (
    AlreadyExistsError,
    ConflictError,
    DatabaseError,
    DatabaseUnavailableError,
    EngineError,
    IllegalTransitionError,
    InvalidInputError,
    LeaseLostError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    StatementTimeoutError,
)

logger = logging.getLogger(__name__)

DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
"""Everything that talking to PostgreSQL may raise."""

UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    ConnectionError,
    FileNotFoundError,
    TimeoutError,
    OSError,
)
"""Failures after which the same statement may succeed a moment later, on another connection."""

_DATA = (
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.StatementTooComplexError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.IntegrityConstraintViolationError,
)


_SAID_BY_OUR_FUNCTIONS: dict[str, type[EngineError]] = {
    "CZ403": PermissionDeniedError,
    "CZ404": NotFoundError,
    "CZ409": ConflictError,
    "CZ422": IllegalTransitionError,
    "CZ423": LeaseLostError,
}


_TOO_LONG = (
    "PostgreSQL did not answer in time and was told to stop; nothing is half done; try again in a moment, "
    "or raise COGNIZES_STATEMENT_TIMEOUT"
)


def translate(error: BaseException) -> EngineError:
    """The engine's error for a driver's error."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _translate_server_error(error)
    if isinstance(error, asyncpg.exceptions.DataError | UnicodeEncodeError | OverflowError):
        return InvalidInputError(f"PostgreSQL cannot store this value: {error}")
    if is_statement_timeout(error):
        return StatementTimeoutError(_TOO_LONG)
    if isinstance(error, UNAVAILABLE):
        return DatabaseUnavailableError(f"PostgreSQL is not reachable ({error}); try again in a moment")
    return DatabaseError(str(error))


def _translate_server_error(error: asyncpg.PostgresError) -> EngineError:
    match getattr(error, "sqlstate", None):
        case "CZ413":
            return LimitExceededError(
                error.args[0],
                size=int(error.detail or 0),
                limit=int(error.hint or 0),
                setting="COGNIZES_MAX_STATE_BYTES",
            )
        case "CZ403" | "CZ404" | "CZ409" | "CZ422" | "CZ423" as state:
            return _SAID_BY_OUR_FUNCTIONS[state](error.args[0])
        case "53100":
            return DatabaseUnavailableError("the disk of the PostgreSQL server is full; nothing was stored; free space")
        case "40P01" | "40001":
            return DatabaseUnavailableError("two transactions stood in each other's way; try again")
        case "57014":
            return StatementTimeoutError(_TOO_LONG)
        case "42P01" | "42883" | "3F000":
            return DatabaseError(f"the schema is not there or not current ({error}); run `cognizes migrate`")
    if isinstance(error, UNAVAILABLE):
        return DatabaseUnavailableError(f"PostgreSQL is not reachable ({error}); try again in a moment")
    if isinstance(error, asyncpg.ForeignKeyViolationError):
        return NotFoundError("the thread was deleted meanwhile; nothing was stored")
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "messages_thread_id_id":
        return AlreadyExistsError("the thread has a message of this message_id already; leave it out or choose another")
    if isinstance(error, _DATA):
        return InvalidInputError(f"PostgreSQL cannot store this value: {error}")
    return DatabaseError(str(error))


@contextmanager
def translated() -> Iterator[None]:
    """Within it, driver errors leave as the engine's errors."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error) from error


def is_statement_timeout(error: BaseException) -> bool:
    """Whether the driver stopped waiting for an answer. It has then asked the server to cancel the statement."""
    return isinstance(error, TimeoutError) and error.errno is None


def cut(connection: PoolConnectionProxy[Any]) -> None:
    """Ends a connection that failed in an unknown state, so that nobody gets it again."""
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        logger.debug("the driver had given the broken connection up already")
