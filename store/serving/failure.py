"""The failure of a client's call, over any protocol: a code and one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from store.domain.access import CallDeniedError, UnauthenticatedError
from store.domain.ports import CursorOutOfRangeError, StoreBusyError, StoreUnavailableError
from store.domain.query import NOT_FOUND, LimitError, QueryError, RequestError
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


Codes = Mapping[type[Exception], tuple[Code, bool]]
"""The code of each kind of error, and if the same call may succeed later."""

CODES: Final[Codes] = {
    StoreUnavailableError: (Code.UNAVAILABLE, True),
    StoreBusyError: (Code.RESOURCE_EXHAUSTED, True),
    QuotaExceededError: (Code.RESOURCE_EXHAUSTED, True),
    UnauthenticatedError: (Code.UNAUTHENTICATED, False),
    CallDeniedError: (Code.PERMISSION_DENIED, False),
    CursorOutOfRangeError: (Code.OUT_OF_RANGE, False),
    CursorError: (Code.INVALID_ARGUMENT, False),
    LimitError: (Code.RESOURCE_EXHAUSTED, False),
    RequestError: (Code.INVALID_ARGUMENT, False),
}


def translate(error: Exception, request_id: str, codes: Codes = CODES) -> tuple[CallError, bool]:
    """Return the failure for any error, and True if the error was expected.

    The log has any other error by the request ID.
    """
    if isinstance(error, CallError):
        return error, True
    if isinstance(error, QueryError):
        code = Code.NOT_FOUND if error.status == NOT_FOUND else Code.INVALID_ARGUMENT
        return CallError(code, error.sentence), True
    for kind in type(error).__mro__:
        if kind in codes:
            code, is_retryable = codes[kind]
            return CallError(code, str(error), retry=is_retryable), True
    sentence = f"the node failed on this call: give its operator the request ID {request_id}"
    return CallError(Code.INTERNAL, sentence), False
