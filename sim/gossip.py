"""The gossip of a simulated node: the shipped driver on the simulated network and database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sim.calls import Status
from sim.limits import MAX_FRAME_IDS
from sim.process import Process
from sim.rng import happens
from sim.service import PUBLISH
from sim.store import FEED, SimMessages, SimStore, SimUnread
from sim.streams import GOSSIP, EndStream, SimConnector, StatusReceivedError
from store.domain.admission import Admission
from store.domain.hub import CommitRow
from store.domain.ports import PeerAddress, PeerError, Source
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import DriverDatabase, GossipConnection
from store.gossip.driver.streams import (
    FrameRejectedError,
    PeerHasStreamError,
    PeerRefusedError,
)
from store.gossip.events import Bodies, Count, FrameIn, listed
from store.gossip.machine import Gossip
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.messages.transfer import MalformedMessageError
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame

if TYPE_CHECKING:
    from sim.node import Node


SPREAD_S: Final = 30.0
"""The time within which a message is everywhere, and confirmed, without faults."""

_TIMEOUTS_S: Final = (0.5, 5.0, 60.0)
_CHECK_EVERY_STEPS: Final = 17
_RETOLD_COMMITS: Final = 4
_CALL: Final = "call"
_CALLS: Final = (_CALL, PUBLISH)
_FAILURES = {Status.ABORTED: PeerHasStreamError, Status.FAILED_PRECONDITION: PeerRefusedError}


class Frames:
    """An end of a call as a `store.gossip.driver.ports.GossipStream`."""

    def __init__(self, process: Process, stream: EndStream) -> None:
        self._node = process.node
        self._process = process
        self._stream = stream

    async def read(self) -> FrameIn | None:
        """Return the next frame, its messages judged."""
        self._require_life()
        with _peer_failures():
            frame = await self._stream.read()
        return None if frame is None else self._judged(frame)

    async def write(self, frame: RawGossipFrame) -> None:
        """Send a frame; what it says must be true."""
        self._require_life()
        self._node.world.counts["frames"] += 1
        self._node.world.gossip_checker.sends(self._node, frame)
        with _peer_failures():
            await self._stream.write(frame)

    def _require_life(self) -> None:
        if not self._process.alive:
            raise asyncio.CancelledError

    def _judged(self, frame: object) -> FrameIn:
        """Return a frame as the transport decodes it.

        Raises:
            FrameRejectedError: it is no frame of gossip, or too large.
        """
        if not isinstance(frame, RawGossipFrame):
            raise FrameRejectedError("this is no frame")
        if not frame.HasField("events"):
            if len(listed(frame).ids) > MAX_FRAME_IDS:
                raise FrameRejectedError("the frame has too many IDs")
            return frame
        messages = frame.events.messages
        node = self._node
        admission = Admission(node.policy(), node.clock.unix_ns(), Source.GOSSIP)
        try:
            admission.admit(messages)
        except MalformedMessageError as error:
            raise FrameRejectedError(str(error)) from None
        published = admission.admitted
        refused = [
            (published.hashes[index], refusal.label)
            for index, refusal in published.refusals.items()
        ]
        return Bodies(published.batch, refused, sum(map(len, messages)))


class _Connector(SimConnector):
    """Begins streams with peers: a `store.gossip.driver.ports.GossipConnector`."""

    @asynccontextmanager
    async def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[RawGossipFrame]]
    ) -> AsyncIterator[GossipConnection]:
        """Begin a stream; the peer is known at once, and needs no greeting."""
        del greeting
        process = self._process
        process.node.world.gossip_checker.connects(process.name, peer.host)
        with _peer_failures():
            async with self.call(peer, GOSSIP) as stream:
                there = stream.callee
                yield GossipConnection(Frames(process, stream), there.node_id, there.store_id)


@contextmanager
def _peer_failures() -> Iterator[None]:
    """Translate the status that a peer ended a call with."""
    try:
        yield
    except StatusReceivedError as error:
        raise _FAILURES.get(error.status, PeerError)(str(error)) from None


class Gossiping:
    """The gossip of one process, whose publishers wait for confirmations."""

    def __init__(self, owner: Node, process: Process, store: SimStore) -> None:
        self._process = process
        self._store = store
        world = self._world = owner.world
        self._owner = owner
        self._works: list[asyncio.Task[None]] = []
        self._steps = 0
        self._stopped = False
        confirms = partial(world.gossip_checker.confirms, owner, process.life)
        self.driver = GossipDriver(
            self._make,
            owner.who.node_id,
            owner.peers,
            database=DriverDatabase(
                SimMessages(process),
                process.own,
                store.unread_hashes,
                SimUnread(process, confirms),
                store.store,
            ),
            connector=_Connector(process),
            environment=process.world_env,
            count=lambda what, number, _: world.counts.update({str(what): number}),
        )

    async def serve(self, stream: EndStream) -> None:
        """Serve a stream that a peer has begun."""
        await self.driver.serve(Frames(self._process, stream), stream.caller)

    def start(self) -> None:
        """Begin all work."""
        for name, work in self.driver.work():
            self._works.append(self._process.begin_task(name, work()))

    def commits(self, commits: Sequence[CommitRow]) -> None:
        """Take commits in their order; report some again, as after a loss."""
        if commits and not self._stopped:
            self.driver.commits(commits)
            if happens(self._process.rng, self._world.gossip.retold):
                self.driver._reader._position = 0
                self.driver.commits(self._owner.database.commits[-_RETOLD_COMMITS:])

    def lost(self) -> None:
        """Note that the database has lost commits."""
        self._store.unread_hashes.clear()
        self.driver.lost()
        self._world.gossip_checker.found_losses(self._owner)

    async def stop(self) -> None:
        """End all work, in the order in which a node does."""
        self._stopped = True
        self.driver.close()
        names = _CALLS if self._world.gossip.beside else (*_CALLS, FEED)
        calls = [task for task in self._process.life.tasks if task.get_name() in names]
        ended = (*self._works, *calls)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        self.driver.stop()
        # The streams that peers began end by themselves.
        await asyncio.sleep(0.001)

    async def store(self, process: Process, batch: RecordBatch) -> StoreResult:
        """Make what was accepted durable; who wants confirmations waits for them."""
        world, hashes = self._world, batch.hashes
        asked = world.rng.choice(world.gossip.min_confirms)
        timeout_s = world.rng.choice(_TIMEOUTS_S)
        if hashes and hashes[0] in world.gossip_checker.in_peace:
            asked, timeout_s = len(world.reached(self._owner)), SPREAD_S
        stored = await self._store.store(batch, Source.CLIENT, asked)
        if asked and hashes and process.alive:
            process.begin_task(_CALL, self._confirm(batch, stored, asked, timeout_s))
        return stored

    async def _confirm(
        self, batch: RecordBatch, stored: StoreResult, asked: int, timeout_s: float
    ) -> None:
        places = [at for at in range(len(batch)) if at not in stored.conflicts]
        batch, new = batch.select(places), [stored[at] for at in places]
        hashes = batch.hashes
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await self.driver.waits.confirmed(
            hashes, batch.content_digests, new, asked, timeout_s
        )
        late_s = loop.time() - began_s - timeout_s
        self._world.gossip_checker.confirmed(self._owner, hashes, found, asked, late_s)

    def _make(self, count: Count) -> Gossip:
        gossip = self._world.gossip
        machine = Gossip(self._owner.database.store_id, gossip.max_confirms, gossip.limits, count)
        step = machine.step

        def checked(*args: Any) -> Any:  # noqa: ANN401 - those of a step
            effects = step(*args)
            self._steps += 1
            if not self._steps % _CHECK_EVERY_STEPS:
                machine.check()
            return effects

        machine.step = checked  # type: ignore[assignment,method-assign]
        return machine
