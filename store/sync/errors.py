"""What goes wrong in a session with a peer, as either side of it sees it."""

from __future__ import annotations

from typing import Final

from reconcile.errors import LimitExceeded, MalformedPayload
from store.domain.ports import PeerFailed, StoreBusy, StoreUnavailable
from store.sync.transfer.events import Fault

MAX_PEER_TEXT_CHARS: Final = 400
"""A sentence of a peer that is shown or logged here; a longer one is cut."""


class PeerSilentError(PeerFailed):
    """The peer says nothing, or the session takes too long."""


class ProtocolBrokenError(PeerFailed):
    """The peer did what the protocol does not allow."""


class MalformedFrameError(ProtocolBrokenError):
    """The bytes are not such a frame."""


class FrameTooLargeError(PeerFailed):
    """A frame has more entries than a node decodes."""


class TooManyCallsError(PeerFailed):
    """Too many calls wait for their first frame; a later one may do better."""


class SeatLostError(TooManyCallsError):
    """A session that only waited has given its place to another peer."""


class SessionUnknownError(PeerFailed):
    """There is no such session to transfer for."""


class GaveWayError(PeerFailed):
    """Another session with the same peer goes before this one."""


class TransferFailedError(PeerFailed):
    """A transfer ended before its end; ``fault`` says whose doing it was."""

    def __init__(self, fault: Fault, sentence: str) -> None:
        super().__init__(sentence)
        self.fault = fault


EXPECTED: Final = (PeerFailed, MalformedPayload, LimitExceeded, StoreUnavailable, StoreBusy)
"""Errors whose sentence says what happened."""


def shown(text: str) -> str:
    """A text of a peer, fit for a log and a terminal."""
    sane = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return sane if len(sane) <= MAX_PEER_TEXT_CHARS else sane[: MAX_PEER_TEXT_CHARS - 1] + "…"
