"""Every error the engine raises on purpose. The message tells the caller what to do next.

EngineError
├── InvalidInputError              a value that cannot be stored or understood
│   └── LimitExceededError         larger than a configured limit
├── NotFoundError                  a session, run, message or version that does not exist
│   └── HistoryExpiredError        a moment of the past that is older than the retention of the state's history
├── ConflictError                  the world is not as the caller believed
│   ├── ConcurrencyConflictError   somebody changed the state first (carries expected and actual)
│   ├── AlreadyExistsError         the session or run id is taken
│   ├── DuplicateEventError        one event id, two different events
│   ├── IllegalTransitionError     a run cannot move from this status to that one
│   ├── FeedRewoundError           a thread's head is before what was delivered: reload the thread
│   └── LeaseLostError             the run is somebody else's by now, or has ended
├── AccessError                    the caller may not do this
│   ├── AuthenticationError        nobody knows who calls
│   ├── PermissionDeniedError      known, but not allowed
│   └── TooManyRequestsError       allowed, but not so often (carries retry_after)
├── RunFailedError                 for handlers: the run fails, and another attempt would not help
├── StepInterruptedError           an earlier attempt began a step of a run and did not finish it
├── WaitExpiredError               nobody answered a waiting run in time
├── DatabaseError                  PostgreSQL said no
│   ├── DatabaseUnavailableError   not reachable now; trying again is safe
│   │   ├── StatementTimeoutError  a statement took too long and was stopped
│   │   └── StreamUnavailableError the same of Redis, which carries streams between processes
│   └── PoolTimeoutError           every connection stayed busy for too long
├── EngineClosedError              the engine was closed; open it again
└── SetupError                     the server or data directory is not fit for use
    └── MigrationError             the schema is newer than, or differs from, what this engine knows
"""


class EngineError(Exception):
    """The root of all errors raised by the engine."""


class InvalidInputError(EngineError):
    """A value that cannot be stored or understood; nothing was stored."""


class LimitExceededError(InvalidInputError):
    """Larger than a configured limit; nothing was stored."""

    def __init__(self, what: str, *, size: int, limit: int, setting: str = "", unit: str = "bytes") -> None:
        super().__init__(f"{what} is {size} {unit}; the limit is {limit}" + (f" ({setting})" if setting else ""))
        self.size = size
        self.limit = limit
        self.setting = setting


class NotFoundError(EngineError):
    """A session, run, message or version that does not exist."""


class HistoryExpiredError(NotFoundError):
    """The state at this moment is no longer known: it is older than COGNIZES_STATE_HISTORY_KEPT_DAYS."""


class ConflictError(EngineError):
    """The world is not as the caller believed."""


class ConcurrencyConflictError(ConflictError):
    """Somebody changed the session's state first: read it again and decide anew."""

    def __init__(self, message: str = "", *, expected: int | None = None, actual: int | None = None) -> None:
        super().__init__(
            message
            or f"version conflict: expected {expected}, but the session is at {actual}; read it again, then retry"
        )
        self.expected = expected
        self.actual = actual


class AlreadyExistsError(ConflictError):
    """The session or run id is taken."""


class DuplicateEventError(ConflictError):
    """One event id came with two different contents; the first one is kept, the second was refused."""


class IllegalTransitionError(ConflictError):
    """A run cannot move from its present status to the one asked for."""


class AccessError(EngineError):
    """The caller may not do this; nothing was done."""


class AuthenticationError(AccessError):
    """Nobody knows who calls: the key, token or ticket is missing, wrong, over or revoked."""


class PermissionDeniedError(AccessError):
    """The caller is known, but this is not allowed to it."""


class TooManyRequestsError(AccessError):
    """The caller did this too often, or holds too much of it open."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class FeedRewoundError(ConflictError):
    """The head of a thread is before an event that was delivered: a failover lost events. Reload the thread."""


class LeaseLostError(ConflictError):
    """This attempt does not hold the run any more: it was claimed by another worker, cancelled, or has ended."""


class RunFailedError(EngineError):
    """Raised by a handler: the run fails now, however many attempts it would have."""


class StepInterruptedError(EngineError):
    """An earlier attempt began this step and was cut off: nobody knows how far it came."""


class WaitExpiredError(EngineError):
    """Nobody answered a waiting run in time; the run has failed."""


class DatabaseError(EngineError):
    """PostgreSQL refused a statement; the cause is in `__cause__`."""


class DatabaseUnavailableError(DatabaseError):
    """PostgreSQL cannot be reached now; nothing is half done and trying again is safe."""


class StatementTimeoutError(DatabaseUnavailableError):
    """A statement took longer than COGNIZES_STATEMENT_TIMEOUT allows and was stopped; trying again is safe."""


class StreamUnavailableError(DatabaseUnavailableError):
    """Redis cannot be reached now. Messages are stored all the same; chunks wait for it, within a bound."""


class PoolTimeoutError(DatabaseError):
    """Every connection of the pool stayed busy for longer than the configured wait."""


class EngineClosedError(EngineError):
    """The engine is closed: nothing was stored or read. Open it again, or open another one."""


class SetupError(EngineError):
    """The server, the port or the data directory is not fit for use."""


class MigrationError(SetupError):
    """The schema in the database is newer than, or differs from, what this engine knows."""
