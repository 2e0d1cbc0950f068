"""Gossip of one node with all its peers: new messages, who holds them, and what is missing.

It is given what happens, a batch at a time, and says what to send, to store, to read and to keep.
Source: the event graph's network protocol, as the node's contract maps it onto a store. What a
driver has to do is in `store.gossip.events`.

Rules.

1. What is newly durable is announced to every peer, from any source. What a client of this node
   published is pushed with its body; anything else is announced, and sent when it is asked for.
   When more than `pushed_ids` bodies wait for a peer, the others are only announced.
2. An announcement speaks for this node's own store, about what is durable there, and is never
   passed on. A body that is sent says the same. Nothing is pushed to a store that is known to
   hold it.
3. What a peer announces is looked up, and asked for from one peer at a time (`gossip.fetch_queue`).
   What comes is judged on admission before it comes here, stored, announced, and so passed on.
4. Every announcement of a store counts once as a confirmation of what is unread (`gossip.unread`).
   With enough of them an event is read; until then it is announced again at an interval. An
   announcement carries content digests. With another one than this node's it is a conflict, which
   is reported and confirms nothing; without one it counts by the hash, as in the base protocol.
5. Every `leaves_interval_ns`, when the leaves have changed, each peer gets them. Who receives them
   asks for those that it lacks, and announces what follows on them (`store.gossip.graph`).
6. A parent that is missing is looked up, and asked for from the peers that have its child. The
   child is stored and announced meanwhile (`store.gossip.incomplete_events`).
7. To a peer that joins are announced the newest messages that its store is not known to hold, the
   unread events that it has not confirmed, and the leaves.
8. Faults of peers slow them or cut them off (`gossip.scores`). A peer is read from while little of
   it waits for the database; what else it can make grow has a limit in `store.gossip.limits`.
9. When the database fails, the same is asked again later. While it cannot be read, nothing is
   announced again, so that no peer takes this node for one that promises and does not deliver.
   What cannot be stored for a long time is given up.
10. A peer with this node's own store is turned away: the database is between the two.

Inputs about peers that are not joined are passed over, since they may be under way when a peer
leaves. An answer to something that was not asked, or of another length, raises `GossipStateError`
and changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

from store.domain.unread import GossipPeerState
from store.gossip import scores
from store.gossip.core import Core, Request
from store.gossip.events import (
    BatchPersisted,
    BodiesLoaded,
    Committed,
    ConfirmationsWanted,
    CutOff,
    Effect,
    Expire,
    Failed,
    FrameReceived,
    FrameSent,
    GossipCounter,
    Input,
    Known,
    LoadBodies,
    LookUp,
    PeerJoined,
    PeerLeft,
    PersistBatch,
    Restored,
    Settled,
    TimerDue,
)
from store.gossip.frame_composer import FrameComposer
from store.gossip.frame_intake import FrameIntake
from store.gossip.limits import MAX_GUESSES, MAX_RETRIES, MAX_TRIES, REBROADCAST_IDS, GossipConfig
from store.gossip.peer import GossipPeer
from store.gossip.scores import PeerStanding
from store.gossip.stored_messages import StoredMessages, with_contents


class GossipStateError(RuntimeError):
    """The input is not allowed now; nothing was changed."""


class Gossip:
    """The gossip of one node."""

    def __init__(self, config: GossipConfig) -> None:
        core = self._core = Core(config)
        self._config = config
        self._holding = StoredMessages(core)
        self._incoming = FrameIntake(core)
        self._sending = FrameComposer(core)
        self._retries: list[tuple[int, int, Request]] = []
        self._numbers = count()
        self._leaves_ns: int | None = None
        self._leaves_version = 0
        self._again_ns = 0
        self._takers: dict[type, Callable[[Any], None]] = {
            PeerJoined: self._join,
            PeerLeft: self._left,
            FrameReceived: self._receive,
            FrameSent: self._sent,
            Committed: self._holding.committed,
            ConfirmationsWanted: self._holding.wanted,
            Restored: self._holding.restored,
            Settled: self._settled,
            BatchPersisted: self._persisted,
            BodiesLoaded: self._loaded,
            Known: self._known,
            Failed: self._failed,
            TimerDue: self._tick,
        }

    def step(self, now_ns: int, given: Input) -> list[Effect]:
        """Take one input in. ``now_ns`` never goes back.

        Raises:
            GossipStateError: it is not allowed now.
        """
        self._demand(given)
        core = self._core
        core.now_ns = max(core.now_ns, now_ns)
        self._takers[type(given)](given)
        self._run_timers()
        for peer in core.cut_off():
            self._leave(peer)
        self._sending.go_on()
        return core.flush()

    @property
    def next_wake_ns(self) -> int | None:
        """The time at which a `TimerDue` is due; None: not before another input."""
        core = self._core
        times = [peer.wake_ns for peer in core.peers.values()]
        times += [peer.rest_ns for peer in core.peers.values() if not peer.reading]
        times += [core.fetches.wake_ns, self._leaves_ns]
        times += [due_ns for due_ns, _, _ in self._retries[:1]]
        due_ns = core.unread.due_ns
        if due_ns is not None:
            times.append(max(due_ns, self._again_ns))
        later = [time_ns for time_ns in times if time_ns is not None and time_ns > core.now_ns]
        return min(later, default=None)

    def peers(self) -> list[GossipPeerState]:
        """Return the joined peers, and those that are cut off, until a time of the steps."""
        core = self._core
        found = [
            GossipPeerState(key, peer.store.id, connected=True, slowed=core.slowed(key))
            for key, peer in core.peers.items()
        ]
        for key, until_ns, reason in core.scores.cut_off(core.now_ns):
            found.append(GossipPeerState(key, "", False, False, until_ns, reason))
        return found

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        core = self._core
        core.check()
        due = [request for _, _, request in self._retries]
        tokens = {request.effect.token for request in due}
        assert len(tokens) == len(due)
        assert not tokens & core.requests.keys()
        storing = [
            digest
            for request in (*due, *core.requests.values())
            if isinstance(request.effect, PersistBatch)
            for digest in request.effect.batch.hashes
        ]
        assert core.pending.keys() <= set(storing)

    # What is allowed

    def _demand(self, given: Input) -> None:
        allowed = True
        if isinstance(given, BatchPersisted | BodiesLoaded | Known | Failed):
            request = self._core.requests.get(given.token)
            allowed = request is not None and self._answers(given, request)
        elif isinstance(given, FrameSent):
            peer = self._core.peers.get(given.peer)
            allowed = peer is None or peer.writing
        if not allowed:
            raise GossipStateError(
                f"{type(given).__name__} is not allowed now: nothing like it was asked for"
            )

    @staticmethod
    def _answers(given: BatchPersisted | BodiesLoaded | Known | Failed, request: Request) -> bool:
        effect = request.effect
        match given, effect:
            case BatchPersisted(), PersistBatch():
                return len(given.new) == len(effect.batch)
            case BodiesLoaded(), LoadBodies():
                return 0 < len(given.messages) <= len(effect.ids)
            case Known(), LookUp():
                return len(given.is_stored) == len(effect.ids)
            case Failed(), _:
                return True
        return False

    # Peers

    def _join(self, given: PeerJoined) -> None:
        core = self._core
        if given.peer in core.peers:
            self._leave(given.peer)
        why = self._objection(given)
        if why is not None:
            core.effects.append(why)
            return
        joined = {peer.store.id for peer in core.peers.values()}
        store = core.stores.meet(given.store_id, given.peer, joined)
        peer = core.peers[given.peer] = GossipPeer(given.peer, store, core.peer_bits.take())
        core.fetches.join(peer.key)
        self._catch_up(peer)
        if len(core.graph):
            peer.leaves_due, peer.leaves = (
                core.graph.leaves(self._config.leaf_ids),
                core.graph.version,
            )
        self._holding.guess(peer.key, MAX_GUESSES)

    def _objection(self, given: PeerJoined) -> CutOff | None:
        core, config = self._core, self._config
        if given.store_id == config.store_id:
            reason = "this node works on the same database: the two need no gossip"
            return CutOff(given.peer, core.now_ns + config.cut_off_ns, reason, fault=False)
        if core.scores.standing(core.now_ns, given.peer) is PeerStanding.CUT_OFF:
            return CutOff(given.peer, *core.scores.sentence(given.peer))
        if len(core.peers) >= config.max_peers:
            reason = f"limit of {config.max_peers} peers is reached: try again later"
            return CutOff(given.peer, core.now_ns + config.cut_off_ns, reason, fault=False)
        return None

    def _catch_up(self, peer: GossipPeer) -> None:
        core, config = self._core, self._config
        news: list[bytes] = []
        for digest, place in core.recent.newest():
            if len(news) == config.catch_up_ids:
                break
            if not core.recent.holders[place] & peer.store.bit:
                news.append(digest)
        for digest in reversed(news):
            peer.tell(digest, config.queued_ids)
        for digest in list(core.unread.ids())[:REBROADCAST_IDS]:
            if core.unread.lacks(digest, peer.store.voice):
                peer.tell(digest, config.queued_ids)

    def _left(self, given: PeerLeft) -> None:
        if given.peer in self._core.peers:
            self._leave(given.peer)

    def _leave(self, key: str) -> None:
        core = self._core
        peer = core.peers.pop(key)
        core.fetches.leave(key)
        core.recent.forget_peer(peer.bit)
        core.peer_bits.free(peer.bit)

    def _receive(self, given: FrameReceived) -> None:
        peer = self._core.peers.get(given.peer)
        if peer is not None:
            self._incoming.take(peer, given.frame)

    def _sent(self, given: FrameSent) -> None:
        peer = self._core.peers.get(given.peer)
        if peer is not None:
            peer.writing = False

    # The database

    def _settled(self, given: Settled) -> None:
        self._core.unread.drop(given.ids)

    def _answered(self, token: int) -> Request:
        request = self._core.requests.pop(token)
        if request.reads:
            self._core.failing = False
        return request

    def _persisted(self, given: BatchPersisted) -> None:
        request = self._answered(given.token)
        effect, peer = request.effect, request.peer
        assert isinstance(effect, PersistBatch)
        self._release(request)
        batch = effect.batch
        self._holding.persisted(batch, given.new, given.conflicts)
        if peer is not None and self._core.peers.get(peer.key) is peer:
            for digest in batch.hashes:
                place = self._core.recent.place(digest)
                if place >= 0:
                    self._core.recent.received_from[place] |= peer.bit

    def _loaded(self, given: BodiesLoaded) -> None:
        peer = self._answered(given.token).peer
        if peer is not None and self._core.peers.get(peer.key) is peer:
            self._sending.loaded(peer, given)

    def _known(self, given: Known) -> None:
        effect = self._answered(given.token).effect
        assert isinstance(effect, LookUp)
        core = self._core
        core.looking = False
        contents = with_contents(effect.ids, given.content_digests)
        for (digest, content), is_stored in zip(contents, given.is_stored, strict=True):
            if is_stored:
                self._holding.hold(digest, content, fresh=False)
            elif digest not in core.recent and digest not in core.pending:
                core.fetches.missing(digest)
                core.note_waiting(core.incomplete.lack(digest))

    def _failed(self, given: Failed) -> None:
        core = self._core
        request = core.requests.pop(given.token)
        request.tries += 1
        if request.reads:
            core.failing = True
        elif request.tries >= MAX_TRIES or len(self._retries) >= MAX_RETRIES:
            self._give_up(request)
            return
        due_ns = core.now_ns + self._config.retry_ns
        heapq.heappush(self._retries, (due_ns, next(self._numbers), request))

    def _give_up(self, request: Request) -> None:
        """Drop delivered messages that cannot be stored; they may come again."""
        assert isinstance(request.effect, PersistBatch)
        self._release(request)
        for digest in request.effect.batch.hashes:
            self._core.pending.pop(digest, None)

    @staticmethod
    def _release(request: Request) -> None:
        if request.peer is not None:
            request.peer.unstored_bytes -= request.size_bytes
            request.peer.unstored_frames -= 1

    # Time

    def _tick(self, given: TimerDue) -> None:
        """Wait for nothing: due work is done with every input."""

    def _run_timers(self) -> None:
        core = self._core
        while self._retries and self._retries[0][0] <= core.now_ns:
            self._retry(heapq.heappop(self._retries)[2])
        for peer, undelivered in core.fetches.expire(core.now_ns):
            self._blame(peer, undelivered)
        self._announce_again()
        self._exchange_leaves()

    def _retry(self, request: Request) -> None:
        peer = request.peer
        if isinstance(request.effect, LoadBodies) and (
            peer is None or self._core.peers.get(peer.key) is not peer
        ):
            self._core.failing = any(each.reads for _, _, each in self._retries)
            return
        self._core.request(request)

    def _blame(self, peer: str, undelivered: int) -> None:
        if not undelivered:
            return
        self._core.count(GossipCounter.UNDELIVERED, undelivered)
        points = min(scores.UNDELIVERED_ROUND_POINTS, scores.UNDELIVERED_POINTS * undelivered)
        reason = "messages that were announced are not delivered: announce what is held durably"
        self._core.fault(peer, points, reason)

    def _announce_again(self) -> None:
        core, interval_ns = self._core, self._config.unread_interval_ns
        due_ns = core.unread.due_ns
        if due_ns is None or core.now_ns < max(due_ns, self._again_ns):
            return
        if core.failing:
            self._again_ns = core.now_ns + self._config.retry_ns
            return
        due, expired = core.unread.take_due(core.now_ns, REBROADCAST_IDS)
        if len(due) + len(expired) == REBROADCAST_IDS:
            self._again_ns = core.now_ns + interval_ns
        if expired:
            core.effects.append(Expire(expired))
        for digest in due:
            self._holding.announce_again(digest)

    def _exchange_leaves(self) -> None:
        core = self._core
        if core.graph.version != self._leaves_version and self._leaves_ns is None:
            # Not before what is new has been announced, or the peer would ask for what is pushed.
            self._leaves_ns = core.now_ns + self._config.leaves_interval_ns
        if self._leaves_ns is None or core.now_ns < self._leaves_ns or core.failing:
            return
        self._leaves_ns = None
        self._leaves_version = core.graph.version
        leaves = core.graph.leaves(self._config.leaf_ids)
        for peer in core.peers.values():
            if peer.leaves != core.graph.version:
                peer.leaves, peer.leaves_due = core.graph.version, leaves
