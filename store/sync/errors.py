"""What a peer may do wrong in a session, as either side of it sees it."""

from __future__ import annotations

from store.domain.ports import PeerFailed


class PeerSilent(PeerFailed):
    """The peer says nothing, or the session takes for ever."""


class ProtocolBroken(PeerFailed):
    """The peer did what the protocol does not allow."""
