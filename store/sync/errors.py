"""Errors of sessions with a peer, on either side."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from reconcile.errors import MalformedPayloadError as MalformedPayload
from reconcile.errors import PayloadLimitError
from store.domain.ports import NotServingError, PeerError

MAX_PEER_TEXT_CHARS: Final = 400
"""A sentence of a peer that is shown or logged here; a longer one is cut."""


class CallFailedError(PeerError):
    """A call ended with an error; one sentence for the operator.

    ``aborted``: the peer lets another session go first.
    """

    aborted = False


class PeerSilentError(PeerError):
    """The peer says nothing, or the session takes too long."""


class ProtocolBrokenError(PeerError):
    """The peer did what the protocol does not allow."""


class MalformedFrameError(ProtocolBrokenError):
    """The bytes are not such a frame."""


class FrameTooLargeError(PeerError):
    """A frame has more entries than a node decodes."""


class TooManyCallsError(PeerError):
    """The error of a call when too many wait for their first frame; retry later."""


class SeatLostError(TooManyCallsError):
    """A session that only waited has given its place to another peer."""


class SessionUnknownError(PeerError):
    """The error of a transfer without a session."""


class GaveWayError(PeerError):
    """The end of a session that yields to another with the same peer."""


class TransferFault(StrEnum):
    """The reason why a transfer ended before its end.

    PROTOCOL and LIMIT are the peer's doing (`INVALID_ARGUMENT`, `RESOURCE_EXHAUSTED`), SILENCE too
    (`DEADLINE_EXCEEDED`); SLOW is a limit on time that was passed on either side
    (`DEADLINE_EXCEEDED`); LOST: the stream, or this node's database, is gone.
    """

    NONE = ""
    PROTOCOL = "protocol"
    LIMIT = "limit"
    SILENCE = "silence"
    SLOW = "slow"
    LOST = "lost"


class TransferFailedError(PeerError):
    """A transfer ended before its end; ``fault`` says whose doing it was."""

    def __init__(self, fault: TransferFault, sentence: str) -> None:
        super().__init__(sentence)
        self.fault = fault


EXPECTED: Final = (PeerError, MalformedPayload, PayloadLimitError, NotServingError)
"""Errors whose sentence says what happened."""


def shown(text: str) -> str:
    """Return a text of a peer, fit for a log and a terminal."""
    sane = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return sane if len(sane) <= MAX_PEER_TEXT_CHARS else sane[: MAX_PEER_TEXT_CHARS - 1] + "…"
