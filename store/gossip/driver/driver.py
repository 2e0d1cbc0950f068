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
from itertools import islice
from typing import Final

from store.domain.environment import Environment
from store.domain.hub import CommitRow
from store.domain.unread import GossipPeerState, UnreadEvent
from store.gossip.config import GossipConfig
from store.gossip.driver.commits import CommitReader
from store.gossip.driver.errors import DriverFailed, TurnedAway
from store.gossip.driver.ports import DriverDatabase, Meter
from store.gossip.driver.requests import DATABASE_AWAY, Request, WriteBehind, answer
from store.gossip.driver.stream import PeerStream
from store.gossip.events import (
    Bodies,
    Committed,
    Confirm,
    Conflicting,
    Counted,
    CutOff,
    Effect,
    Events,
    Expire,
    FrameIn,
    Input,
    Inventory,
    Listen,
    Load,
    LookUp,
    PeerJoined,
    PeerLeft,
    Persist,
    Publishing,
    Read,
    Received,
    Restored,
    Send,
    Sent,
    Settled,
    Tick,
    Waiting,
    Wanted,
    What,
)
from store.gossip.limits import CATCH_UP_IDS, DEFAULT_CUT_OFF_NS, MAX_OFFENDERS, MAX_UNREAD
from store.gossip.machine import Gossip
from storenode.common.bounded import BoundedDict
from storenode.message.limits import NS_PER_S

LOAD_RETRY_S: Final = 1.0
COMPARE_INTERVAL_S: Final = 10.0
"""How often unread events are compared with those of the database, which other nodes change too."""

GREETING_IDS: Final = 64
"""Messages that a peer is told of before it has said who it is."""

COMPARED_AT_ONCE: Final = 4_096

RECENTLY_NS: Final = 5 * NS_PER_S
"""A store that left so long ago may be back at once, and one that never joined may yet join."""

ConfirmListener = Callable[[Sequence[bytes], Sequence[int]], None]


