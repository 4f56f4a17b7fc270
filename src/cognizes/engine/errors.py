"""The errors of the engine. A message says what is wrong and what to do.

EngineError
├── InvalidInputError              a value that cannot be stored or understood
│   ├── LimitExceededError         larger than a configured limit
│   └── IllegalFrameError          a hosted agent yielded an AG-UI event that the protocol does not allow there
├── NotFoundError                  a session, run, message or version that does not exist
│   └── HistoryExpiredError        a past state that is older than the retention of the state's history
├── ConflictError                  the stored data is not what the caller expected
│   ├── ConcurrencyConflictError   the state has another version (carries expected and actual)
│   ├── AlreadyExistsError         the session or run id is taken
│   ├── DuplicateEventError        another event has this id
│   ├── OpenInterruptsError        a run waits for answers, and the input of a client has none
│   ├── IllegalTransitionError     a run cannot move from this status to that one
│   ├── FeedRewoundError           a thread's head is before what was delivered: reload the thread
│   └── LeaseLostError             another worker holds the run, or the run has ended
├── AccessError                    the caller may not do this
│   ├── AuthenticationError        the caller has no valid credential
│   ├── PermissionDeniedError      the caller is authenticated, but not allowed
│   └── TooManyRequestsError       the caller exceeds a rate or a quota (carries retry_after)
├── RunFailedError                 raised by handlers: the run fails without another attempt
├── StepInterruptedError           an earlier attempt began a step of a run and did not finish it
├── WaitExpiredError               a wait of a run timed out
├── DatabaseError                  PostgreSQL refused a statement
│   ├── DatabaseUnavailableError   PostgreSQL is not reachable; a retry is safe
│   │   ├── StatementTimeoutError  a statement exceeded the time limit and was cancelled
│   │   └── StreamUnavailableError Redis, which carries streams between processes, is not reachable
│   └── PoolTimeoutError           no connection became free in time
├── UnreadableCheckpointError      a graph's checkpoint that the installed serializer cannot read
├── UnreadableConversationError    a conversation of Pydantic AI that the installed version cannot read
├── ArtifactStoreError             the directory or bucket with the bytes of artifacts cannot be used
├── EngineClosedError              the engine is closed
└── SetupError                     the server or the data directory cannot be used
    └── MigrationError             the schema is newer than this engine, or differs from it
"""

from collections.abc import Sequence


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


class IllegalFrameError(InvalidInputError):
    """A hosted agent yielded an AG-UI event that the protocol does not allow at this place; no client received it."""


class NotFoundError(EngineError):
    """A session, run, message or version that does not exist."""


class HistoryExpiredError(NotFoundError):
    """The state at this event is no longer stored: it is older than COGNIZES_STATE_HISTORY_KEPT_DAYS."""


class ConflictError(EngineError):
    """The stored data is not what the caller expected; nothing was stored."""


class ConcurrencyConflictError(ConflictError):
    """Another writer changed the session's state first: read it again, then retry."""

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
    """The thread has an event of this id with another content, which is unchanged; nothing was stored."""


class OpenInterruptsError(ConflictError):
    """A hosted run waits for the answers to interrupts, and the input of a client has none; no run was started."""

    def __init__(self, run_id: str, interrupts: Sequence[str], *, reason: str | None) -> None:
        question = f" ({reason})" if reason else ""
        super().__init__(
            f"run {run_id} waits for the answer to {', '.join(interrupts)}{question}; answer with `resume`, cancel the "
            'run, or withdraw its question with forwardedProps.cognizes.onBusy = "cancel"'
        )
        self.run_id = run_id
        self.interrupts = list(interrupts)


class IllegalTransitionError(ConflictError):
    """A run cannot change from its status to the requested one."""


class AccessError(EngineError):
    """The caller may not do this; nothing was done."""


class AuthenticationError(AccessError):
    """The key, token or ticket of the caller is missing, invalid, expired or revoked."""


class PermissionDeniedError(AccessError):
    """The caller is authenticated, but not allowed to do this."""


class TooManyRequestsError(AccessError):
    """The caller exceeds a rate, or holds too many streams open. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class FeedRewoundError(ConflictError):
    """The head of a thread is before an event that was delivered: a failover lost events. Reload the thread."""


class LeaseLostError(ConflictError):
    """This attempt does not hold the run any more: another worker claimed it, or it was cancelled or has ended."""


class RunFailedError(EngineError):
    """Raised by a handler: the run fails now, even if it has attempts left."""


class StepInterruptedError(EngineError):
    """An earlier attempt started this step and did not finish it; its effects are unknown."""


class WaitExpiredError(EngineError):
    """A wait of a run timed out; the run has failed."""


class DatabaseError(EngineError):
    """PostgreSQL refused a statement; the cause is in `__cause__`."""


class DatabaseUnavailableError(DatabaseError):
    """PostgreSQL cannot be reached now. No change is partial, and a retry is safe."""


class StatementTimeoutError(DatabaseUnavailableError):
    """A statement exceeded COGNIZES_STATEMENT_TIMEOUT and was cancelled; a retry is safe."""


class StreamUnavailableError(DatabaseUnavailableError):
    """Redis cannot be reached now. Messages are still stored; chunks wait in a bounded buffer."""


class PoolTimeoutError(DatabaseError):
    """Every connection of the pool stayed busy for longer than the configured wait."""


class UnreadableCheckpointError(EngineError):
    """A later version of LangGraph, or another serializer, wrote the checkpoint. It is unchanged."""


class UnreadableConversationError(EngineError):
    """A later version of Pydantic AI wrote the conversation. It is unchanged."""


class ArtifactStoreError(EngineError):
    """The bytes of an artifact cannot be written to, or read from, COGNIZES_ARTIFACT_STORE."""


class EngineClosedError(EngineError):
    """The engine is closed: nothing was stored or read. Open it again, or open another one."""


class SetupError(EngineError):
    """The server, the port or the data directory cannot be used."""


class MigrationError(SetupError):
    """The schema in the database is newer than this engine, or differs from it."""
