"""Errors of sessions with a peer, on either side."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from store.domain.ports import PeerError

MAX_PEER_TEXT_CHARS: Final = 400
"""A sentence of a peer that is shown or logged here; a longer one is cut."""

SILENT: Final = (
    "the peer has said nothing for {:.0f} s: see what keeps it, or give --peer-silence on both "
    "nodes if it needs longer for an answer"
)
"""The sentence about a peer that has sent and taken no frame for a number of seconds."""


class Fault(StrEnum):
    """The reason why a session does not begin, or ends before its end.

    PROTOCOL, LIMIT and SILENCE are the peer's doing: it broke the protocol, sent too much, or
    nothing. SLOW: a limit on time was passed on either side. LOST: the stream, or this node's
    database, is gone. CROWDED: too many peers want this, retry later. UNKNOWN: no session waits for
    the transfer. GAVE_WAY: another session with the peer goes first. REFUSED: there is no session.
    """

    NONE = ""
    PROTOCOL = "protocol"
    LIMIT = "limit"
    SILENCE = "silence"
    SLOW = "slow"
    LOST = "lost"
    CROWDED = "crowded"
    UNKNOWN = "unknown"
    GAVE_WAY = "gave way"
    REFUSED = "refused"


class SessionFaultError(PeerError):
    """The end of a session before its end; one sentence for the peer or the operator."""

    def __init__(self, fault: Fault, sentence: str) -> None:
        super().__init__(sentence)
        self.fault = fault


class ProtocolBrokenError(SessionFaultError):
    """The peer did what the protocol does not allow."""

    def __init__(self, sentence: str) -> None:
        super().__init__(Fault.PROTOCOL, sentence)


class CallFailedError(SessionFaultError):
    """A call ended with an error; one sentence for the operator."""

    def __init__(self, sentence: str, *, aborted: bool) -> None:
        super().__init__(Fault.GAVE_WAY if aborted else Fault.LOST, sentence)


def shown(text: str) -> str:
    """Return a text of a peer, fit for a log and a terminal."""
    sane = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return sane if len(sane) <= MAX_PEER_TEXT_CHARS else sane[: MAX_PEER_TEXT_CHARS - 1] + "…"
