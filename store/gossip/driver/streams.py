"""The streams of a node: at most one with each peer, which either side may begin.

Where both sides connect, the stream that the lower node ID began stays, on both sides. A stream
that its peer begins anew replaces the one before, which may be dead without either side knowing.

Places are shared out by `store.domain.places`. A stream that this node began is trusted and keeps
its place; one of a peer waits as long as it brings no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from store.domain.environment import Environment
from store.domain.places import FREE, Caller, Places, Standing
from store.domain.ports import PeerAddress, PeerFailed
from store.gossip.driver.errors import (
    FrameRejectedError,
    PeerHasStreamError,
    PeerRefusedError,
    StreamClosedError,
    StreamSupersededError,
    TurnedAwayError,
)
from store.gossip.driver.ports import GossipConnector, GossipStream
from store.gossip.driver.stream import PeerStream
from store.gossip.limits import (
    LEAST_WAIT_NS,
    MAX_PEERS,
    RESERVED_PEERS,
    USEFUL_NS,
    WAIT_PATIENCE_NS,
)
from storenode.common.backoff import Backoff

if TYPE_CHECKING:
    from store.gossip.driver.driver import GossipDriver

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
"""Pauses after a peer that could not be reached, or that ended the stream."""

REFUSED_PAUSE_S: Final = 30.0
"""The pause after a peer that refuses, or that this node has turned away."""

STEADY_S: Final = 10.0
"""A stream that has lasted for so long makes the next pause the first again."""

PLACES: Final = Places(MAX_PEERS, RESERVED_PEERS, WAIT_PATIENCE_NS, LEAST_WAIT_NS)


class PeerStreams:
    """The streams there are; one object per node."""

    def __init__(
        self,
        node_id: str,
        driver: GossipDriver,
        connector: GossipConnector,
        steady_ns: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._steady_ns = steady_ns
        self._driver = driver
        self._connector = connector
        self._streams: dict[str, PeerStream] = {}
        self._closed: StreamClosedError | None = None

    def __len__(self) -> int:
        """Count the streams."""
        return len(self._streams)

    @property
    def queued_frames(self) -> int:
        """Frames of all streams that wait to be written."""
        return sum(stream.queued_frames for stream in self._streams.values())

    async def serve(self, frames: GossipStream, caller: Caller) -> None:
        """Pass the frames of a stream on that a peer began, until it ends.

        Raises:
            PeerFailed, FrameRejectedError, StreamClosedError: see `PeerStream.run`.
        """
        peer, now_ns = caller.node_id, self._steady_ns()
        await self._run(
            PeerStream(frames, peer, caller.store_id, peer, caller=caller, began_ns=now_ns)
        )

    async def connect(self, peer: PeerAddress) -> None:
        """Begin a stream, and pass its frames on until it ends.

        Raises:
            PeerFailed, FrameRejectedError, StreamClosedError: see `PeerStream.run`.
        """
        async with self._connector.connect(peer, self._driver.greeting) as made:
            await self._run(PeerStream(made.stream, made.node_id, made.store_id, self._node_id))

    async def absence(self, peer: PeerAddress) -> None:
        """Wait until there is no stream with a peer, if its ID is known."""
        while (stream := self._streams.get(self._connector.node_id(peer))) is not None:
            await stream.ended()

    def has(self, peer: PeerAddress) -> bool:
        """Return True while there is a stream with a peer."""
        return self._connector.node_id(peer) in self._streams

    def close(self, reason: StreamClosedError) -> None:
        """End all streams for this reason, and those that would begin later."""
        self._closed = reason
        for stream in list(self._streams.values()):
            self._remove(stream)
            stream.close(reason)

    async def _run(self, stream: PeerStream) -> None:
        if self._closed is not None:
            raise self._closed
        self._replace(stream)
        self._make_room(stream)
        self._streams[stream.peer] = stream
        self._driver.joined(stream)
        try:
            await stream.run(self._driver)
        finally:
            self._remove(stream)

    def _make_room(self, stream: PeerStream) -> None:
        now_ns, holders = self._steady_ns(), list(self._streams.values())
        standings = [_standing(now_ns, each) for each in holders]
        place = PLACES.choose(_standing(now_ns, stream), standings)
        if place is None:
            raise TurnedAwayError(
                f"limit of {PLACES.limit} peers, of which {PLACES.reserved} are for "
                "those that prove who they are, is reached: try again later"
            )
        if place != FREE:
            other = holders[place]
            self._remove(other)
            other.close(
                TurnedAwayError("the stream brought nothing, and its place went to another")
            )

    def _replace(self, stream: PeerStream) -> None:
        other = self._streams.get(stream.peer)
        if other is None:
            return
        if (
            other.initiator < stream.initiator
            or other.initiator == stream.initiator == self._node_id
        ):
            raise StreamSupersededError("there is a stream of gossip between the two already")
        self._remove(other)
        other.close(StreamSupersededError("another stream takes the place of this"))

    def _remove(self, stream: PeerStream) -> None:
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self._driver.left(stream)


def _standing(now_ns: int, stream: PeerStream) -> Standing:
    caller, brought_ns = stream.caller, stream.brought_ns
    if caller is None:
        return Standing(trusted=True, useful=True, address="")
    useful = brought_ns is not None and now_ns - brought_ns < USEFUL_NS
    waits_ns = now_ns - (stream.began_ns if brought_ns is None else brought_ns)
    return Standing(caller.trusted, useful, caller.address, waits_ns)


class PeerConnection:
    """A task that keeps a stream with one peer, unless the peer keeps one with this node."""

    def __init__(self, peer: PeerAddress, streams: PeerStreams, environment: Environment) -> None:
        self._peer = peer
        self._streams = streams
        self._environment = environment
        self._logged = ""
        self._is_refused = False
        self._absent_ns = 0

    def observe_absence(self) -> int:
        """Look for the stream, and return when there was first none; 0 while there is one.

        A peer that refuses streams is not absent.
        """
        if self._is_refused or self._streams.has(self._peer):
            self._absent_ns = 0
        else:
            self._absent_ns = self._absent_ns or self._environment.now_ns()
        return self._absent_ns

    async def run(self) -> None:
        """Connect until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            await self._streams.absence(self._peer)
            began_s = loop.time()
            least_s = await self._connect()
            if loop.time() - began_s > STEADY_S:
                backoff.reset()
            # Both sides may connect at the same moment; they should not do so again and again.
            share = self._environment.random.uniform(0.5, 1.0)
            await asyncio.sleep(max(least_s, backoff.take()) * share)

    async def _connect(self) -> float:
        """Run one stream to its end; return the shortest pause after it, in seconds."""
        try:
            await self._streams.connect(self._peer)
            self._is_refused = False
        except (PeerHasStreamError, StreamSupersededError):
            return 0.0
        except (PeerRefusedError, TurnedAwayError, FrameRejectedError) as error:
            self._is_refused = True
            self._log(str(error))
            return REFUSED_PAUSE_S
        except (PeerFailed, StreamClosedError) as error:
            self._is_refused = False
            self._log(str(error))
            return 0.0
        self._logged = ""
        return 0.0

    def _log(self, sentence: str) -> None:
        """Log why there is no stream, once for each reason."""
        if sentence != self._logged:
            self._logged = sentence
            self._environment.log.warning(
                "gossip_dial_failed", peer=str(self._peer), error=sentence
            )
