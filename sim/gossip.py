"""The gossip of a simulated node: the shipped driver on the simulated network and database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sim.bridge import Promise
from sim.calls import CallClosedError, End, Status
from sim.database import Database
from sim.limits import MAX_FRAME_IDS, NS_PER_MS
from sim.process import Process
from sim.rng import happens
from sim.service import PUBLISH
from store.domain.admission import Admission
from store.domain.hub import CommitRow
from store.domain.places import Caller
from store.domain.ports import NotServingError, PeerAddress, PeerError, Source
from store.domain.unread import Confirmed, UnreadEvent
from store.gossip.driver.driver import GossipDriver
from store.gossip.driver.ports import DriverDatabase, GossipConnection
from store.gossip.driver.streams import (
    FrameRejectedError,
    PeerHasStreamError,
    PeerRefusedError,
    StreamClosedError,
    StreamSupersededError,
    TurnedAwayError,
)
from store.gossip.events import Bodies, Committed, Count, FrameIn, GossipCounter, listed
from store.gossip.machine import Gossip
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from store.messages.transfer import MalformedMessageError
from storenode.common.bounded_dict import BoundedDict
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame

if TYPE_CHECKING:
    from sim.node import Node
    from sim.world import World

_T = TypeVar("_T")

GOSSIP: Final = "Gossip"
SPREAD_S: Final = 30.0
"""In peace, what is published is everywhere, and confirmed, within so long."""

_TIMEOUTS_S: Final = (0.5, 5.0, 60.0)
_CHECK_EVERY_STEPS: Final = 17
_REPORT_NS: Final = 20 * NS_PER_MS
_CALL: Final = "call"
_CALLS: Final = (_CALL, PUBLISH)
_FAILURES = {Status.ABORTED: PeerHasStreamError, Status.FAILED_PRECONDITION: PeerRefusedError}


class Frames:
    """An end of a call as a `store.gossip.driver.ports.GossipStream`."""

    def __init__(self, node: Node, end: End) -> None:
        self._node = node
        self._process = node.process
        self._end = end

    async def read(self) -> FrameIn | None:
        """Return the next frame, its messages judged."""
        self._require_life()
        try:
            frame = await self._end.read()
        except CallClosedError as error:
            raise _failure(error) from None
        return None if frame is None else self._judged(frame)

    async def write(self, frame: RawGossipFrame) -> None:
        """Send a frame; what it says must be true."""
        self._node.world.counts["frames"] += 1
        self._node.world.gossip_checker.sends(self._node, frame)
        self._require_life()
        try:
            await self._end.send(frame)
        except CallClosedError as error:
            raise _failure(error) from None

    def _require_life(self) -> None:
        if self._process is None or not self._process.alive:
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


class Connector:
    """Begins streams with peers: a `store.gossip.driver.ports.GossipConnector`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._answered: dict[PeerAddress, str] = {}

    @asynccontextmanager
    async def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[RawGossipFrame]]
    ) -> AsyncIterator[GossipConnection]:
        """Begin a stream; the peer is known at once, and needs no greeting."""
        del greeting
        node, process = self._node, self._node.process
        node.world.gossip_checker.connects(node.name, peer.host)
        try:
            end = await node.world.network.call(node.name, peer.host, GOSSIP, node.who)
        except CallClosedError as error:
            raise _failure(error) from None
        self._answered[peer] = end.there.node_id
        try:
            yield GossipConnection(Frames(node, end), end.there.node_id, end.there.store_id)
        finally:
            if process is not None and process.alive:
                end.cancel()

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that is known of a peer."""
        return self._answered.get(peer, peer.node_id)


async def serve_gossip(node: Node, driver: GossipDriver, end: End) -> None:
    """Serve the stream that a peer has begun, and end it with the reason."""
    process, status, sentence = node.process, Status.OK, ""
    try:
        caller = Caller(end.there.node_id, end.there.store_id, end.there.node_id)
        await driver.serve(Frames(node, end), caller)
    except StreamSupersededError as error:
        status, sentence = Status.ABORTED, str(error)
    except (TurnedAwayError, FrameRejectedError) as error:
        status, sentence = Status.FAILED_PRECONDITION, str(error)
    except (StreamClosedError, PeerError) as error:
        status, sentence = Status.UNAVAILABLE, str(error)
    finally:
        if process is not None and process.alive:
            end.finish(status, sentence)


def _failure(error: CallClosedError) -> PeerError:
    return _FAILURES.get(error.status, PeerError)(error.sentence)


class Session:
    """The messages of a store, and the transactions of one life of a node."""

    def __init__(self, world: World, process: Process, database: Database) -> None:
        self.database = database
        self._world = world
        self.process = process
        hashes = self.unread_hashes = BoundedDict[bytes, None](10**6)
        database.listeners[process] = lambda unread: hashes.update(dict.fromkeys(unread))
        process.at_end.append(self._end)

    async def call(self, name: str, begin: Callable[[], Promise[_T]]) -> _T:
        """Call the store; report a refusal to the checker."""
        if not self.process.alive:
            raise asyncio.CancelledError
        try:
            self.database.admit_write()
            return await begin()
        except NotServingError:
            if self.process.alive:
                self._world.gossip_checker.store_failed(self.process, name)
            raise

    def _end(self) -> None:
        del self.database.listeners[self.process]

    # Messages

    async def persist(self, batch: RecordBatch) -> StoreResult:
        """Store what a peer has sent."""
        return StoreResult(await self.write(batch, Source.GOSSIP, 0))

    async def write(self, batch: RecordBatch, source: Source, asked: int) -> list[bool]:
        """Store a batch durably; per message True if it was new."""
        write = partial(self.database.write, self.process, batch, source, asked)
        return await self.call("write", write)

    async def load(self, hashes: Sequence[bytes], max_bytes: int) -> Sequence[bytes | None]:
        """Read messages."""
        return await self.look(
            "load", lambda: self.database.read(map(self.database.stored.get, hashes), max_bytes)
        )

    async def content_digests(self, hashes: Sequence[bytes]) -> Sequence[bytes | None]:
        """Read the content digest of each message; None: it is not stored."""
        stored, digests = self.database.stored, self.database.digests
        return await self.look(
            "held", lambda: [digests[each] if each in stored else None for each in hashes]
        )

    async def arrived(self, commits: Sequence[CommitRow]) -> Committed:
        """Read what commits have added."""
        added = self.database.ids_of
        return await self._messages("arrived", lambda: [each for _, each in added(commits).pairs()])

    async def newest(self, limit: int) -> Committed:
        """Read the newest messages."""
        most = min(limit, self._world.gossip.replayed)
        return await self._messages("newest", lambda: self.database.log[-most:])

    async def _messages(self, name: str, find: Callable[[], list[bytes]]) -> Committed:
        def read() -> Committed:
            ids = [digest for digest in find() if digest in self.database.stored]
            graph = self.database.graph
            return Committed(ids, [graph[each] for each in ids if each in graph])

        return await self.look(name, read)

    async def look(self, name: str, work: Callable[[], _T]) -> _T:
        """Read something, all of it at one moment."""
        return await self.call(name, lambda: self.database.look(work))


class UnreadSession:
    """The table of unread events of one life of a node; ``confirmed`` is called with pairs."""

    def __init__(self, session: Session, confirmed: Callable[[Confirmed], None]) -> None:
        self._session = session
        self._database = session.database
        self._confirmed = confirmed

    async def newest(self, limit: int) -> Sequence[UnreadEvent]:
        """Read the newest unread events."""
        rows = self._database.unread
        return await self._read(
            "unread.newest",
            lambda: islice((each for each in reversed(rows) if not rows[each].expired), limit),
        )

    async def of(self, hashes: Sequence[bytes]) -> Sequence[UnreadEvent]:
        """Read the unread events of some messages."""
        rows = self._database.unread
        return await self._read("unread.of", lambda: (each for each in hashes if each in rows))

    async def is_shared(self) -> bool:
        """Return True if another node shares the database."""
        listeners = self._database.listeners
        return await self._session.look("unread.is_shared", lambda: len(listeners) > 1)

    async def confirm(self, confirmed: Sequence[Confirmed]) -> None:
        """Note confirmations."""

        def note() -> None:
            for each in confirmed:
                known = self._database.confirmed.setdefault(each.message_hash, {})
                if each.store_id not in known:  # and not reported again after a crash
                    self._confirmed(each)
                known[each.store_id] = None
                if each.message_hash in self._database.unread:
                    self._database.unread[each.message_hash].stores[each.store_id] = None

        await self._change("confirm", note)

    async def expire(self, hashes: Sequence[bytes]) -> None:
        """Expire unread events."""

        def note() -> None:
            for digest in self._database.unread.keys() & set(hashes):
                self._database.unread[digest].expired = True

        await self._change("expire", note)

    async def _read(self, name: str, find: Callable[[], Iterable[bytes]]) -> Sequence[UnreadEvent]:
        def read() -> list[UnreadEvent]:
            now_ns = self._session.process.timeline.now_ns
            return [self._database.unread[each].event(each, now_ns) for each in find()]

        return await self._session.look(name, read)

    async def _change(self, name: str, work: Callable[[], None]) -> None:
        def change() -> None:
            work()
            rows = self._database.unread
            for digest in [digest for digest, row in rows.items() if row.is_done]:
                del rows[digest]

        process = self._session.process
        await self._session.call(name, lambda: self._database.change(process, change))


class Gossiping:
    """The gossip of one process, whose publishers wait for confirmations."""

    def __init__(self, owner: Node, process: Process) -> None:
        self._process = process
        world = self._world = owner.world
        self._owner = owner
        self._works: list[asyncio.Task[None]] = []
        self._steps = 0
        self._reported_ns = 0
        session = Session(world, process, owner.database)
        hashes = session.unread_hashes
        unread = UnreadSession(session, partial(world.gossip_checker.confirms, owner, process.life))
        self.driver = GossipDriver(
            self._make,
            owner.who.node_id,
            owner.peers,
            database=DriverDatabase(session, process.own, hashes, unread, session.persist),
            connector=Connector(owner),
            environment=process.world_env,
            count=self._count,
        )

    def start(self) -> None:
        """Begin all work."""
        database = self._owner.database
        self._place = database.place
        database.followers[self] = self._hear
        self._process.at_end.append(self._unfollow)
        for name, work in self.driver.work():
            self._works.append(self._process.begin_task(name, _do(work)))

    def check(self) -> None:
        """Verify the bounds of what it keeps."""
        self._world.gossip_checker.check_bounds(self._owner.name, self.driver)

    async def stop(self) -> None:
        """End all work, in the order in which a node does."""
        self._unfollow()
        self.driver.close()
        calls = [task for task in self._process.life.tasks if task.get_name() in _CALLS]
        ended = (*self._works, *calls)
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        self.driver.stop()
        # The streams that peers began end by themselves.
        await asyncio.sleep(0.001)

    async def store(self, process: Process, batch: RecordBatch) -> None:
        """Make what was accepted durable; who wants confirmations waits for them."""
        world, hashes = self._world, batch.hashes
        asked, timeout_s = (
            world.rng.choice(world.gossip.min_confirms),
            world.rng.choice(_TIMEOUTS_S),
        )
        if hashes and hashes[0] in world.gossip_checker.in_peace:
            asked, timeout_s = len(world.reached(self._owner)), SPREAD_S
        write = self._owner.database.write(process, batch, Source.CLIENT, asked)
        stored = await write
        if asked and hashes and process.alive:
            process.begin_task(_CALL, self._confirm(batch, stored, asked, timeout_s))

    async def _confirm(
        self, batch: RecordBatch, stored: Sequence[bool], asked: int, timeout_s: float
    ) -> None:
        hashes = batch.hashes
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await self.driver.waits.confirmed(
            hashes, batch.content_digests, stored, asked, timeout_s
        )
        late_s = loop.time() - began_s - timeout_s
        self._world.gossip_checker.confirmed(self._owner, hashes, found, asked, late_s)

    # The commit feed

    def _hear(self) -> None:
        """Report commits a little later, in order; some again, or as lost."""
        timeline, rng, database = self._process.timeline, self._process.rng, self._owner.database
        rows = database.commits_after(self._place)
        if rows:
            self._place = rows[-1].place
            delay_ns = int(rng.uniform(0, _REPORT_NS))
            self._reported_ns = max(self._reported_ns, timeline.now_ns + delay_ns)
            is_lost = happens(rng, self._world.gossip.retold)
            rows = database.commits[-4:] if is_lost else rows
            timeline.at(self._reported_ns, partial(self._report, rows, is_lost))

    def _report(self, rows: Sequence[CommitRow], is_lost: bool) -> None:
        if self._process.alive:
            with self._process.life.inside():
                if is_lost:
                    self.driver.reader.lost()
                self.driver.reader.commits(rows)

    def _unfollow(self) -> None:
        self._owner.database.followers.pop(self, None)

    # What the machine counts

    def _count(self, what: GossipCounter, number: int, _reason: str) -> None:
        """Sum up what all machines count."""
        self._world.counts[str(what)] += number

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


async def _do(work: Callable[[], Awaitable[None]]) -> None:
    await work()
