"""A node: what stays of it over its lives, and one life, which runs the shipped driver."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sim.dice import happens
from sim.gossiping.loop import Life
from sim.gossiping.network import End, Identity
from sim.gossiping.store import MAX_NEEDED, Store, StoreSession, UnreadSession
from sim.limits import START_NS
from store.domain.admission import Admission, Verdict
from store.domain.ports import PeerAddress, PeerFailed, Source, StoreBusy, StoreUnavailable
from store.gossip.driver.errors import (
    FrameRejected,
    PeerHasStream,
    PeerRefused,
    StreamClosed,
    Superseded,
    TurnedAway,
)
from store.gossip.driver.node import GossipNode
from store.gossip.driver.ports import Clocks, Connection, Database, Environment
from store.gossip.events import (
    Bodies,
    Counted,
    Events,
    FrameIn,
    FrameOut,
    GetEvents,
    Inventory,
    SyncLeaves,
)
from store.gossip.machine import Gossip
from store.messages.transfer import MalformedMessage
from storenode.message.rules import Policy

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

MAX_DRIFT_NS: Final = 20_000_000_000
_T = TypeVar("_T")

_PORT: Final = 7420
_HELD: Final = (Verdict.ACCEPTED, Verdict.DUPLICATE)
_TIMEOUTS_S: Final = (0.5, 5.0, 60.0)
_CHECK_EVERY_STEPS: Final = 17
_MILLION: Final = 1_000_000


class SimNode:
    """One node; a `sim.gossiping.network.Host`. ``life`` is None while it is down."""

    def __init__(self, world: GossipWorld, number: int, store: Store) -> None:
        self.world = world
        self.number = number
        self.name = f"n{number}"
        self.store = store
        self.who = Identity(f"node-{number}", store.store_id)
        named = [happens(world.dice, 0.5) for _ in world.gossip.peers[number]]
        self.peers = tuple(
            PeerAddress(f"n{peer}", _PORT, f"node-{peer}" if is_named else "")
            for peer, is_named in zip(world.gossip.peers[number], named, strict=True)
        )
        self.offset_ns = 0
        most = world.gossip.faults.drift_ppm
        self.drift_ppm = world.dice.randint(-most, most)
        self.life: NodeLife | None = None
        self.crashes = 0

    @property
    def identity(self) -> Identity | None:
        """The identity that answers."""
        return None if self.life is None else self.who

    def accept(self, end: End, peer: Identity) -> None:
        """Serve a link."""
        if self.life is not None:
            self.life.spawn("served stream", self.life.serve(end, peer))

    def unix_ns(self) -> int:
        """The node's clock."""
        return self.world.now_ns() + self.offset_ns

    def steady_ns(self) -> int:
        """A clock that never jumps, but drifts."""
        elapsed_ns = self.world.now_ns() - START_NS
        return elapsed_ns + elapsed_ns * self.drift_ppm // _MILLION

    def boot(self) -> None:
        """Begin a life."""
        if self.life is None:
            self.world.note(self.name, "starts")
            self.life = NodeLife(self)
            self.life.start()

    def crash(self, why: str) -> None:
        """End a life as a kill does: what is in memory is gone."""
        life, self.life = self.life, None
        if life is None:
            return
        self.world.note(self.name, f"crashes {why}")
        self.crashes += 1
        life.life.end()
        life.session.close()
        self.world.network.drop_links(self.name)

    async def stop(self) -> None:
        """Shut down as a node does; nothing may be left of it."""
        life, self.life = self.life, None
        if life is not None:
            self.world.note(self.name, "stops")
            await life.stop()
            self.world.judge.stopped(self.name, life.life)


