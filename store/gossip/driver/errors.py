"""Errors that end a gossip stream, independent of gRPC and the database."""

from __future__ import annotations

from store.domain.ports import PeerFailed


class PeerStalledError(PeerFailed):
    """The peer takes no frames: it hangs, or the connection is dead."""


class PeerRefusedError(PeerFailed):
    """The peer will not exchange messages with this node, now or at all."""


class PeerHasStreamError(PeerFailed):
    """The peer keeps another stream with this node."""


class FrameRejectedError(Exception):
    """A frame of the peer is malformed or beyond a limit; one sentence."""


class StreamClosedError(Exception):
    """The end of a stream by this side; one sentence for the peer."""


class TurnedAwayError(StreamClosedError):
    """The peer is cut off for a while."""


class StreamSupersededError(StreamClosedError):
    """A stream that gives way to another with the same peer."""


class DriverFailedError(StreamClosedError):
    """The machine failed, which is a fault of this node."""


class NodeStoppingError(StreamClosedError):
    """The node is stopping."""
