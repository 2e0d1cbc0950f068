"""Drives a `store.gossip.machine.Gossip`: between the streams of peers, admission and the database.

    resting --a peer comes--> loading: the newest messages and the unread events are read
    loading --read--> running: streams and commits go in, effects are done
    running --no peer for a while--> resting: commits are passed over, and cost nothing
    any --the machine failed--> all streams end; resting, with a new machine

All inputs are taken in on the event loop's thread, one after the other, also those that an effect
brings about. Nothing here decides anything about messages or peers: that is the machine's.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import grpc

from store.db.backlog import CommitRow
from store.db.unread import MAX_UNREAD_EVENTS
from store.domain.admission import Admission
from store.domain.ports import Source, StoreBusy, StoreUnavailable
from store.domain.unread import GossipPeerState, UnreadEvent
from store.gossip.config import GossipConfig
from store.gossip.events import (
    Bodies,
    Committed,
    Confirm,
    Counted,
    CutOff,
    Effect,
    Events,
    Expire,
    FrameIn,
    Holds,
    Input,
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
from store.observe.logging import get_logger
from store.rpc.failure import RpcFailure
from store.rpc.gossip_link import Link
from store.runtime.gossip_commits import Commits, restored
from store.runtime.gossip_work import GossipWork, Notes, Request
from storenode.message.limits import NS_PER_S
from storenode.message.rules import Policy

_LOG = get_logger("store.runtime.gossip")

LOAD_RETRY_S: Final = 1.0
SETTLE_INTERVAL_S: Final = 10.0
"""How often is looked what other nodes on the database have made of unread events."""

SETTLED_AT_ONCE: Final = 4_096

RECENTLY_NS: Final = 5 * NS_PER_S
"""A store that left so long ago may be back at once, and one that never came may yet come."""

_GOSSIP: Final = Source.GOSSIP.value

ConfirmListener = Callable[[Sequence[bytes], Sequence[int]], None]


class GossipNode:
    """The gossip of one node; implements `store.rpc.gossiping.GossipUser`.

    ``expected``: how many peers this node dials.
    """

    def __init__(
        self,
        config: GossipConfig,
        work: GossipWork,
        policy: Callable[[], Policy],
        expected: int,
    ) -> None:
        self._config = config
        self._work = work
        self._policy = policy
        self._expected = expected
        self.on_confirmed: ConfirmListener = _pass_over
        """Told how many stores have confirmed each of some messages."""
        self._loop = asyncio.get_running_loop()
        self._machine: Gossip | None = Gossip(config)
        self._is_awake = False
        self._joining: dict[str, Link] = {}
        self._began_ns = time.monotonic_ns()
        self._links: dict[str, Link] = {}
        self._left_ns: OrderedDict[str, int] = OrderedDict()
        self._banned: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._unread: OrderedDict[bytes, None] = OrderedDict()
        self._inputs: deque[Input] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._commits = Commits(work, self._take)
        self._notes = Notes(work.unread)
        self._needs_loading = asyncio.Event()
        self._requests: set[asyncio.Task[None]] = set()

    # Life

    async def run(self) -> None:
        """Read and write what the machine needs, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._load, self._commits.run, self._notes.run, self._settle):
                tasks.create_task(work())

    def stop(self) -> None:
        """Take nothing in any more."""
        self._machine = None
        self._inputs.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._requests:
            task.cancel()

    def commits(self, commits: Sequence[CommitRow]) -> None:
        """Commits come by (see `store.runtime.services.CommitListener`)."""
        self._commits.hear(commits)

    def lost(self) -> None:
        """Commits were lost."""
        self._commits.lost()

    async def _load(self) -> None:
        """Tell the machine what the database has, whenever peers come to a node that rests."""
        while True:
            await self._needs_loading.wait()
            self._commits.wake()
            try:
                newest = await self._work.reads.newest(CATCH_UP_IDS)
                unread = await self._work.unread.newest(min(MAX_UNREAD, MAX_UNREAD_EVENTS))
            except (StoreUnavailable, StoreBusy):
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            self._needs_loading.clear()
            if not self._joining:  # they have left again
                self._rest()
                continue
            self._is_awake = True
            self._take(Committed(newest.ids, newest.events, fresh=False))
            self._work.tracking.remember(event.message_hash for event in unread)
            self._take(Restored([restored(event) for event in reversed(unread)]))
            _LOG.info("gossip_loaded", messages=len(newest.ids), unread=len(unread))
            waiting, self._joining = list(self._joining.values()), {}
            for link in waiting:
                self._join(link)

    async def _settle(self) -> None:
        """Learn what other nodes on the database did with unread events; rest without peers."""
        while True:
            await asyncio.sleep(SETTLE_INTERVAL_S)
            if self._is_awake and not self._links:
                self._rest()
            try:
                await self._work.unread.sweep()
                some = list(islice(self._unread, SETTLED_AT_ONCE))
                if some:
                    self._compare(some, await self._work.unread.of(some))
            except (StoreUnavailable, StoreBusy):
                continue

    # What others ask

    def want(self, hashes: Sequence[bytes], min_confirms: int) -> None:
        """A publisher wants confirmations of what was held before it came."""
        self._take(Wanted(hashes, min_confirms))

    def found(self, peer: str, store_id: str, hashes: Sequence[bytes]) -> None:
        """Reconciliation has found that a peer holds these, and this store does not."""
        self._take(Holds(store_id, hashes, peer))

    def reach(self) -> int:
        """How many other stores may confirm: those that are joined, were lately, or may be soon."""
        recent_ns = time.monotonic_ns() - RECENTLY_NS
        links = (*self._links.values(), *self._joining.values())
        stores = {link.store_id for link in links}
        stores |= {store for store, left_ns in self._left_ns.items() if left_ns > recent_ns}
        stores.discard(self._config.store_id)
        return max(len(stores), self._expected if self._began_ns > recent_ns else 0)

    def peers(self) -> list[GossipPeerState]:
        """Those that are joined, and those that are turned away."""
        if self._machine is None:
            return []
        status, ahead_ns = self._machine.status(), time.time_ns() - time.monotonic_ns()
        found = [
            GossipPeerState(each.peer, each.store_id, connected=True, slowed=each.slowed)
            for each in status.peers
        ]
        banned = [(peer, *why) for peer, why in self._banned.items()]
        for peer, until_ns, reason in (*status.cut_off, *banned):
            if until_ns > time.monotonic_ns():
                found.append(GossipPeerState(peer, "", False, False, until_ns + ahead_ns, reason))
        return found

    # Streams

    def admission(self) -> Admission:
        """Admission of the messages of one frame."""
        return Admission(self._policy(), time.time_ns(), Source.GOSSIP)

    def joined(self, link: Link) -> None:
        """There is a stream with a peer."""
        banned = self._banned.get(link.peer)
        if banned is not None and banned[0] > time.monotonic_ns():
            link.close(_turned_away(banned[1]))
        elif self._is_awake:
            self._join(link)
        else:
            link.listen(reading=False)
            self._joining[link.peer] = link
            self._needs_loading.set()

    def left(self, link: Link) -> None:
        """A stream is no more."""
        if self._joining.get(link.peer) is link:
            del self._joining[link.peer]
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._note_left(link.store_id)
            _LOG.info("gossip_peer_left", peer=link.peer)
            self._take(PeerLeft(link.peer))
        if link.fault is not None:
            self._ban(link.peer, link.fault.sentence)

    def received(self, link: Link, frame: FrameIn) -> None:
        """A frame has come."""
        if self._links.get(link.peer) is not link:
            return
        if isinstance(frame, Bodies):
            self._work.metrics.gossip_bytes.labels("received").inc(frame.size_bytes)
        self._take(Received(link.peer, frame))

    def sent(self, link: Link) -> None:
        """A frame was taken."""
        if self._links.get(link.peer) is link:
            self._take(Sent(link.peer))

    def _join(self, link: Link) -> None:
        self._links[link.peer] = link
        _LOG.info("gossip_peer_joined", peer=link.peer, dialled_by=link.dialler)
        link.listen(reading=True)
        self._take(PeerJoined(link.peer, link.store_id))

    # The machine

    def _take(self, given: Input) -> None:
        """Take an input in, and do what comes of it."""
        if self._machine is None:
            return
        self._inputs.append(given)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs and self._machine is not None:
                self._step(self._machine, self._inputs.popleft())
        except Exception:  # noqa: BLE001 - a fault of ours; the node serves on
            _LOG.exception("gossip_failed")
            self._begin_anew()
        finally:
            self._stepping = False
        self._set_timer()

    def _step(self, machine: Gossip, given: Input) -> None:
        self._note_unread(given)
        for effect in machine.step(time.monotonic_ns(), given):
            self._do(effect)

    def _begin_anew(self) -> None:
        self._machine = Gossip(self._config)
        self._inputs.clear()
        self._rest()
        for link in list(self._links.values()):
            self._note_left(link.store_id)
            link.close(RpcFailure(grpc.StatusCode.INTERNAL, "the node failed on its gossip"))
        self._links.clear()

    def _rest(self) -> None:
        """Pass commits over until a peer comes: what they bring is read then."""
        self._is_awake = False
        self._commits.rest()
        self._unread.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = None if self._machine is None else self._machine.next_wake_ns
        if wake_ns is not None:
            delay_s = max(0, wake_ns - time.monotonic_ns()) / NS_PER_S
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
                self._notes.add(effect)
            case Read():
                self._forget(effect.ids)
                self._work.tracking.forget(effect.ids)
            case Expire():
                self._forget(effect.ids)
                self._notes.add(effect)
            case Waiting():
                self._notes.add(effect)
            case CutOff():
                self._cut_off(effect)
            case Counted():
                self._count(effect)

    def _send(self, effect: Send) -> None:
        link = self._links.get(effect.peer)
        if link is None:
            return
        if isinstance(effect.frame, Events):
            size = sum(map(len, effect.frame.messages))
            self._work.metrics.gossip_bytes.labels("sent").inc(size)
        link.send(effect.frame)

    def _listen(self, effect: Listen) -> None:
        link = self._links.get(effect.peer)
        if link is not None:
            link.listen(reading=effect.reading)

    def _ask(self, request: Request) -> None:
        machine = self._machine

        async def answer() -> None:
            given = await self._work.answer(request)
            if self._machine is machine:  # else it is the answer to one that is no more
                self._take(given)

        task = asyncio.create_task(answer())
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    def _cut_off(self, effect: CutOff) -> None:
        link = self._links.pop(effect.peer, None)
        if link is None:
            return
        self._note_left(link.store_id)
        seconds = round((effect.until_ns - time.monotonic_ns()) / NS_PER_S)
        write = _LOG.warning if effect.fault else _LOG.info
        write("gossip_peer_cut_off", peer=effect.peer, reason=effect.reason, seconds=seconds)
        link.close(_turned_away(effect.reason))

    def _ban(self, peer: str, reason: str) -> None:
        """Turn a peer away that sends what cannot be read."""
        _LOG.warning("gossip_peer_cut_off", peer=peer, reason=reason)
        self._work.metrics.gossip_events.labels(What.CUT_OFF.value).inc()
        self._banned[peer] = time.monotonic_ns() + DEFAULT_CUT_OFF_NS, reason
        while len(self._banned) > MAX_OFFENDERS:
            self._banned.popitem(last=False)

    def _count(self, counted: Counted) -> None:
        metrics = self._work.metrics
        if counted.what is What.REFUSED:
            metrics.messages_rejected.labels(_GOSSIP, counted.reason).inc(counted.count)
        else:
            metrics.gossip_events.labels(counted.what.value).inc(counted.count)

    def _note_left(self, store_id: str) -> None:
        self._left_ns[store_id] = time.monotonic_ns()
        self._left_ns.move_to_end(store_id)
        while len(self._left_ns) > MAX_OFFENDERS:
            self._left_ns.popitem(last=False)

    # Unread events

    def _note_unread(self, given: Input) -> None:
        """Remember what the machine holds for unread, so that it can be compared."""
        ids: Sequence[bytes] = ()
        match given:
            case Committed() if given.fresh and self._config.max_confirms:
                ids = given.ids
            case Publishing() | Wanted() if given.min_confirms:
                ids = given.ids
            case Restored():
                ids = [event.id for event in given.unread]
        for digest in ids:
            self._unread[digest] = None
        while len(self._unread) > MAX_UNREAD:
            self._unread.popitem(last=False)

    def _forget(self, ids: Sequence[bytes]) -> None:
        for digest in ids:
            self._unread.pop(digest, None)

    def _compare(self, asked: Sequence[bytes], found: Sequence[UnreadEvent]) -> None:
        """Take over what the database says of events that the machine holds for unread."""
        rows = {event.message_hash: event for event in found if not event.expired}
        still = [digest for digest in asked if digest in self._unread]
        is_tracked = self._work.tracking.is_tracked
        gone = [digest for digest in still if digest not in rows and is_tracked(digest)]
        if gone:
            self._forget(gone)
            self._take(Settled(gone))
        left = [digest for digest in still if digest in rows]
        for digest in left:
            self._unread.move_to_end(digest)
        if left:
            self._take(Restored([restored(rows[digest]) for digest in left]))


def _pass_over(ids: Sequence[bytes], counts: Sequence[int]) -> None:
    """Nobody wants to know."""


def _turned_away(reason: str) -> RpcFailure:
    return RpcFailure(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