class GossipDriver:
    """The gossip of one node; implements `store.gossip.driver.streams.StreamsUser`.

    ``expected``: how many peers this node connects to. ``make``: makes the machine.
    """

    def __init__(
        self,
        config: GossipConfig,
        database: DriverDatabase,
        environment: Environment,
        meter: Meter,
        *,
        expected: int,
        make: Callable[[GossipConfig], Gossip] = Gossip,
    ) -> None:
        self._config = config
        self._database = database
        self._log = environment.log
        self._meter = meter
        self._steady_ns = environment.steady_ns
        self._environment = environment
        self._expected = expected
        self._make = make
        self.on_confirmed: ConfirmListener = _ignore
        """Told how many stores have confirmed each of some messages."""
        self._loop = asyncio.get_running_loop()
        self._machine: Gossip | None = make(config)
        self._is_awake = False
        self._joining: dict[str, PeerStream] = {}
        self._streams: dict[str, PeerStream] = {}
        self._left_ns = BoundedDict[str, int](MAX_OFFENDERS)
        self._banned = BoundedDict[str, tuple[int, str]](MAX_OFFENDERS)
        self._unread = BoundedDict[bytes, None](MAX_UNREAD)
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
        """Commits were lost."""
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
        """Learn what other nodes on the database did with unread events; rest without peers."""
        while True:
            await asyncio.sleep(COMPARE_INTERVAL_S)
            if self._is_awake and not self._streams:
                self._rest()
            try:
                await self._database.unread.sweep()
                some = list(islice(self._unread, COMPARED_AT_ONCE))
                if some:
                    self._compare(some, await self._database.unread.of(some))
                if self._is_awake:
                    self._adopt(await self._database.unread.newest(COMPARED_AT_ONCE))
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
        """A publisher wants confirmations of what was held before it came."""
        self._take(Wanted(hashes, min_confirms, content_digests))

    def reach(self) -> int | None:
        """How many other stores may confirm: those that are joined, were lately, or may be soon.

        None: nobody knows, since this node calls no peer, and is called.
        """
        if not self._expected:
            return None
        recent_ns = self._steady_ns() - RECENTLY_NS
        streams = (*self._streams.values(), *self._joining.values())
        stores = {stream.store_id for stream in streams}
        stores |= {store for store, left_ns in self._left_ns.items() if left_ns > recent_ns}
        stores.discard(self._config.store_id)
        return max(len(stores), self._expected)

    def peers(self) -> list[GossipPeerState]:
        """Those that are joined, and those that are turned away."""
        if self._machine is None:
            return []
        status, ahead_ns = self._machine.status(), self._environment.now_ns() - self._steady_ns()
        found = [
            GossipPeerState(each.peer, each.store_id, connected=True, slowed=each.slowed)
            for each in status.peers
        ]
        banned = [(peer, *why) for peer, why in self._banned.items()]
        for peer, until_ns, reason in (*status.cut_off, *banned):
            if until_ns > self._steady_ns():
                found.append(GossipPeerState(peer, "", False, False, until_ns + ahead_ns, reason))
        return found

    # Streams

    async def greeting(self) -> Inventory:
        """The newest messages that are held: one who lacks any, or holds them too, answers it."""
        try:
            newest = await self._database.messages.newest(GREETING_IDS)
        except DATABASE_AWAY:
            return Inventory(())
        return Inventory(newest.ids, newest.content_digests)

    def joined(self, stream: PeerStream) -> None:
        """There is a stream with a peer."""
        banned = self._banned.get(stream.peer)
        if banned is not None and banned[0] > self._steady_ns():
            stream.close(TurnedAway(banned[1]))
        elif self._is_awake:
            self._join(stream)
        else:
            stream.listen(reading=False)
            self._joining[stream.peer] = stream
            self._needs_loading.set()

    def left(self, stream: PeerStream) -> None:
        """A stream is no more."""
        if self._joining.get(stream.peer) is stream:
            del self._joining[stream.peer]
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self._remember_left(stream.store_id)
            self._log.info("gossip_peer_left", peer=stream.peer)
            self._take(PeerLeft(stream.peer))
        if stream.fault is not None:
            self._ban(stream.peer, str(stream.fault))

    def received(self, stream: PeerStream, frame: FrameIn) -> None:
        """A frame has come."""
        if self._streams.get(stream.peer) is not stream:
            return
        if isinstance(frame, Bodies):
            self._meter.body_bytes("received", frame.size_bytes)
            if len(frame.batch):
                stream.brought_ns = self._steady_ns()
        self._take(Received(stream.peer, frame))

    def sent(self, stream: PeerStream) -> None:
        """A frame was taken."""
        if self._streams.get(stream.peer) is stream:
            self._take(Sent(stream.peer))

    def _join(self, stream: PeerStream) -> None:
        self._streams[stream.peer] = stream
        self._log.info("gossip_peer_joined", peer=stream.peer, dialled_by=stream.initiator)
        stream.listen(reading=True)
        self._take(PeerJoined(stream.peer, stream.store_id))

    # The machine

    def _take(self, given: Input) -> None:
        """Take an input, and carry out its effects."""
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
        self._remember_unread(given)
        for effect in machine.step(self._steady_ns(), given):
            self._do(effect)

    def _begin_anew(self) -> None:
        self._machine = self._make(self._config)
        self._inputs.clear()
        self._rest()
        for stream in list(self._streams.values()):
            self._remember_left(stream.store_id)
            stream.close(DriverFailed("the node failed on its gossip"))
        self._streams.clear()

    def _rest(self) -> None:
        """Ignore commits until a peer joins: what they bring is read then."""
        self._is_awake = False
        self._commits.rest()
        self._unread.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = None if self._machine is None else self._machine.next_wake_ns
        if wake_ns is not None:
            delay_s = max(0, wake_ns - self._steady_ns()) / NS_PER_S
            self._timer = self._loop.call_later(delay_s, self._take, Tick())

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case Listen():
                self._listen(effect)
            case Persist() | Load() | LookUp():
                self._ask(effect)
            case Confirm():
                self.on_confirmed(effect.ids, effect.counts)
                self._writes.add(effect)
            case Read():
                self._forget(effect.ids)
                self._database.tracking.forget(effect.ids)
            case Expire():
                self._forget(effect.ids)
                self._writes.add(effect)
            case Waiting():
                self._writes.add(effect)
            case CutOff():
                self._cut_off(effect)
            case Conflicting():
                fields = effect.conflict.fields()
                self._log.warning("message_conflict", source="gossip", peer=effect.peer, **fields)
            case Counted():
                self._meter.count(effect)

    def _send(self, effect: Send) -> None:
        stream = self._streams.get(effect.peer)
        if stream is None:
            return
        if isinstance(effect.frame, Events):
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
        stream.close(TurnedAway(effect.reason))

    def _ban(self, peer: str, reason: str) -> None:
        """Turn a peer away that sends what cannot be read."""
        self._log.warning("gossip_peer_cut_off", peer=peer, reason=reason)
        self._meter.count(Counted(What.CUT_OFF, 1))
        self._banned[peer] = self._steady_ns() + DEFAULT_CUT_OFF_NS, reason

    def _remember_left(self, store_id: str) -> None:
        self._left_ns[store_id] = self._steady_ns()

    # Unread events

    def _remember_unread(self, given: Input) -> None:
        """Remember what the machine holds for unread, so that it can be compared."""
        ids: Sequence[bytes] = ()
        match given:
            case Committed() if given.fresh and self._config.max_confirms:
                ids = given.ids
            case Publishing() | Wanted() if given.min_confirms:
                ids = given.ids
            case Restored():
                ids = [event.message_hash for event in given.unread]
        self._unread.update(dict.fromkeys(ids))

    def _forget(self, ids: Sequence[bytes]) -> None:
        for digest in ids:
            self._unread.pop(digest, None)

    def _compare(self, asked: Sequence[bytes], found: Sequence[UnreadEvent]) -> None:
        """Take over what the database says of events that the machine holds for unread."""
        rows = {event.message_hash: event for event in found if not event.expired}
        still = [digest for digest in asked if digest in self._unread]
        is_tracked = self._database.tracking.is_tracked
        gone = [digest for digest in still if digest not in rows and is_tracked(digest)]
        if gone:
            self._forget(gone)
            self._take(Settled(gone))
        left = [digest for digest in still if digest in rows]
        for digest in left:
            self._unread.move_to_end(digest)
        if left:
            self._take(Restored([rows[digest] for digest in left]))

    def _adopt(self, newest: Sequence[UnreadEvent]) -> None:
        """Take rows that this node does not know: the write that added them was never answered."""
        unknown = [event for event in newest if event.message_hash not in self._unread]
        if unknown and self._is_awake:
            self._restore(unknown)

    def _restore(self, newest: Sequence[UnreadEvent]) -> None:
        self._database.tracking.remember(event.message_hash for event in newest)
        self._take(Restored(list(reversed(newest))))


def _ignore(ids: Sequence[bytes], counts: Sequence[int]) -> None:
    """Default: ignore."""
