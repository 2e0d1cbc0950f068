"""Errors of requests: the status and the sentence that each becomes."""

from __future__ import annotations

from typing import Final

from store.domain.query import NOT_FOUND, TOO_MANY_REQUESTS, UNAVAILABLE
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
    Code.UNAVAILABLE: 503,
}
_NAMES: Final = {
    NOT_FOUND: "NOT_FOUND",
    TOO_MANY_REQUESTS: Code.RESOURCE_EXHAUSTED.value,
    UNAVAILABLE: Code.UNAVAILABLE.value,
}

Headers = list[tuple[bytes, bytes]]


class HttpError(Exception):
    """The status that a request ends with, the name of the error, and a sentence."""

    def __init__(
        self, status: int, name: str, sentence: str, headers: Headers | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.name = name
        self.sentence = sentence
        self.headers = headers or []


def bad_request(sentence: str) -> HttpError:
    """Return the error of a request that fails whenever it is sent."""
    return HttpError(400, Code.INVALID_ARGUMENT, sentence)


def translate(error: Exception, request_id: str) -> tuple[HttpError, bool]:
    """Return the status for an error, and True if the error was expected."""
    if isinstance(error, HttpError):
        return error, True
    failure = expected(error)
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


def of_query(status: int, sentence: str) -> HttpError:
    """Return the status of an error of the store protocol, which has numbers of its own."""
    return HttpError(status, _NAMES.get(status, Code.INVALID_ARGUMENT.value), sentence)
