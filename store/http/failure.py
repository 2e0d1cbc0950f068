"""Errors of requests: the status and the headers that each becomes."""

from __future__ import annotations

from typing import Final

from store.http.limits import RETRY_AFTER_S
from store.serving.failure import CallError, Code, expected, unexpected

_STATUS: Final = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.DEADLINE_EXCEEDED: 408,
    Code.OUT_OF_RANGE: 410,
    Code.RESOURCE_EXHAUSTED: 413,
    Code.INTERNAL: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
}
Headers = list[tuple[bytes, bytes]]


class HttpError(CallError):
    """A failure of a call, with the status and the headers of its answer."""

    def __init__(
        self, status: int, code: Code, sentence: str, headers: Headers | None = None
    ) -> None:
        super().__init__(code, sentence)
        self.status = status
        self.headers = headers or []


def translate(error: Exception, request_id: str) -> tuple[HttpError, bool]:
    """Return the status for an error, and True if the error was expected."""
    failure = expected(error)
    if isinstance(failure, HttpError):
        return failure, True
    return _as_status(failure or unexpected(request_id)), failure is not None


def _as_status(failure: CallError) -> HttpError:
    headers: Headers = []
    status = _STATUS[failure.code]
    if failure.retry:
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
        status = 429 if failure.code is Code.RESOURCE_EXHAUSTED else status
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return HttpError(status, failure.code, failure.sentence, headers)