class NodeLife:
    """From a start to a crash; implements `Connector`, `Log` and `Meter` of the driver's ports."""

    def __init__(self, node: SimNode) -> None:
        world = node.world
        self.node = node
        self.world = world
        self.life = Life(node.name)
        self._works: dict[asyncio.Task[None], None] = {}
        self._calls: dict[asyncio.Task[bool], None] = {}
        self._steps = 0
        self._answered: dict[PeerAddress, str] = {}
        with self.life.inside():
            self.session = StoreSession(node.store, self.life, self._crash_soon)
            unread = UnreadSession(self.session, partial(world.judge.confirms, self))
            self.gossip = GossipNode(
                world.config_of(node.store),
                node.who.node_id,
                node.peers,
                database=Database(self.session, self.session, unread, self.session.persist),
                connector=self,
                environment=Environment(
                    Clocks(node.unix_ns, node.steady_ns), world.dice, self, self
                ),
                max_needed=MAX_NEEDED,
                make=self._make,
            )
        self.session.on_commits = self.gossip.driver.commits
        self.session.on_lost = self.gossip.driver.lost

    def start(self) -> None:
        """Begin all work."""
        for name, work in self.gossip.work():
            task = self.spawn(name, _do(work))
            self._works[task] = None

    async def stop(self) -> None:
        """End all work, in the order in which a node does."""
        self.session.close()
        self.gossip.close()
        ended = (*self._works, *self._calls)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        self.gossip.driver.stop()
        # The streams that peers began end by themselves.
        await asyncio.sleep(0.001)

    def spawn(self, name: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Run something as a part of this life."""
        with self.life.inside():
            task = self.world.loop.create_task(work, name=name)
        task.add_done_callback(self.world.ended)
        return task

    def call(self, work: Callable[[], Awaitable[object]]) -> asyncio.Task[bool]:
        """Run a call of a client; False: it failed, since the store did."""
        task = self.spawn("call", _served(work))
        self._calls[task] = None
        task.add_done_callback(lambda done: self._calls.pop(done, None))
        return task

    async def publish(
        self, messages: Sequence[bytes], asked: int, timeout_s: float | None = None
    ) -> None:
        """Serve a publisher: store, acknowledge, and wait for confirmations if it wants any."""
        world = self.world
        admission = Admission(self._policy(), self.node.unix_ns(), Source.CLIENT)
        admission.admit(messages)
        published = admission.admitted
        hashes = published.batch.hashes
        stored = await self.session.write(published.batch, Source.CLIENT, asked) if hashes else []
        held = [
            digest
            for digest, verdict in zip(published.hashes, published.verdicts, strict=True)
            if verdict in _HELD
        ]
        world.judge.acknowledges(self.node.store, held)
        world.note(self.node.name, f"stores {sum(stored)} of {len(messages)}")
        if asked and hashes:
            began_s, timeout_s = world.loop.time(), timeout_s or world.dice.choice(_TIMEOUTS_S)
            found = await self.gossip.waits.confirmed(hashes, stored, asked, timeout_s)
            late_s = world.loop.time() - began_s - timeout_s
            world.judge.confirmed(self.node, hashes, found, asked, late_s)

    async def serve(self, end: End, peer: Identity) -> None:
        """Serve the link that a peer has begun, and end it with the reason."""
        fault: PeerFailed | None = None
        try:
            frames = Frames(self, end)
            await self.gossip.streams.serve(frames, peer.node_id, peer.store_id)
        except Superseded as error:
            fault = PeerHasStream(str(error))
        except (TurnedAway, FrameRejected) as error:
            fault = PeerRefused(str(error))
        except (StreamClosed, PeerFailed) as error:
            fault = PeerFailed(str(error))
        finally:
            if not self.life.ended:
                end.close(fault)

    # Connector

    @asynccontextmanager
    async def connect(self, peer: PeerAddress) -> AsyncIterator[Connection]:
        """Begin a link."""
        node = self.node
        async with self.world.network.connect(node.name, node.who, peer.host) as (end, there):
            self._answered[peer] = there.node_id
            yield Connection(Frames(self, end), there.node_id, there.store_id)

    def node_id(self, peer: PeerAddress) -> str:
        """The ID that is known of a peer."""
        return self._answered.get(peer, peer.node_id)

    # Log and Meter

    def info(self, event: str, **fields: object) -> None:
        """Note it."""
        if not self.life.ended:
            told = " ".join(f"{name}={value}" for name, value in fields.items())
            self.world.note(self.node.name, f"{event} {told}")

    def warning(self, event: str, **fields: object) -> None:
        """Note it; no honest peer may be cut off."""
        self.info(event, **fields)
        if event == "gossip_peer_cut_off":
            self.world.judge.cuts_off(self.node, str(fields["peer"]), str(fields["reason"]))

    def exception(self, event: str, **fields: object) -> None:
        """Fail the run: the driver, or the machine, is at fault."""
        del fields
        if not self.life.ended:
            self.world.judge.fail(f"{self.node.name}: {event}: {traceback.format_exc(limit=-4)}")

    def count(self, counted: Counted) -> None:
        """Sum up what all machines count."""
        self.world.counts[counted.what] += counted.count

    def stored(self, new: int, duplicates: int) -> None:
        """The store knows."""

    def body_bytes(self, direction: str, count: int) -> None:
        """Nobody asks."""

    def _policy(self) -> Policy:
        return Policy(max_drift_ns=MAX_DRIFT_NS)

    def judged(self, frame: object) -> FrameIn:
        """A frame as the transport decodes it.

        Raises:
            FrameRejected: it is no frame of gossip.
        """
        if not isinstance(frame, Events):
            if isinstance(frame, Inventory | GetEvents | SyncLeaves):
                return frame
            raise FrameRejected("this is no frame")
        admission = Admission(self._policy(), self.node.unix_ns(), Source.GOSSIP)
        try:
            admission.admit(frame.messages)
        except MalformedMessage as error:
            raise FrameRejected(str(error)) from None
        published = admission.admitted
        refused = [
            (published.hashes[index], refusal.label)
            for index, refusal in published.refusals.items()
        ]
        return Bodies(published.batch, refused, sum(map(len, frame.messages)))

    def _make(self, *given: Any) -> Gossip:  # noqa: ANN401 - a configuration
        machine = self.world.make(*given)
        step = machine.step

        def checked(*args: Any) -> Any:  # noqa: ANN401 - those of a step
            effects = step(*args)
            self._steps += 1
            if not self._steps % _CHECK_EVERY_STEPS:
                machine.check()
            return effects

        machine.step = checked  # type: ignore[assignment,method-assign]
        return machine

    def _crash_soon(self) -> None:
        self.world.loop.call_soon(self._crash)

    def _crash(self) -> None:
        if self.node.life is self:
            self.world.marks["crash after a commit"] += 1
            self.node.crash("after a commit")
            self.world.restart_later(self.node)


class Frames:
    """An end of a link as a `store.gossip.driver.ports.FrameStream`."""

    def __init__(self, life: NodeLife, end: End) -> None:
        self._life = life
        self._end = end

    async def read(self) -> FrameIn | None:
        """The next frame, its messages judged."""
        frame = await self._end.read()
        return None if frame is None else self._life.judged(frame)

    async def write(self, frame: FrameOut) -> None:
        """Send a frame; what it says must be true."""
        self._life.world.frames += 1
        self._life.world.judge.sends(self._life.node, frame)
        await self._end.write(frame)


async def _served(work: Callable[[], Awaitable[object]]) -> bool:
    try:
        await work()
    except (StoreUnavailable, StoreBusy):
        return False
    return True


async def _do(work: Callable[[], Awaitable[None]]) -> None:
    await work()
