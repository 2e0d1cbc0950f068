"""Drives a `store.gossip.machine.Gossip`: between the streams of peers, the database and commits.

    resting --a peer joins--> loading: the newest messages and the unread events are read
    loading --read--> running: frames and commits go in, effects are carried out
    running --no peer for a while--> resting: commits are ignored, and cost nothing
    any --the machine failed, or commits were lost--> all streams end; resting, with a new machine

All inputs are taken on the event loop's thread, one after the other; no effect causes one. Nothing
here decides anything about messages: the machine does.

There is at most one stream with each peer, which either side may begin. Where both sides connect,
the stream that the lower node ID began stays, on both sides. A stream that its peer begins again
replaces the one before, which may be dead without either side knowing.

Places are shared out by `store.domain.places`. A stream that this node began is trusted and keeps
its place; one of a peer waits as long as it brings no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Concatenate, Final, ParamSpec

from store.domain.environment import Environment
from store.domain.places import FREE, Caller, Places, Standing
from store.domain.ports import NotServingError, PeerAddress
from store.domain.unread import UnreadEvent
from store.gossip.driver.confirmations import STOPPING, ConfirmationWaits
from store.gossip.driver.database import RETRY_S, CommitReader, Request, WriteBehind, answer
from store.gossip.driver.ports import DriverDatabase, GossipConnector, GossipStream
from store.gossip.driver.streams import (
    DriverFailedError,
    NodeStoppingError,
    PeerConnection,
    PeerStream,
    StreamSupersededError,
    TurnedAwayError,
)
from store.gossip.events import (
    Bodies,
    Confirm,
    Conflicting,
    Count,
    CutOff,
    Effect,
    Expire,
    FrameIn,
    GossipCounter,
    Listen,
    LoadBodies,
    LookUp,
    PersistBatch,
    Read,
    WriteFrame,
    frame_of,
)
from store.gossip.limits import (
    DEFAULT_LIMITS,
    LEAST_WAIT_NS,
    MAX_OFFENDERS,
    MAX_PEERS,
    RESERVED_PEERS,
    USEFUL_NS,
    WAIT_PATIENCE_NS,
)
from store.gossip.machine import Gossip
from storenode.common.bounded_dict import BoundedDict
from storenode.message.limits import NS_PER_S
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from storenode.wire.storenode.v1 import admin_pb2

COMPARE_INTERVAL_S: Final = 10.0
"""The interval at which unread events are compared with the database, which others change too."""

GREETING_IDS: Final = 64
"""Messages that are announced to a peer before it has sent its name."""

COMPARED_AT_ONCE: Final = 4_096
RESTORED_AT_ONCE: Final = 1_024
"""Unread events that are compared by a query, and merged in one turn of the event loop."""

RECENTLY_NS: Final = 5 * NS_PER_S
"""A store that left so long ago may be back at once, and one that never joined may yet join."""

_P = ParamSpec("_P")

PLACES: Final = Places(MAX_PEERS, RESERVED_PEERS, WAIT_PATIENCE_NS, LEAST_WAIT_NS)


class GossipDriver:
    """The gossip of one node, which lasts as long as the node.

    It is stopped in this order: `close`, the tasks that do `work`, then `stop`. ``make``: makes a
    machine. ``peers``: those that this node connects to.
    """

    def __init__(
        self,
        make: Callable[[Count], Gossip],
        node_id: str,
        peers: Sequence[PeerAddress],
        *,
        database: DriverDatabase,
        connector: GossipConnector,
        environment: Environment,
        count: Count,
    ) -> None:
        self._node_id = node_id
        self._connector = connector
        self._database = database
        self._log = environment.log
        self._count = count
        self._steady_ns = environment.steady_ns
        self._environment = environment
        self._make = partial(make, count)
        self._loop = asyncio.get_running_loop()
        machine = self._make()
        self._store_id = machine.store_id
        self._machine: Gossip | None = machine
        self._is_awake = False
        self._streams: dict[str, PeerStream] = {}
        self._is_closed = False
        self._left_ns = BoundedDict[str, int](MAX_OFFENDERS)
        self.turns = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._reader = CommitReader(
            database, self._log, lambda given: self._take(Gossip.commit, given), self._restore
        )
        self.commits = self._reader.commits
        self._writes = WriteBehind(database.unread, self._log)
        self._needs_loading = asyncio.Event()
        self._requests: dict[asyncio.Task[None], None] = {}
        self._connecting = {peer: PeerConnection(peer, self, environment) for peer in peers}
        self.waits = ConfirmationWaits(
            database.unread,
            database.messages,
            reach=self._reach,
            unread_hashes=database.unread_hashes,
            want=lambda *given: self._take(Gossip.want, *given),
        )

    # Lifecycle

    def work(self) -> Iterator[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Yield the tasks that run until the node stops: name and coroutine function."""
        yield "gossip", self._run
        for peer, connecting in self._connecting.items():
            yield f"gossip with {peer}", connecting.run

    async def _run(self) -> None:
        """Read and write what the machine needs, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._load, self._reader.run, self._writes.run, self._keep_comparing):
                tasks.create_task(work())

    def close(self) -> None:
        """End all streams and those that would begin later, and answer the requests that wait."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            self._remove(stream)
            stream.close(NodeStoppingError(STOPPING))
        self.waits.stop()

    def stop(self) -> None:
        """Take no input any more, and end what is under way."""
        self._machine = None
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._requests):
            task.cancel()

    async def _load(self) -> None:
        """Read what the database holds for the machine, when peers join a resting node."""
        while True:
            await self._needs_loading.wait()
            self._reader.wake()
            machine = self._machine
            try:
                newest = await self._database.messages.newest(DEFAULT_LIMITS.catch_up_ids)
                unread = await self._database.unread.newest(DEFAULT_LIMITS.max_unread)
            except NotServingError:
                await asyncio.sleep(RETRY_S)
                continue
            if machine is not self._machine:  # commits were lost, maybe some that were read
                continue
            self._needs_loading.clear()
            self._take(Gossip.commit, replace(newest, fresh=False))
            for end in range(len(unread), 0, -RESTORED_AT_ONCE):
                if machine is self._machine:
                    self._restore(unread[max(0, end - RESTORED_AT_ONCE) : end])
                await asyncio.sleep(0)
            if machine is not self._machine:  # it has failed on what was read, or as above
                continue
            self._needs_loading.clear()
            waiting = [stream for stream in self._streams.values() if not stream.is_closed]
            if not waiting:  # they have left again
                self._rest()
                continue
            self._is_awake = True
            self._log.info("gossip_loaded", messages=len(newest.ids), unread=len(unread))
            for stream in waiting:
                if not stream.is_closed:  # as all are where the machine fails on one that joins
                    self._join(stream)

    async def _keep_comparing(self) -> None:
        """Poll the unread events that other nodes on the database change; rest without peers."""
        while True:
            await asyncio.sleep(COMPARE_INTERVAL_S - self._loop.time() % COMPARE_INTERVAL_S)
            if self._is_awake and not any(each.is_joined for each in self._streams.values()):
                self._rest()
            elif self._is_awake:
                with suppress(NotServingError):
                    await self._compare()

    # From the rest of the node

    def _reach(self) -> int | None:
        """Return how many other stores may confirm: connected now, recently, or soon.

        None: unknown, since this node calls no peer, and is called.
        """
        if not self._connecting:
            return None
        recent_ns = self._steady_ns() - RECENTLY_NS
        stores = {stream.store_id for stream in self._streams.values()}
        stores |= {store for store, left_ns in self._left_ns.items() if left_ns > recent_ns}
        stores.discard(self._store_id)
        return max(len(stores), len(self._connecting))

    def absences(self) -> Iterator[tuple[PeerAddress, int]]:
        """Yield each configured peer, and since when it is away, 0 if it is not."""
        for peer, connecting in self._connecting.items():
            yield peer, connecting.observe_absence()

    def peers(self) -> list[admin_pb2.GossipPeer]:
        """Return the peers that are connected, and those that are cut off."""
        if self._machine is None:
            return []
        return self._machine.peers(self._steady_ns(), self._environment.now_ns())

    # Streams

    async def serve(self, frames: GossipStream, caller: Caller) -> None:
        """Pass the frames of a stream on that a peer began, until it ends.

        Raises:
            PeerError, FrameRejectedError, StreamClosedError: see `PeerStream.run`.
        """
        peer, now_ns = caller.node_id, self._steady_ns()
        stream = PeerStream(frames, peer, caller.store_id, peer, caller=caller, began_ns=now_ns)
        await self._run_stream(stream)

    async def connect(self, peer: PeerAddress) -> None:
        """Begin a stream, and pass its frames on until it ends.

        Raises:
            PeerError, FrameRejectedError, StreamClosedError: see `PeerStream.run`.
        """
        async with self._connector.connect(peer, self._greeting) as made:
            stream = PeerStream(made.stream, made.node_id, made.store_id, self._node_id)
            await self._run_stream(stream)

    def stream_with(self, peer: PeerAddress) -> PeerStream | None:
        """Return the stream with a peer; None while there is none, or its ID is not known."""
        return self._streams.get(self._connector.node_id(peer))

    def received(self, stream: PeerStream, frame: FrameIn) -> None:
        """Accept a frame."""
        if not stream.is_joined:
            return
        if isinstance(frame, Bodies):
            self._count(GossipCounter.BYTES_RECEIVED, frame.size_bytes, "")
            if len(frame.batch):
                stream.brought_ns = self._steady_ns()
        self._take(Gossip.receive, stream.peer, frame)

    def rejected(self, stream: PeerStream, reason: str) -> None:
        """Note that a frame of the peer cannot be read."""
        if stream.is_joined:
            self._take(Gossip.reject, stream.peer, reason)

    def sent(self, stream: PeerStream) -> None:
        """Note that the stream has written the last frame."""
        if stream.is_joined:
            self._take(Gossip.sent, stream.peer)

    async def _greeting(self) -> RawGossipFrame:
        """Return an announcement of the newest messages; see `GossipConnector.connect`."""
        try:
            newest = await self._database.messages.newest(GREETING_IDS)
        except NotServingError:
            return frame_of("inv", ())
        return frame_of("inv", newest.ids, newest.content_digests)

    async def _run_stream(self, stream: PeerStream) -> None:
        if self._is_closed or self._machine is None:
            raise NodeStoppingError(STOPPING)
        if reason := self._machine.refusal(self._steady_ns(), stream.peer, stream.store_id):
            raise TurnedAwayError(reason)
        self._replace(stream)
        self._make_room(stream)
        self._streams[stream.peer] = stream
        if self._is_awake:
            self._join(stream)
        else:
            stream.listen(reading=False)
            self._needs_loading.set()
        try:
            await stream.run(self)
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
            reason = "the stream brought nothing, and its place went to another"
            other.close(TurnedAwayError(reason))

    def _replace(self, stream: PeerStream) -> None:
        other = self._streams.get(stream.peer)
        if other is None:
            return
        both_own = other.initiator == stream.initiator == self._node_id
        if both_own or other.initiator < stream.initiator:
            raise StreamSupersededError("there is a stream of gossip between the two already")
        self._remove(other)
        other.close(StreamSupersededError("another stream takes the place of this"))

    def _join(self, stream: PeerStream) -> None:
        stream.is_joined = True
        self._log.info("gossip_peer_joined", peer=stream.peer, dialled_by=stream.initiator)
        stream.listen(reading=True)
        self._take(Gossip.join, stream.peer, stream.store_id)

    def _part(self, stream: PeerStream) -> None:
        """Note that a stream is with the machine no more."""
        stream.is_joined = False
        self._left_ns[stream.store_id] = self._steady_ns()

    def _remove(self, stream: PeerStream) -> None:
        if self._streams.get(stream.peer) is not stream:
            return
        del self._streams[stream.peer]
        if stream.is_joined:
            self._part(stream)
            self._log.info("gossip_peer_left", peer=stream.peer)
            self._take(Gossip.leave, stream.peer)

    # The machine

    def _take(
        self,
        take: Callable[Concatenate[Gossip, _P], None],
        *given: _P.args,
        **options: _P.kwargs,
    ) -> None:
        """Run a step of the machine, and its effects."""
        if self._machine is None:
            return
        try:
            for effect in self._machine.step(self._steady_ns(), take, *given, **options):
                self._do(effect)
        except Exception as error:  # noqa: BLE001 - a fault of this node, which serves on
            self._log.error("gossip_failed", exc_info=error)
            self._begin_again("the node failed on its gossip")
        self._set_timer()

    def lost(self) -> None:
        """Begin again, since the database has lost commits: what the machine holds may be lost."""
        self._begin_again("the node's database has lost commits")

    def _begin_again(self, reason: str) -> None:
        if self._machine is not None:
            self._machine = self._make().follow(self._machine)
        self._rest()
        for stream in self._streams.values():
            if stream.is_joined:
                self._part(stream)
            stream.close(DriverFailedError(reason))
        self._set_timer()

    def _rest(self) -> None:
        """Ignore commits until a peer joins: what they bring is read then."""
        self._is_awake = False
        self._reader.rest()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ns = None if self._machine is None else self._machine.next_wake_ns
        if wake_ns is not None:
            delay_s = max(0, wake_ns - self._steady_ns()) / NS_PER_S
            self._timer = self._loop.call_later(delay_s, self._take, Gossip.wait)

    def _do(self, effect: Effect) -> None:
        match effect:
            case WriteFrame() | Listen() | CutOff():
                stream = self._streams.get(effect.peer)
                if stream is not None and stream.is_joined:
                    self._act_on(stream, effect)
            case PersistBatch() | LoadBodies() | LookUp():
                self._ask(effect)
            case Confirm():
                self.waits.confirm(effect.ids, effect.counts)
                self._writes.add(effect)
            case Read():
                for digest in effect.ids:
                    self._database.unread_hashes.pop(digest, None)
            case Expire():
                self._writes.add(effect)
            case Conflicting():
                fields = effect.conflict.fields()
                self._log.warning("message_conflict", source="gossip", peer=effect.peer, **fields)

    def _act_on(self, stream: PeerStream, effect: WriteFrame | Listen | CutOff) -> None:
        match effect:
            case WriteFrame(frame=frame):
                sent = sum(map(len, frame.events.messages))
                if sent:
                    self._count(GossipCounter.BYTES_SENT, sent, "")
                stream.send(frame)
            case Listen():
                stream.listen(reading=effect.reading)
            case CutOff():
                self._part(stream)
                seconds = round((effect.until_ns - self._steady_ns()) / NS_PER_S)
                fields = {"peer": stream.peer, "reason": effect.reason, "seconds": seconds}
                self._log.warning("gossip_peer_cut_off", **fields)
                stream.close(TurnedAwayError(effect.reason))

    def _ask(self, request: Request) -> None:
        machine = self._machine

        async def ask() -> None:
            take = await answer(self._database, self._environment, request)
            if self._machine is machine:  # a new machine has not asked
                self._take(take)

        task = asyncio.create_task(ask())
        self._requests[task] = None
        task.add_done_callback(lambda done: self._requests.pop(done, None))

    # Unread events

    async def _compare(self) -> None:
        """Update the unread events of the machine by the rows of the database.

        A row that this node lacks was added by another, or by a write that was never answered.
        """
        table, hashes = self._database.unread, self._database.unread_hashes
        machine = self._machine
        asked = [] if machine is None else list(islice(machine.unread.ids(), COMPARED_AT_ONCE))
        found = await table.of(asked) if asked else ()
        newest = await table.newest(COMPARED_AT_ONCE)
        if machine is None or machine is not self._machine or not self._is_awake:
            return
        rows = {event.message_hash: event for event in found if not event.expired}
        still = [digest for digest in asked if digest in machine.unread]
        gone = [digest for digest in still if digest not in rows and digest in hashes]
        self._take(Gossip.settle, gone)
        self._take(Gossip.restore, [rows[digest] for digest in still if digest in rows])
        self._restore([each for each in newest if each.message_hash not in machine.unread])

    def _restore(self, newest: Sequence[UnreadEvent]) -> None:
        hashes = (event.message_hash for event in newest)
        self._database.unread_hashes.update(dict.fromkeys(hashes))
        self._take(Gossip.restore, list(reversed(newest)))


def _standing(now_ns: int, stream: PeerStream) -> Standing:
    caller, brought_ns = stream.caller, stream.brought_ns
    if caller is None:
        return Standing(trusted=True, useful=True, address="")
    useful = brought_ns is not None and now_ns - brought_ns < USEFUL_NS
    waits_ns = now_ns - (stream.began_ns if brought_ns is None else brought_ns)
    return Standing(caller.trusted, useful, caller.address, waits_ns)
