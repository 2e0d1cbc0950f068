"""Streams of gossip over the simulated network: frames, whose messages are judged as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sim.calls import Closed, End, Ended, Status
from sim.promise import Promise
from store.domain.admission import Admission
from store.domain.places import Caller
from store.domain.ports import PeerAddress, PeerFailed, Source
from store.gossip.driver.ports import GossipConnection
from store.gossip.driver.streams import (
    FrameRejectedError,
    PeerHasStreamError,
    PeerRefusedError,
    PeerStreams,
    StreamClosedError,
    StreamSupersededError,
    TurnedAwayError,
)
from store.gossip.events import (
    Bodies,
    FrameIn,
    FrameOut,
    GetEvents,
    Inventory,
    OutgoingBodies,
    SyncLeaves,
)
from store.messages.transfer import MalformedMessage

if TYPE_CHECKING:
    from sim.node import Node

GOSSIP: Final = "Gossip"

_FAILURES = {Status.ABORTED: PeerHasStreamError, Status.FAILED_PRECONDITION: PeerRefusedError}


class Frames:
    """An end of a call as a `store.gossip.driver.ports.GossipStream`."""

    def __init__(self, node: Node, end: End) -> None:
        self._node = node
        self._process = node.process
        self._end = end

    async def read(self) -> FrameIn | None:
        """Return the next frame, its messages judged."""
        frame = await self._kept(self._end.read())
        if not isinstance(frame, Ended):
            return self._judged(frame)
        if frame.status is Status.OK:
            return None
        raise _failure(frame.status, frame.sentence)

    async def write(self, frame: FrameOut) -> None:
        """Send a frame; what it says must be true."""
        self._node.world.counts["frames"] += 1
        self._node.world.gossip_checker.sends(self._node, frame)
        await self._kept(self._end.send(frame))

    async def _kept(self, promise: Promise[Any]) -> Any:  # noqa: ANN401 - a frame, or nothing
        if self._process is None or not self._process.alive:
            raise asyncio.CancelledError
        try:
            return await promise
        except Closed as error:
            raise _failure(error.status, error.sentence) from None

    def _judged(self, frame: object) -> FrameIn:
        """Return a frame as the transport decodes it.

        Raises:
            FrameRejectedError: it is no frame of gossip.
        """
        if isinstance(frame, Inventory | GetEvents | SyncLeaves):
            return frame
        if not isinstance(frame, OutgoingBodies):
            raise FrameRejectedError("this is no frame")
        node = self._node
        admission = Admission(node.policy(), node.clock.unix_ns(), Source.GOSSIP)
        try:
            admission.admit(frame.messages)
        except MalformedMessage as error:
            raise FrameRejectedError(str(error)) from None
        published = admission.admitted
        refused = [
            (published.hashes[index], refusal.label)
            for index, refusal in published.refusals.items()
        ]
        return Bodies(published.batch, refused, sum(map(len, frame.messages)))


class Connector:
    """Begins streams with peers: a `store.gossip.driver.ports.GossipConnector`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answered: dict[PeerAddress, str] = {}

    @asynccontextmanager
    async def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[FrameOut]]
    ) -> AsyncIterator[GossipConnection]:
        """Begin a stream; the peer is known at once, and needs no greeting."""
        del greeting
        node, process = self._node, self._node.process
        node.world.gossip_checker.connects(node.name, peer.host)
        try:
            end = await node.world.network.call(node.name, peer.host, GOSSIP, node.who)
        except Closed as error:
            raise _failure(error.status, error.sentence) from None
        self._answered[peer] = end.there.node_id
        try:
            yield GossipConnection(Frames(node, end), end.there.node_id, end.there.store_id)
        finally:
            if process is not None and process.alive:
                end.cancel()

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that is known of a peer."""
        return self._answered.get(peer, peer.node_id)


async def serve_gossip(node: Node, streams: PeerStreams, end: End) -> None:
    """Serve the stream that a peer has begun, and end it with the reason."""
    process, status, sentence = node.process, Status.OK, ""
    try:
        caller = Caller(end.there.node_id, end.there.store_id, end.there.node_id)
        await streams.serve(Frames(node, end), caller)
    except StreamSupersededError as error:
        status, sentence = Status.ABORTED, str(error)
    except (TurnedAwayError, FrameRejectedError) as error:
        status, sentence = Status.FAILED_PRECONDITION, str(error)
    except (StreamClosedError, PeerFailed) as error:
        status, sentence = Status.UNAVAILABLE, str(error)
    finally:
        if process is not None and process.alive:
            end.finish(status, sentence)


def _failure(status: Status, sentence: str) -> PeerFailed:
    return _FAILURES.get(status, PeerFailed)(sentence)
