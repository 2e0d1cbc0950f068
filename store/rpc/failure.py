"""How a call fails: every error becomes one gRPC status with one sentence, here and only here."""

from __future__ import annotations

from typing import Final

import grpc

from reconcile.errors import LimitExceeded as ReconcileLimit
from reconcile.errors import MalformedPayload
from store.domain.ports import PeerFailed
from store.serving.failure import CallFailure, foreseen, unforeseen
from store.sync.errors import (
    FrameTooLarge,
    GaveWay,
    PeerSilent,
    ProtocolBroken,
    SessionUnknown,
    TooManyCalls,
    TransferFailed,
)
from store.sync.transfer.events import Fault

_CODES: Final[tuple[tuple[type[Exception], grpc.StatusCode], ...]] = (
    (MalformedPayload, grpc.StatusCode.INVALID_ARGUMENT),
    (ReconcileLimit, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ProtocolBroken, grpc.StatusCode.INVALID_ARGUMENT),
    (PeerSilent, grpc.StatusCode.DEADLINE_EXCEEDED),
    (FrameTooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (TooManyCalls, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (SessionUnknown, grpc.StatusCode.FAILED_PRECONDITION),
    (GaveWay, grpc.StatusCode.ABORTED),
    (PeerFailed, grpc.StatusCode.UNAVAILABLE),
)
_FAULTS: Final = {
    Fault.PROTOCOL: grpc.StatusCode.INVALID_ARGUMENT,
    Fault.LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Fault.SILENCE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Fault.SLOW: grpc.StatusCode.DEADLINE_EXCEEDED,
    Fault.LOST: grpc.StatusCode.UNAVAILABLE,
}

RETRYABLE: Final = (TooManyCalls, GaveWay)


class RpcFailure(Exception):
    """The status that a call ends with.

    ``retry``: the same request may succeed later (a rate, a full queue, a node that is not ready).
    """

    def __init__(self, code: grpc.StatusCode, sentence: str, *, retry: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.retry = retry


def malformed(sentence: str) -> RpcFailure:
    """The request cannot be read or served, whenever it is sent."""
    return RpcFailure(grpc.StatusCode.INVALID_ARGUMENT, sentence)


def over_limit(sentence: str) -> RpcFailure:
    """The request passes a limit that time does not lift."""
    return RpcFailure(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)


def translate(error: Exception, request_id: str) -> tuple[RpcFailure, bool]:
    """The status for any error, and whether it was expected.

    An error that nobody foresaw tells the caller the request ID only, by which the operator finds
    it in the log.
    """
    if isinstance(error, RpcFailure):
        return error, True
    known = foreseen(error)
    if known is not None:
        return _as_status(known), True
    if isinstance(error, TransferFailed):
        return RpcFailure(_FAULTS[error.fault], str(error)), True
    for kind, code in _CODES:
        if isinstance(error, kind):
            return RpcFailure(code, str(error), retry=isinstance(error, RETRYABLE)), True
    return _as_status(unforeseen(request_id)), False


def _as_status(failure: CallFailure) -> RpcFailure:
    return RpcFailure(grpc.StatusCode[failure.code], failure.sentence, retry=failure.retry)
