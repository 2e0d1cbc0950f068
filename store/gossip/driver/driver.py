"""Drives a `store.gossip.machine.Gossip`: between the streams of peers, the database and commits.

    resting --a peer joins--> loading: the newest messages and the unread events are read
    loading --read--> running: frames and commits go in, effects are carried out
    running --no peer for a while--> resting: commits are ignored, and cost nothing
    any --the machine failed--> all streams end; resting, with a new machine

All inputs are taken on the event loop's thread, one after the other, also those that an effect
causes. Nothing here decides anything about messages or peers: the machine does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from store.domain.environment import Environment
from store.domain.hub import CommitRow
from store.domain.unread import GossipPeerState, UnreadEvent
from store.gossip.driver.database import (
    DATABASE_AWAY,
    CommitReader,
    Request,
    WriteBehind,
    answer,
)
from store.gossip.driver.ports import DriverDatabase, Meter
from store.gossip.driver.streams import DriverFailedError, PeerStream, TurnedAwayError
from store.gossip.events import (
    Bodies,
    Confirm,
    ConfirmationsWanted,
    Conflicting,
    CutOff,
    Effect,
    Expire,
    FrameIn,
    FrameReceived,
    FrameRejected,
    FrameSent,
    GossipCount,
    Input,
    Inventory,
    Listen,
    LoadBodies,
    LookUp,
    OutgoingBodies,
    PeerJoined,
    PeerLeft,
    PersistBatch,
    Read,
    Restored,
    Settled,
    TimerDue,
    WriteFrame,
)
from store.gossip.limits import CATCH_UP_IDS, MAX_OFFENDERS, MAX_UNREAD
from store.gossip.machine import Gossip
from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S

LOAD_RETRY_S: Final = 1.0
COMPARE_INTERVAL_S: Final = 10.0
"""How often unread events are compared with those of the database, which other nodes change too."""

GREETING_IDS: Final = 64
"""Messages that are announced to a peer before it has sent its name."""

COMPARED_AT_ONCE: Final = 4_096

RECENTLY_NS: Final = 5 * NS_PER_S
"""A store that left so long ago may be back at once, and one that never joined may yet join."""

ConfirmListener = Callable[[Sequence[bytes], Sequence[int]], None]


class GossipDriver:
    """The gossip of one node.

    ``make``: makes a machine. ``expected``: how many peers this node connects to.
    """

    def __init__(
        self,
        make: Callable[[], Gossip],
        database: DriverDatabase,
        environment: Environment,
        meter: Meter,
        *,
        expected: int,
    ) -> None:
        self._database = database
        self._log = environment.log
        self._meter = meter
        self._steady_ns = environment.steady_ns
        self._environment = environment
        self._expected = expected
        self._make = make
        self.on_confirmed: ConfirmListener = _ignore
        """Called with the number of stores that have confirmed each of some messages."""
        self._loop = asyncio.get_running_loop()
        machine = make()
        self._store_id = machine.store_id
        self._machine: Gossip | None = machine
        self._is_awake = False
        self._joining: dict[str, PeerStream] = {}
        self._streams: dict[str, PeerStream] = {}
        self._left_ns = BoundedDict[str, int](MAX_OFFENDERS)
        self._inputs: deque[Input] = deque()
        self._stepping = False
        self.turns = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._commits = CommitReader(database, self._log, self._take)
        self._writes = WriteBehind(database.unread, self._log)
        self._needs_loading = asyncio.Event()
        self._requests: dict[asyncio.Task[None], None] = {}

    # Lifecycle

    async def run(self) -> None:
        """Read and write what the machine needs, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._load, self._commits.run, self._writes.run, self._keep_comparing):
                tasks.create_task(work())

    def stop(self) -> None:
        """Take no input any more, and end what is under way."""
        self._machine = None
        self._inputs.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._requests):
            task.cancel()

    def commits(self, commits: Sequence[CommitRow]) -> None:
        """Take commits in their order; some may be reported again."""
        self._commits.add(commits)

    def lost(self) -> None:
        """Accept lower commit positions again, after the database has lost commits."""
        self._commits.lost()

    async def _load(self) -> None:
        """Read what the database holds for the machine, when peers join a resting node."""
        while True:
            await self._needs_loading.wait()
            self._commits.wake()
            try:
                newest = await self._database.messages.newest(CATCH_UP_IDS)
                unread = await self._database.unread.newest(MAX_UNREAD)
            except DATABASE_AWAY:
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            self._needs_loading.clear()
            if not self._joining:  # they have left again
                self._rest()
                continue
            self._is_awake = True
            self._take(replace(newest, fresh=False))
            self._restore(unread)
            self._log.info("gossip_loaded", messages=len(newest.ids), unread=len(unread))
            waiting, self._joining = list(self._joining.values()), {}
            for stream in waiting:
                self._join(stream)

    async def _keep_comparing(self) -> None:
        """Poll the unread events that other nodes on the database change; rest without peers."""
        while True:
            await asyncio.sleep(COMPARE_INTERVAL_S)
            if self._is_awake and not self._streams:
                self._rest()
            try:
                await self._database.unread.sweep()
                if self._is_awake:
                    await self._compare()
            except DATABASE_AWAY:
                continue

    @property
    def queued_writes(self) -> int:
        """Writes that the database has not taken yet."""
        return len(self._writes)

    @property
    def open_requests(self) -> int:
        """Requests of the machine that the database has not answered yet."""
        return len(self._requests)

    # From the rest of the node

    def want(
        self, hashes: Sequence[bytes], content_digests: Sequence[bytes], min_confirms: int
    ) -> None:
        """Request confirmations of messages that were stored before."""
        self._take(ConfirmationsWanted(hashes, min_confirms, content_digests))

    def reach(self) -> int | None:
        """Return how many other stores may confirm: connected now, recently, or soon.

        None: unknown, since this node calls no peer, and is called.
        """
        if not self._expected:
            return None
        recent_ns = self._steady_ns() - RECENTLY_NS
        streams = (*self._streams.values(), *self._joining.values())
        stores = {stream.store_id for stream in streams}
        stores |= {store for store, left_ns in self._left_ns.items() if left_ns > recent_ns}
        stores.discard(self._store_id)
        return max(len(stores), self._expected)

    def peers(self) -> list[GossipPeerState]:
        """Return the peers that are connected, and those that are cut off."""
        if self._machine is None:
            return []
        now_ns = self._steady_ns()
        ahead_ns = self._environment.now_ns() - now_ns
        return [
            each if each.connected else _at_clock(each, ahead_ns)
            for each in self._machine.peers()
            if each.connected or each.cut_off_until_ns > now_ns
        ]

    # Streams

    async def greeting(self) -> Inventory:
        """Return an announcement of the newest messages; see `GossipConnector.connect`."""
        try:
            newest = await self._database.messages.newest(GREETING_IDS)
        except DATABASE_AWAY:
            return Inventory(())
        return Inventory(newest.ids, newest.content_digests)

    def joined(self, stream: PeerStream) -> None:
        """Join the peer of a new stream; closing the stream refuses it."""
        if self._is_awake:
            self._join(stream)
        else:
            stream.listen(reading=False)
            self._joining[stream.peer] = stream
            self._needs_loading.set()

    def left(self, stream: PeerStream) -> None:
        """Remove a stream that has ended."""
        if self._joining.get(stream.peer) is stream:
            del self._joining[stream.peer]
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self._remember_left(stream.store_id)
            self._log.info("gossip_peer_left", peer=stream.peer)
            self._take(PeerLeft(stream.peer))

    def received(self, stream: PeerStream, frame: FrameIn) -> None:
        """Accept a frame."""
        if self._streams.get(stream.peer) is not stream:
            return
        if isinstance(frame, Bodies):
            self._meter.body_bytes("received", frame.size_bytes)
            if len(frame.batch):
                stream.brought_ns = self._steady_ns()
        self._take(FrameReceived(stream.peer, frame))

    def rejected(self, stream: PeerStream, reason: str) -> None:
        """Note that a frame of the peer cannot be read."""
        if self._streams.get(stream.peer) is stream:
            self._take(FrameRejected(stream.peer, reason))

    def sent(self, stream: PeerStream) -> None:
        """Note that the stream has written the last frame."""
        if self._streams.get(stream.peer) is stream:
            self._take(FrameSent(stream.peer))

    def _join(self, stream: PeerStream) -> None:
        self._streams[stream.peer] = stream
        self._log.info("gossip_peer_joined", peer=stream.peer, dialled_by=stream.initiator)
        stream.listen(reading=True)
        self._take(PeerJoined(stream.peer, stream.store_id))

    # The machine

    def _take(self, given: Input) -> None:
        """Run a step of the machine, and its effects."""
        if self._machine is None:
            return
        self._inputs.append(given)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs and self._machine is not None:
                self._step(self._machine, self._inputs.popleft())
        except Exception as error:  # noqa: BLE001 - a fault of this node, which serves on
            self._log.error("gossip_failed", exc_info=error)
            self._begin_anew()
        finally:
            self._stepping = False
        self._set_timer()

    def _step(self, machine: Gossip, given: Input) -> None:
        for effect in machine.step(self._steady_ns(), given):
            self._do(effect)

    def _begin_anew(self) -> None:
        self._machine = self._make()
        self._inputs.clear()
        self._rest()
        for stream in list(self._streams.values()):
            self._remember_left(stream.store_id)
            stream.close(DriverFailedError("the node failed on its gossip"))
        self._streams.clear()

    def _rest(self) -> None:
        """Ignore commits until a peer joins: what they bring is read then."""
        self._is_awake = False
        self._commits.rest()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = None if self._machine is None else self._machine.next_wake_ns
        if wake_ns is not None:
            delay_s = max(0, wake_ns - self._steady_ns()) / NS_PER_S
            self._timer = self._loop.call_later(delay_s, self._take, TimerDue())

    def _do(self, effect: Effect) -> None:
        match effect:
            case WriteFrame():
                self._send(effect)
            case Listen():
                self._listen(effect)
            case PersistBatch() | LoadBodies() | LookUp():
                self._ask(effect)
            case Confirm():
                self.on_confirmed(effect.ids, effect.counts)
                self._writes.add(effect)
            case Read():
                self._database.tracking.forget(effect.ids)
            case Expire():
                self._writes.add(effect)
            case CutOff():
                self._cut_off(effect)
            case Conflicting():
                fields = effect.conflict.fields()
                self._log.warning("message_conflict", source="gossip", peer=effect.peer, **fields)
            case GossipCount():
                self._meter.count(effect)

    def _send(self, effect: WriteFrame) -> None:
        stream = self._streams.get(effect.peer)
        if stream is None:
            return
        if isinstance(effect.frame, OutgoingBodies):
            self._meter.body_bytes("sent", sum(map(len, effect.frame.messages)))
        stream.send(effect.frame)

    def _listen(self, effect: Listen) -> None:
        stream = self._streams.get(effect.peer)
        if stream is not None:
            stream.listen(reading=effect.reading)

    def _ask(self, request: Request) -> None:
        machine = self._machine

        async def ask() -> None:
            given = await answer(self._database, self._environment, request)
            if self._machine is machine:  # a new machine has not asked
                self._take(given)

        task = asyncio.create_task(ask())
        self._requests[task] = None
        task.add_done_callback(lambda done: self._requests.pop(done, None))

    def _cut_off(self, effect: CutOff) -> None:
        stream = self._streams.pop(effect.peer, None)
        if stream is None:
            return
        self._remember_left(stream.store_id)
        seconds = round((effect.until_ns - self._steady_ns()) / NS_PER_S)
        write = self._log.warning if effect.fault else self._log.info
        write("gossip_peer_cut_off", peer=effect.peer, reason=effect.reason, seconds=seconds)
        stream.close(TurnedAwayError(effect.reason))

    def _remember_left(self, store_id: str) -> None:
        self._left_ns[store_id] = self._steady_ns()

    # Unread events

    async def _compare(self) -> None:
        """Update the unread events of the machine by the rows of the database.

        A row that this node lacks was added by another, or by a write that was never answered.
        """
        table, is_tracked = self._database.unread, self._database.tracking.is_tracked
        asked = self._unread_ids()
        found = await table.of(asked) if asked else ()
        newest = await table.newest(COMPARED_AT_ONCE)
        machine = self._machine
        if machine is None or not self._is_awake:
            return
        rows = {event.message_hash: event for event in found if not event.expired}
        still = [digest for digest in asked if machine.is_unread(digest)]
        gone = [digest for digest in still if digest not in rows and is_tracked(digest)]
        if gone:
            self._take(Settled(gone))
        left = [rows[digest] for digest in still if digest in rows]
        if left:
            self._take(Restored(left))
        self._adopt(newest)

    def _unread_ids(self) -> list[bytes]:
        return [] if self._machine is None else self._machine.unread(COMPARED_AT_ONCE)

    def _adopt(self, newest: Sequence[UnreadEvent]) -> None:
        machine = self._machine
        unknown = [
            event
            for event in newest
            if machine is not None and not machine.is_unread(event.message_hash)
        ]
        if unknown:
            self._restore(unknown)

    def _restore(self, newest: Sequence[UnreadEvent]) -> None:
        self._database.tracking.remember(event.message_hash for event in newest)
        self._take(Restored(list(reversed(newest))))


def _ignore(_ids: Sequence[bytes], _counts: Sequence[int]) -> None:
    return


def _at_clock(state: GossipPeerState, ahead_ns: int) -> GossipPeerState:
    return replace(state, cut_off_until_ns=state.cut_off_until_ns + ahead_ns)
