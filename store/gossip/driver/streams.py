"""The streams of a node: at most one with each peer, whichever side began it.

Where both sides connect, the stream that the lower node ID began stays, on both sides. A stream
that its peer begins anew replaces the one before, which may be dead without either side knowing.

Places are shared out by `store.domain.places`. A stream that this node began is trusted and keeps
its place; one of a peer waits as long as it brings no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from store.domain.places import FREE, Caller, Places, Standing
from store.domain.ports import PeerAddress
from store.gossip.driver.errors import StreamClosed, Superseded, TurnedAway
from store.gossip.driver.ports import Connector, FrameStream
from store.gossip.driver.stream import PeerStream, StreamUser
from store.gossip.events import FrameOut
from store.gossip.limits import (
    LEAST_WAIT_NS,
    MAX_PEERS,
    RESERVED_PEERS,
    USEFUL_NS,
    WAIT_PATIENCE_NS,
)

PLACES: Final = Places(MAX_PEERS, RESERVED_PEERS, WAIT_PATIENCE_NS, LEAST_WAIT_NS)


class StreamsUser(StreamUser, Protocol):
    """The driver, as its streams see it; all on the event loop's thread."""

    async def greeting(self) -> FrameOut:
        """What a peer can be told before it is known who it is."""

    def joined(self, stream: PeerStream) -> None:
        """There is a stream with a peer; closing it turns the peer away."""

    def left(self, stream: PeerStream) -> None:
        """The stream is gone."""


class PeerStreams:
    """The streams there are; one object per node."""

    def __init__(
        self,
        node_id: str,
        user: StreamsUser,
        connector: Connector,
        steady_ns: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._steady_ns = steady_ns
        self._user = user
        self._connector = connector
        self._streams: dict[str, PeerStream] = {}

    def __len__(self) -> int:
        """Count the streams."""
        return len(self._streams)

    @property
    def queued_frames(self) -> int:
        """Frames of all streams that wait to be written."""
        return sum(stream.queued_frames for stream in self._streams.values())

    async def serve(self, frames: FrameStream, caller: Caller) -> None:
        """Pass the frames of a stream on that a peer began, until it ends.

        Raises:
            PeerFailed, FrameRejected, StreamClosed: see `PeerStream.run`.
        """
        peer, now_ns = caller.node_id, self._steady_ns()
        await self._run(
            PeerStream(frames, peer, caller.store_id, peer, caller=caller, began_ns=now_ns)
        )

    async def connect(self, peer: PeerAddress) -> None:
        """Begin a stream, and pass its frames on until it ends.

        Raises:
            PeerFailed, FrameRejected, StreamClosed: see `PeerStream.run`.
        """
        async with self._connector.connect(peer, self._user.greeting) as made:
            await self._run(PeerStream(made.stream, made.node_id, made.store_id, self._node_id))

    async def absence(self, peer: PeerAddress) -> None:
        """Wait until there is no stream with a peer, if its ID is known."""
        while (stream := self._streams.get(self._connector.node_id(peer))) is not None:
            await stream.ended()

    def has(self, peer: PeerAddress) -> bool:
        """Return True while there is a stream with a peer."""
        return self._connector.node_id(peer) in self._streams

    def close(self, reason: StreamClosed) -> None:
        """End all streams for this reason."""
        for stream in list(self._streams.values()):
            self._remove(stream)
            stream.close(reason)

    async def _run(self, stream: PeerStream) -> None:
        self._replace(stream)
        self._make_room(stream)
        self._streams[stream.peer] = stream
        self._user.joined(stream)
        try:
            await stream.run(self._user)
        finally:
            self._remove(stream)

    def _make_room(self, stream: PeerStream) -> None:
        now_ns, holders = self._steady_ns(), list(self._streams.values())
        standings = [_standing(now_ns, each) for each in holders]
        place = PLACES.choose(_standing(now_ns, stream), standings)
        if place is None:
            raise TurnedAway(
                f"limit of {PLACES.limit} peers, of which {PLACES.reserved} are for "
                "those that prove who they are, is reached: try again later"
            )
        if place != FREE:
            other = holders[place]
            self._remove(other)
            other.close(TurnedAway("the stream brought nothing, and its place went to another"))

    def _replace(self, stream: PeerStream) -> None:
        other = self._streams.get(stream.peer)
        if other is None:
            return
        if (
            other.initiator < stream.initiator
            or other.initiator == stream.initiator == self._node_id
        ):
            raise Superseded("there is a stream of gossip between the two already")
        self._remove(other)
        other.close(Superseded("another stream takes the place of this"))

    def _remove(self, stream: PeerStream) -> None:
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self._user.left(stream)


def _standing(now_ns: int, stream: PeerStream) -> Standing:
    caller, brought_ns = stream.caller, stream.brought_ns
    if caller is None:
        return Standing(trusted=True, useful=True, address="")
    useful = brought_ns is not None and now_ns - brought_ns < USEFUL_NS
    waits_ns = now_ns - (stream.began_ns if brought_ns is None else brought_ns)
    return Standing(caller.trusted, useful, caller.address, waits_ns)
