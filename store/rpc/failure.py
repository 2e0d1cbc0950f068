"""How a call fails, errors of the exchange with peers included: one failure for every error."""

from __future__ import annotations

from typing import Final

from reconcile.errors import LimitExceeded as ReconcileLimit
from reconcile.errors import MalformedPayload
from store.domain.ports import EmptyWindow, NoPeers, PeerFailed, UnknownPeer
from store.serving.failure import CallFailure, Code, foreseen, unforeseen
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

_CODES: Final[tuple[tuple[type[Exception], Code], ...]] = (
    (MalformedPayload, Code.INVALID_ARGUMENT),
    (ReconcileLimit, Code.RESOURCE_EXHAUSTED),
    (ProtocolBroken, Code.INVALID_ARGUMENT),
    (PeerSilent, Code.DEADLINE_EXCEEDED),
    (FrameTooLarge, Code.RESOURCE_EXHAUSTED),
    (TooManyCalls, Code.RESOURCE_EXHAUSTED),
    (SessionUnknown, Code.FAILED_PRECONDITION),
    (GaveWay, Code.ABORTED),
    (PeerFailed, Code.UNAVAILABLE),
    (EmptyWindow, Code.INVALID_ARGUMENT),
    (UnknownPeer, Code.INVALID_ARGUMENT),
    (NoPeers, Code.FAILED_PRECONDITION),
)
_FAULTS: Final = {
    Fault.PROTOCOL: Code.INVALID_ARGUMENT,
    Fault.LIMIT: Code.RESOURCE_EXHAUSTED,
    Fault.SILENCE: Code.DEADLINE_EXCEEDED,
    Fault.SLOW: Code.DEADLINE_EXCEEDED,
    Fault.LOST: Code.UNAVAILABLE,
}

RETRYABLE: Final = (TooManyCalls, GaveWay)


def translate(error: Exception, request_id: str) -> tuple[CallFailure, bool]:
    """The failure for any error, and whether it was expected.

    An error that nobody foresaw tells the caller the request ID only, by which the operator finds
    it in the log.
    """
    known = foreseen(error)
    if known is not None:
        return known, True
    if isinstance(error, TransferFailed):
        return CallFailure(_FAULTS[error.fault], str(error)), True
    for kind, code in _CODES:
        if isinstance(error, kind):
            return CallFailure(code, str(error), retry=isinstance(error, RETRYABLE)), True
    return unforeseen(request_id), False
