"""The streams of a node: at most one with each peer, whichever side began it.

Where both sides connect, the stream that the lower node ID began stays, on both sides. A stream
that its peer begins anew replaces the one before, which may be dead without either side knowing.
"""

from __future__ import annotations

from typing import Protocol

from store.domain.ports import PeerAddress
from store.gossip.driver.errors import StreamClosed, Superseded
from store.gossip.driver.ports import Connector, FrameStream
from store.gossip.driver.stream import PeerStream, StreamUser
from store.gossip.events import FrameOut


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

    def __init__(self, node_id: str, user: StreamsUser, connector: Connector) -> None:
        self._node_id = node_id
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

    async def serve(self, frames: FrameStream, peer: str, store_id: str) -> None:
        """Pass the frames of a stream on that a peer began, until it ends.

        Raises:
            PeerFailed, FrameRejected, StreamClosed: see `PeerStream.run`.
        """
        await self._run(PeerStream(frames, peer, store_id, peer))

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

    def close(self, reason: StreamClosed) -> None:
        """End all streams for this reason."""
        for stream in list(self._streams.values()):
            self._remove(stream)
            stream.close(reason)

    async def _run(self, stream: PeerStream) -> None:
        self._replace(stream)
        self._streams[stream.peer] = stream
        self._user.joined(stream)
        try:
            await stream.run(self._user)
        finally:
            self._remove(stream)

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
