"""How a stream of gossip ends, in the words of neither gRPC nor a database."""

from __future__ import annotations

from store.domain.ports import PeerFailed


class PeerStalled(PeerFailed):
    """The peer takes no frames: it hangs, or the connection is dead."""


class PeerRefused(PeerFailed):
    """The peer will not exchange messages with this node, now or at all."""


class PeerHasStream(PeerFailed):
    """The peer keeps another stream with this node."""


class FrameRejected(Exception):
    """What the peer sent cannot be read, or passes a limit; one sentence."""


class StreamClosed(Exception):
    """This side has ended the stream; one sentence for the peer."""


class TurnedAway(StreamClosed):
    """The peer is cut off for a while."""


class Superseded(StreamClosed):
    """Another stream with the same peer goes before this one."""


class DriverFailed(StreamClosed):
    """The machine failed, which is a fault of this node."""


class Stopping(StreamClosed):
    """The node is stopping."""
