"""The failure of a client's call, over any protocol: a code and one sentence."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from store.domain.access import CallDeniedError, UnauthenticatedError
from store.domain.ports import CursorOutOfRangeError, StoreBusyError, StoreUnavailableError
from store.domain.query import LimitError, RequestError
from store.domain.quota import QuotaExceededError
from store.messages.cursor import CursorError


class Code(StrEnum):
    """The reason for which a call failed, by the names of the gRPC status codes."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAVAILABLE = "UNAVAILABLE"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"


class CallError(Exception):
    """The code and the sentence that a call ends with.

    ``retry``: the same request may succeed later (a rate, a full queue, a node that is not ready).
    """

    def __init__(self, code: Code, sentence: str, *, retry: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.retry = retry


class CallerGoneError(Exception):
    """The caller hung up, or takes nothing of its answer."""


def malformed(sentence: str) -> CallError:
    """Return the error of a request that cannot be read or served, whenever it is sent."""
    return CallError(Code.INVALID_ARGUMENT, sentence)


def over_limit(sentence: str) -> CallError:
    """Return the error of a request that passes a limit which time does not lift."""
    return CallError(Code.RESOURCE_EXHAUSTED, sentence)


def busy(sentence: str) -> CallError:
    """Return the error of a call for which there is no room now."""
    return CallError(Code.RESOURCE_EXHAUSTED, sentence, retry=True)


def unready(sentence: str) -> CallError:
    """Return the error of a call that the node does not serve now."""
    return CallError(Code.UNAVAILABLE, sentence, retry=True)


_CODES: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (StoreUnavailableError, Code.UNAVAILABLE),
    (StoreBusyError, Code.RESOURCE_EXHAUSTED),
    (QuotaExceededError, Code.RESOURCE_EXHAUSTED),
    (UnauthenticatedError, Code.UNAUTHENTICATED),
    (CallDeniedError, Code.PERMISSION_DENIED),
    (CursorOutOfRangeError, Code.OUT_OF_RANGE),
    (CursorError, Code.INVALID_ARGUMENT),
    (LimitError, Code.RESOURCE_EXHAUSTED),
    (RequestError, Code.INVALID_ARGUMENT),
)
_RETRYABLE: Final = (StoreUnavailableError, StoreBusyError, QuotaExceededError)


def expected(error: Exception) -> CallError | None:
    """Return the failure for an error of the domain; None for one that has no code here."""
    if isinstance(error, CallError):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallError(code, str(error), retry=isinstance(error, _RETRYABLE))
    return None


def unexpected(request_id: str) -> CallError:
    """Return the failure for any other error, which the log has by the request ID."""
    return CallError(
        Code.INTERNAL,
        f"the node failed on this call: give its operator the request ID {request_id}",
    )
