"""How the call of a client fails, whatever protocol it came by: a code and one sentence."""

from __future__ import annotations

from enum import StrEnum

from store.domain.access import Denied, Unauthenticated
from store.domain.ports import CursorOutOfRange, StoreBusy, StoreUnavailable
from store.domain.query import LimitError, RequestError
from store.domain.quota import Exceeded
from store.messages.cursor import CursorError


class Code(StrEnum):
    """Why a call failed: the names of the gRPC status codes."""

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
    INTERNAL = "INTERNAL"


class CallFailure(Exception):
    """What a call ends with.

    ``retry``: the same request may succeed later (a rate, a full queue, a node that is not ready).
    """

    def __init__(self, code: Code, sentence: str, *, retry: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.retry = retry


def malformed(sentence: str) -> CallFailure:
    """The request cannot be read or served, whenever it is sent."""
    return CallFailure(Code.INVALID_ARGUMENT, sentence)


def over_limit(sentence: str) -> CallFailure:
    """The request passes a limit that time does not lift."""
    return CallFailure(Code.RESOURCE_EXHAUSTED, sentence)


def busy(sentence: str) -> CallFailure:
    """There is no room for the call now."""
    return CallFailure(Code.RESOURCE_EXHAUSTED, sentence, retry=True)


def unready(sentence: str) -> CallFailure:
    """The node does not serve now."""
    return CallFailure(Code.UNAVAILABLE, sentence, retry=True)


_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (StoreUnavailable, Code.UNAVAILABLE),
    (StoreBusy, Code.RESOURCE_EXHAUSTED),
    (Exceeded, Code.RESOURCE_EXHAUSTED),
    (Unauthenticated, Code.UNAUTHENTICATED),
    (Denied, Code.PERMISSION_DENIED),
    (CursorOutOfRange, Code.OUT_OF_RANGE),
    (CursorError, Code.INVALID_ARGUMENT),
    (LimitError, Code.RESOURCE_EXHAUSTED),
    (RequestError, Code.INVALID_ARGUMENT),
)
_RETRYABLE = (StoreUnavailable, StoreBusy, Exceeded)


def foreseen(error: Exception) -> CallFailure | None:
    """The failure for an error of the domain; None for one that has no code here."""
    if isinstance(error, CallFailure):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallFailure(code, str(error), retry=isinstance(error, _RETRYABLE))
    return None


def unforeseen(request_id: str) -> CallFailure:
    """The failure for any other error: the operator finds it in the log by the request ID."""
    return CallFailure(
        Code.INTERNAL,
        f"the node failed on this call: give its operator the request ID {request_id}",
    )
