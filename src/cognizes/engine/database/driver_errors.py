"""Translation of driver errors to errors of the engine, with the cause kept."""

from __future__ import annotations

import logging
import re
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
"""Every error that asyncpg may raise."""
_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    ConnectionError,
    FileNotFoundError,
    TimeoutError,
    OSError,
)
_LOST_CONNECTION = re.compile(r"\b(closed|closing|released back|another operation is in progress)\b")
"""The texts of an `InterfaceError` about a lost connection. The others are errors of the calling code."""
_REPLACED = re.compile(r"^(cache lookup failed for|could not open relation with OID|tuple concurrently updated)")
"""The texts of internal errors (XX000) of a statement whose function, table or row of the catalogue is replaced."""
_DATA = (
    asyncpg.DataError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.StatementTooComplexError,
    asyncpg.UntranslatableCharacterError,
    asyncpg.IntegrityConstraintViolationError,
)
_RAISED_BY_FUNCTIONS: dict[str, type[EngineError]] = {
    "CZ403": PermissionDeniedError,
    "CZ404": NotFoundError,
    "CZ409": ConflictError,
    "CZ422": IllegalTransitionError,
    "CZ423": LeaseLostError,
}
_TOO_LONG = (
    "a statement exceeded the time limit and was cancelled; nothing was stored; try again in a moment, "
    "or raise COGNIZES_STATEMENT_TIMEOUT"
)


def is_unavailable(error: BaseException) -> bool:
    """Return whether the same statement may succeed a moment later, on another connection."""
    if isinstance(error, asyncpg.InterfaceError):
        return _LOST_CONNECTION.search(str(error)) is not None
    return isinstance(error, _UNAVAILABLE)


def translate(error: BaseException) -> EngineError:
    if isinstance(error, EngineError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _translate_server_error(error)
    if isinstance(error, asyncpg.exceptions.DataError | UnicodeEncodeError | OverflowError):
        return InvalidInputError(f"PostgreSQL cannot store this value: {error}")
    if is_statement_timeout(error):
        return StatementTimeoutError(_TOO_LONG)
    if is_unavailable(error):
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
            return _RAISED_BY_FUNCTIONS[state](error.args[0])
        case "53100":
            return DatabaseUnavailableError("the disk of the PostgreSQL server is full; nothing was stored; free space")
        case "40P01" | "40001":
            return DatabaseUnavailableError("deadlock or serialization failure; nothing was stored; try again")
        case "25006":
            return DatabaseUnavailableError(
                "the PostgreSQL server is read-only: a standby, or a primary that was demoted; nothing was stored; "
                "try again in a moment, or list all hosts of the cluster in DATABASE_URL"
            )
        case "57014":
            return StatementTimeoutError(_TOO_LONG)
        case "XX000" if _REPLACED.search(str(error)):
            return DatabaseUnavailableError(
                f"a migration replaced a function while a statement used it ({error}); nothing was stored; try again"
            )
        case "42P01" | "42883" | "3F000":
            return DatabaseError(f"the schema is missing or not current ({error}); run `cognizes migrate`")
    if is_unavailable(error):
        return DatabaseUnavailableError(f"PostgreSQL is not reachable ({error}); try again in a moment")
    if isinstance(error, asyncpg.ForeignKeyViolationError):
        return NotFoundError("the thread was deleted concurrently; nothing was stored")
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "messages_thread_id_id":
        return AlreadyExistsError("the thread already has a message with this message_id; omit it or choose another")
    if isinstance(error, _DATA):
        return InvalidInputError(f"PostgreSQL cannot store this value: {error}")
    return DatabaseError(str(error))


@contextmanager
def translated() -> Iterator[None]:
    """Translate the driver errors of a block."""
    try:
        yield
    except DRIVER_ERRORS as error:
        raise translate(error) from error


def is_statement_timeout(error: BaseException) -> bool:
    """Return whether the driver's own time limit ended a statement. It has asked the server to cancel it."""
    return isinstance(error, TimeoutError) and error.errno is None


def terminate(connection: PoolConnectionProxy[Any]) -> None:
    """Terminate a connection whose state is unknown, so that the pool discards it."""
    try:
        connection.terminate()
    except asyncpg.InterfaceError:
        logger.debug("the pool had already discarded the broken connection")
