"""The errors of the client.

ClientError
├── ServerUnavailableError      no answer: no connection, a lost one, or a timeout, after all repetitions
├── InvalidAnswerError          an answer that is not of this API, for example the page of a proxy
├── FeedRewoundError            the server lost events that were delivered before; reload the session
└── ApiError                    an answer with an error status: status, detail, request id
    ├── AuthenticationError     401
    ├── PermissionDeniedError   403
    ├── NotFoundError           404
    ├── ConflictError           409
    ├── HistoryExpiredError     410
    ├── TooLargeError           413
    ├── InvalidInputError       400, 422
    ├── TooManyRequestsError    429, after all repetitions
    └── ServerError             500 and above
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from pydantic import JsonValue

from cognizes.client.models import JsonObject, decode

_LONGEST_DETAIL = 500


class ClientError(Exception):
    """The root of all errors of the client."""


class ServerUnavailableError(ClientError):
    """The server did not answer. A call that may not be repeated may have been executed."""


class InvalidAnswerError(ClientError):
    """The answer is not what this version of the API answers."""


class FeedRewoundError(ClientError):
    """The server lost events that were delivered before, in a failover; reload the session."""


class ApiError(ClientError):
    """An answer with an error status. `detail` is the server's text; its log has the request under `request_id`."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        request_id: str = "",
        title: str = "",
        problem: JsonObject | None = None,
        retry_after: float | None = None,
    ) -> None:
        suffix = f" (request {request_id})" if request_id else ""
        super().__init__(f"{status} {title or _phrase(status)}: {detail}{suffix}")
        self.status = status
        self.detail = detail
        self.request_id = request_id
        self.retry_after = retry_after
        """The seconds after which the server asks to try again."""
        self.title = title or _phrase(status)
        self.problem: JsonObject = problem or {}
        """All members of the problem document, for example `interrupts` of a run that waits."""


class AuthenticationError(ApiError):
    """The key or token is missing, wrong, expired or revoked."""


class PermissionDeniedError(ApiError):
    """The caller may not do this."""


class NotFoundError(ApiError):
    """The resource does not exist, or belongs to another user."""


class ConflictError(ApiError):
    """The change conflicts with the stored state. `expected` and `actual` are versions of a session's state."""

    @property
    def expected(self) -> int | None:
        return _integer(self.problem.get("expected"))

    @property
    def actual(self) -> int | None:
        return _integer(self.problem.get("actual"))


class HistoryExpiredError(ApiError):
    """The history that was asked for is no longer kept."""


class TooLargeError(ApiError):
    """The body is larger than the server accepts."""


class InvalidInputError(ApiError):
    """The server refused a value; `detail` names the field."""


class TooManyRequestsError(ApiError):
    """The rate of the caller is exceeded."""


class ServerError(ApiError):
    """The server failed, or is not available."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidInputError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: HistoryExpiredError,
    413: TooLargeError,
    422: InvalidInputError,
    429: TooManyRequestsError,
}


def error_of(status: int, headers: Mapping[str, str], text: str) -> ApiError:
    """Return the error of an answer; a body that is not a problem document becomes its detail."""
    problem: JsonObject = {}
    try:
        document = decode(text)
        problem = document if isinstance(document, dict) and "detail" in document else {}
    except ValueError:
        pass
    seconds = headers.get("retry-after", "")
    kind = _BY_STATUS.get(status, ServerError if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ApiError)
    return kind(
        status,
        str(problem["detail"]) if problem else text.strip()[:_LONGEST_DETAIL],
        request_id=str(problem.get("request_id") or headers.get("x-request-id", "")),
        title=str(problem.get("title", "")),
        problem=problem,
        retry_after=float(seconds) if seconds.isdecimal() else None,
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _integer(value: JsonValue) -> int | None:
    return value if isinstance(value, int) else None
