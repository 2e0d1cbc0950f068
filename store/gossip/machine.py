"""Gossip of one node with all its peers: new messages, who holds them, and what is missing.

It is given what happens, a batch at a time, and says what to send, to store, to read and to keep.
Source: the event graph's network protocol, as the node's contract maps it onto a store. What a
driver has to do is in `store.gossip.events`.

Rules.

1. Newly durable messages from any source are announced to every peer. What a client of this node
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
6. A parent that is missing is looked up, and asked for from the peers that have its child, and from
   those that join later. The child is stored and announced meanwhile.
7. To a peer that joins are announced the newest messages that its store is not known to hold, the
   unread events that it has not confirmed, and the leaves.
8. Faults of peers slow them or cut them off (`gossip.scores`). A peer is read from while little of
   it waits for the database; what else it can make grow has a limit in `store.gossip.limits`.
9. When the database fails, the same is asked again later. While it cannot be read, nothing is
   announced again, so that no peer takes this node for one that promises and does not deliver.
   What cannot be stored for a long time is given up.
10. A peer with this node's own store is refused: the database is between the two. So is one that
   is cut off (`refusal`).

Inputs about peers that are not joined are passed over, since they may be under way when a peer
leaves. An answer to something that was not asked, or of another length, is a fault of the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import islice
from typing import Concatenate, Final, ParamSpec, TypeVar

from store.domain.unread import UnreadEvent
from store.gossip import limits, scores
from store.gossip.events import (
    Bodies,
    Committed,
    Conflicting,
    Count,
    CutOff,
    Effect,
    Expire,
    FrameIn,
    GossipCounter,
    GraphEvent,
    Listen,
    LoadBodies,
    LookUp,
    PersistBatch,
    WriteFrame,
    frame_of,
    listed,
    with_contents,
)
from store.gossip.fetch_queue import FetchQueue
from store.gossip.graph import Graph, graph_events
from store.gossip.limits import DEFAULT_LIMITS, GossipLimits
from store.gossip.peer import GossipPeer
from store.gossip.recent_messages import RecentMessages, SeenMessage, Store, Stores, free_bit
from store.gossip.scores import PeerStanding, Scores
from store.gossip.unread import UnreadEvents
from store.messages.conflicts import Conflict, is_other_content
from store.messages.record import RecordBatch
from storenode.common.bounded_dict import BoundedDict
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawEvents, RawGossipFrame
from storenode.wire.storenode.v1 import admin_pb2
from storenode.wire.storenode.v1.peer_pb2 import Inventory

_TOO_NEW: Final = "too_new"
"""The label of admission for a message whose time has not come (`rules.Reason`)."""

_LEAVES_SHARE: Final = 4
"""Leaves may come this many times as often as they are due."""

_P = ParamSpec("_P")
_E = TypeVar("_E", PersistBatch, LoadBodies, LookUp)


@dataclass(slots=True)
class _Pending:
    """A message that is being stored: which stores have it, and which peers have delivered it."""

    holders: int
    content: bytes
    peers: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Request:
    """A request to the database.

    ``peer``: the peer that it is for, which may have left since. ``size_bytes``: of the frame that
    is stored. ``tries``: how often it has failed.
    """

    effect: PersistBatch | LoadBodies | LookUp
    peer: GossipPeer | None = None
    size_bytes: int = 0
    tries: int = 0

    @property
    def reads(self) -> bool:
        """True for a read: only then can this node deliver what it has announced."""
        return not isinstance(self.effect, PersistBatch)


class Gossip:
    """The gossip of the node with a store; its ``max_confirms`` is that of every new message.

    With ``max_confirms`` 0 (text: MAX_CONFIRMS) a message is unread only if its publisher wants
    confirmations. ``count`` increments a counter.
    """

    def __init__(
        self,
        store_id: str,
        max_confirms: int = 0,
        bounds: GossipLimits = DEFAULT_LIMITS,
        count: Count = lambda _what, _number, _reason: None,
    ) -> None:
        self.store_id = store_id
        self._add = count
        self._max_confirms = max_confirms
        self._bounds = bounds
        self._now_ns = 0
        self._peers: dict[str, GossipPeer] = {}
        self._recent = RecentMessages(bounds.seen_ids)
        self._stores = Stores(self._forget_store)
        self.unread = UnreadEvents(
            bounds.max_unread, bounds.unread_age_ns, bounds.unread_interval_ns
        )
        self._graph = Graph(bounds.graph_events)
        self._missing = BoundedDict[bytes, None](limits.MAX_MISSING_PARENTS)
        self._scores = Scores(bounds.cut_off_ns)
        self._fetches = FetchQueue(bounds.announced_ids, bounds.round_ids)
        self._pending: dict[bytes, _Pending] = {}
        self._requests: dict[int, _Request] = {}
        self._unstored_bytes = 0
        self._tokens = numbers(1)
        self._retries: deque[tuple[int, _Request]] = deque()
        self._failing = False  # the last time that something was to be read
        self._looking = False  # a lookup is under way
        self._leaves_ns: int | None = None
        self._leaves_version = 0
        self._again_ns = 0
        self._known_conflicts = BoundedDict[tuple[bytes, bytes], None](limits.MAX_REFUSED)
        self._refused = BoundedDict[tuple[str, bytes], int](limits.MAX_REFUSED)
        # What comes out of a step
        self._effects: list[Effect] = []
        self._cut: set[str] = set()

    def step(
        self,
        now_ns: int,
        take: Callable[Concatenate[Gossip, _P], None],
        *given: _P.args,
        **options: _P.kwargs,
    ) -> list[Effect]:
        """Take one input in: one of the methods of this class, with its arguments.

        ``now_ns`` never goes back.
        """
        self._now_ns = max(self._now_ns, now_ns)
        take(self, *given, **options)
        self._run_timers()
        self._cut_off()
        self._go_on()
        effects, self._effects = [*self.unread.flush(), *self._effects], []
        return effects

    def wait(self) -> None:
        """Let time pass: every step does what is due."""

    @property
    def next_wake_ns(self) -> int | None:
        """The time at which `wait` is due; None: not before another input."""
        times = [peer.wake_ns for peer in self._peers.values()]
        times += [peer.rest_ns for peer in self._peers.values() if not peer.reading]
        times += [self._fetches.wake_ns, self._leaves_ns]
        times += [due_ns for due_ns, _ in islice(self._retries, 1)]
        due_ns = self.unread.due_ns
        if due_ns is not None:
            times.append(max(due_ns, self._again_ns))
        later = [time_ns for time_ns in times if time_ns is not None and time_ns > self._now_ns]
        return min(later, default=None)

    def peers(self, now_ns: int, unix_ns: int) -> list[admin_pb2.GossipPeer]:
        """Return the joined peers, and those that are cut off; ``unix_ns`` is now as well."""
        found = [
            admin_pb2.GossipPeer(
                node_id=key, store_id=peer.store.id, connected=True, slowed=self._is_slowed(key)
            )
            for key, peer in self._peers.items()
        ]
        for key, until_ns, reason in self._scores.cut_off(now_ns):
            cut_off_ns = until_ns + unix_ns - now_ns
            found.append(admin_pb2.GossipPeer(node_id=key, cut_off_until=cut_off_ns, reason=reason))
        return found

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        for table in (self._stores, self.unread, self._graph, self._scores, self._fetches):
            table.check()
        for peer in self._peers.values():
            peer.check(self._bounds)
        assert self._fetches.sources.keys() == self._peers.keys()
        assert not any(digest in self._recent for digest in self._pending)
        evicts = len(self._recent) == self._bounds.seen_ids
        assert all(digest in self._recent for digest in self.unread.ids()) or evicts
        due = [request for _, request in self._retries]
        tokens = {request.effect.token for request in due}
        assert len(tokens) == len(due)
        assert not tokens & self._requests.keys()
        persists = (each for each in (*due, *self._requests.values()) if not each.reads)
        assert self._pending.keys() <= {digest for each in persists for digest in each.effect.ids}

    # What comes out of a step

    def _count(self, what: GossipCounter, number: int, reason: str = "") -> None:
        if number:
            self._add(what, number, reason)

    def _request(self, request: _Request) -> None:
        self._requests[request.effect.token] = request
        self._effects.append(request.effect)

    # Peers

    def follow(self, earlier: Gossip) -> Gossip:
        """Take the place of an earlier machine: keep the faults and the voices of its peers."""
        self._scores, self._stores.voices = earlier._scores, earlier._stores.voices
        return self

    def refusal(self, now_ns: int, key: str, store_id: str) -> str:
        """Return the reason to refuse a stream of a peer; empty if it may join."""
        if store_id == self.store_id:
            return "this node works on the same database: the two need no gossip"
        is_cut_off = self._scores.standing(now_ns, key) is PeerStanding.CUT_OFF
        return self._scores.sentence(key)[1] if is_cut_off else ""

    def join(self, key: str, store_id: str) -> None:
        """Add a peer with a new stream, which replaces an earlier one; see `refusal`."""
        self.leave(key)
        joined = {peer.store.id for peer in self._peers.values()}
        store = self._stores.meet(store_id, key, joined)
        bit = free_bit((self._recent.gone, *(peer.bit for peer in self._peers.values())))
        peer = self._peers[key] = GossipPeer(key, store, bit)
        self._fetches.join(key)
        self._catch_up(peer)
        if len(self._graph):
            peer.leaves_due = self._graph.leaves(self._bounds.leaf_ids)
            peer.leaves = self._graph.version
        for parent in islice(self._missing, limits.MAX_GUESSES):
            if parent not in self._pending:
                self._guess(parent, peer.key)
        reason = "streams are begun over and over: keep one, and pause before the next"
        self._fault(key, scores.STREAM_POINTS, reason)

    def _catch_up(self, peer: GossipPeer) -> None:
        """Announce the newest messages and the unread events to a peer that joins."""
        lacking = (
            digest
            for digest, seen in reversed(self._recent.items())
            if not seen.holders & peer.store.bit
        )
        for digest in reversed(list(islice(lacking, self._bounds.catch_up_ids))):
            peer.tell(digest, self._bounds.queued_ids)
        for digest in islice(self.unread.ids(), limits.REBROADCAST_IDS):
            if self.unread.lacks(digest, peer.store.voice):
                peer.tell(digest, self._bounds.queued_ids)

    def leave(self, key: str) -> None:
        """Remove a peer whose stream has ended, if it is joined."""
        peer = self._peers.pop(key, None)
        if peer is not None:
            self._fetches.leave(key)
            self._recent.forget_peer(peer.bit)

    def sent(self, key: str) -> None:
        """Note that the stream has taken the frame of a `WriteFrame`."""
        peer = self._peers.get(key)
        if peer is not None:
            assert peer.writing, "a frame was sent that was not written"
            peer.writing = False

    def _forget_store(self, bit: int) -> None:
        self._recent.forget_store(bit)
        for pending in self._pending.values():
            pending.holders &= ~bit

    def _is_joined(self, peer: GossipPeer | None) -> bool:
        """Return True unless a stream has ended, or another has replaced it."""
        return peer is not None and self._peers.get(peer.key) is peer

    # Faults

    def _fault(self, peer: str, points: float, reason: str = "") -> None:
        """Add points to a peer, which may be cut off when the step ends if there is a reason."""
        before = self._scores.standing(self._now_ns, peer)
        after = self._scores.add(self._now_ns, peer, points, reason)
        if after is PeerStanding.CUT_OFF:
            self._cut.add(peer)
        elif before is PeerStanding.GOOD and after is PeerStanding.SLOWED and peer in self._peers:
            self._count(GossipCounter.SLOWED, 1)

    def _is_slowed(self, peer: str) -> bool:
        return self._scores.standing(self._now_ns, peer) is PeerStanding.SLOWED

    def _cut_off(self) -> None:
        """End the streams of the peers that are cut off in this step."""
        for peer in sorted(self._cut & self._peers.keys()):
            self._effects.append(CutOff(peer, *self._scores.sentence(peer)))
            self._count(GossipCounter.CUT_OFF, 1)
            self.leave(peer)
        self._cut.clear()

    # Conflicts

    def _differs(self, peer: str, digest: bytes, own: bytes, theirs: bytes) -> bool:
        """Return True if a peer has other content under an ID, and note the conflict once."""
        if not is_other_content(own, theirs):
            return False
        if (digest, theirs) not in self._known_conflicts:
            self._known_conflicts[digest, theirs] = None
            self._count(GossipCounter.CONFLICTS, 1)
            self._fault(peer, scores.CONFLICT_POINTS)
            if not self._is_slowed(peer):  # it may invent them without end
                self._effects.append(Conflicting(peer, Conflict(digest, own, theirs)))
        return True

    def _resolve(self, digest: bytes, content: bytes) -> int:
        """Fetch a message no more; return the stores that announced it with this content digest."""
        holders = 0
        for key, theirs in self._fetches.resolve(digest):
            if not self._differs(key, digest, content, theirs):
                holders |= self._peers[key].store.bit
        return holders

    # Stored messages

    def commit(self, given: Committed) -> None:
        """Take in messages that are durable."""
        for digest, content in with_contents(given.ids, given.content_digests):
            self._hold(digest, content, fresh=given.fresh, needed=given.published.get(digest))
        self._link(given.events, fresh=given.fresh)

    def persisted(
        self, token: int, new: Sequence[bool], conflicts: Mapping[int, bytes] | None = None
    ) -> None:
        """Take in that the batch of a `PersistBatch` is durable; per message True if it was new.

        ``conflicts``: the content digests of stored messages that differ from those of the batch,
        by place in the batch.
        """
        request, effect = self._answered(token, PersistBatch, len(new))
        self._release(request)
        peer, batch, conflicts = request.peer, effect.batch, conflicts or {}
        for place, (digest, is_new) in enumerate(zip(batch.hashes, new, strict=True)):
            content = conflicts.get(place, batch.content_digests[place])
            self._hold(digest, content, fresh=is_new)
        refused = {batch.hashes[place] for place in conflicts}
        self._link([event for event in graph_events(batch) if event.id not in refused], fresh=True)
        if peer is not None and self._is_joined(peer):
            for seen in map(self._recent.get, batch.hashes):
                if seen is not None:
                    seen.received_from |= peer.bit

    def _hold(
        self, digest: bytes, content: bytes, *, fresh: bool, needed: int | None = None
    ) -> None:
        """Note that a message is stored.

        ``fresh`` False: it has been for a while, and is announced only to peers that have it too.
        ``content``: its content digest, empty where it is not known. ``needed``: the confirmations
        that its publisher wants; None: no client of this node published it.
        """
        self._missing.pop(digest, None)
        seen = self._recent.get(digest)
        if seen is not None:
            seen.learn_content(content)
            if fresh and seen.quiet:
                self._begin(digest, seen, needed)
            return
        holders = self._resolve(digest, content)
        pending = self._pending.pop(digest, None)
        if pending is not None and not is_other_content(content, pending.content):
            holders |= pending.holders
        seen = self._recent[digest] = SeenMessage(content, quiet=not fresh, holders=holders)
        if fresh:
            self._begin(digest, seen, needed)
        else:
            self._announce(digest, seen, first_hand=False)
        if digest in self.unread:
            self._confirm_by(digest, holders)

    def _begin(self, digest: bytes, seen: SeenMessage, wanted: int | None) -> None:
        """Announce a new event, and wait for the confirmations that it needs."""
        seen.quiet = False
        self._announce(digest, seen, first_hand=wanted is not None)
        self._make_unread(digest, max(self._max_confirms, wanted or 0))

    def _announce(self, digest: bytes, seen: SeenMessage, *, first_hand: bool) -> None:
        """Announce a message, unless it is old, and push it if a client of this node published it.

        Of several peers with one store, one gets the body.
        """
        holders = seen.holders
        for peer in self._peers.values():
            if holders & peer.store.bit:
                peer.answer(digest, self._bounds.queued_ids)
            elif seen.quiet:
                continue
            elif first_hand and len(peer.pushes) < self._bounds.pushed_ids:
                holders |= peer.store.bit
                peer.pushes[digest] = None
            else:
                self._tell(peer, digest)

    def _tell(self, peer: GossipPeer, digest: bytes) -> None:
        if not peer.tell(digest, self._bounds.queued_ids):
            self._count(GossipCounter.IDS_UNANNOUNCED, 1)

    # Parents

    def _link(self, events: Sequence[GraphEvent], *, fresh: bool) -> None:
        """Add events to the graph, and fetch the missing parents of fresh ones."""
        for event in events:
            if event.id in self._graph:
                continue
            self._graph.add(event)
            if fresh:
                self._fetch_parents(event)

    def _fetch_parents(self, event: GraphEvent) -> None:
        """Look up parents of an event, and request them from peers that have it, or else any."""
        seen = self._recent.get(event.id)
        holders = 0 if seen is None else seen.holders
        having = [key for key, peer in self._peers.items() if holders & peer.store.bit]
        peers = (having or list(self._peers))[: limits.MAX_HOLDERS]
        for parent in event.parents:
            if parent in self._recent:
                continue
            self._missing[parent] = None
            if parent not in self._pending and self._fetches.doubt(parent):
                for peer in peers:
                    self._guess(parent, peer)

    def _guess(self, parent: bytes, peer: str) -> None:
        if not self._is_refused(peer, parent):
            self._fetches.announce(parent, peer, guess=True)

    # Confirmations

    def want(
        self, ids: Sequence[bytes], min_confirms: int, content_digests: Sequence[bytes] = ()
    ) -> None:
        """Request confirmations of stored messages; known ones are reported again."""
        needed = max(min_confirms, self._max_confirms)
        for digest, content in with_contents(ids, content_digests):
            self._hold(digest, content, fresh=False)
            self.unread.report(digest)
            self._make_unread(digest, needed)
            if digest in self.unread:
                self._announce_again(digest)

    def restore(self, unread: Iterable[UnreadEvent]) -> None:
        """Merge unread events of the database, at the start and later, with what is known."""
        for event in unread:
            digest = event.message_hash
            self._hold(digest, event.content_digest, fresh=False)
            self._make_unread(digest, event.needed, event.age_ns)
            for voice in event.stores:
                self.unread.confirm(digest, voice, report=False)

    def settle(self, ids: Iterable[bytes]) -> None:
        """Remove unread events that another node on this database has removed."""
        self.unread.drop(ids)

    def _make_unread(self, digest: bytes, needed: int, age_ns: int = 0) -> None:
        """Wait for confirmations of an event, if any are needed; known ones count at once."""
        if not needed:
            return
        seen = self._recent[digest]
        expired = self.unread.add(self._now_ns, digest, needed, age_ns, seen.content)
        if expired:
            self._effects.append(Expire(expired))
        self._confirm_by(digest, seen.holders)

    def _confirm_by(self, digest: bytes, holders: int) -> None:
        for store in self._stores.of_mask(holders):
            self._confirm(digest, store)

    def _confirm(self, digest: bytes, store: Store) -> None:
        """Count a store that has stored an event, if the event waits for confirmations."""
        if self.unread.confirm(digest, store.voice):
            self._count(GossipCounter.CONFIRMATIONS, 1)

    def _mark_holder(self, digest: bytes, seen: SeenMessage, store: Store) -> bool:
        """Note that a store has a message that is stored here; return False if that was known."""
        if seen.holders & store.bit:
            return False
        seen.holders |= store.bit
        for peer in self._peers.values():
            if peer.store is store:
                peer.holds(self._now_ns, digest)
        self._confirm(digest, store)
        return True

    def _announce_again(self, digest: bytes) -> None:
        """Announce an unread event to peers that have not confirmed it."""
        for peer in self._peers.values():
            if self.unread.lacks(digest, peer.store.voice) and digest not in peer.pushes:
                self._tell(peer, digest)

    # The database

    def _answered(self, token: int, kind: type[_E], count: int) -> tuple[_Request, _E]:
        """Close a request whose answer has ``count`` messages."""
        request = self._requests.pop(token)
        effect = request.effect
        asked = len(effect.ids)
        assert isinstance(effect, kind), "the answer is of another kind"
        is_a_part = kind is LoadBodies and 0 < count < asked
        assert count == asked or is_a_part, "the answer is of another length"
        if request.reads:
            self._failing = False
        return request, effect

    def looked_up(
        self, token: int, is_stored: Sequence[bool], content_digests: Sequence[bytes] = ()
    ) -> None:
        """Take in the answer to a `LookUp`: True for each ID that is stored.

        ``content_digests``: as in `Committed`.
        """
        _, effect = self._answered(token, LookUp, len(is_stored))
        self._looking = False
        contents = with_contents(effect.ids, content_digests)
        for (digest, content), is_there in zip(contents, is_stored, strict=True):
            if is_there:
                self._hold(digest, content, fresh=False)
            elif digest not in self._recent and digest not in self._pending:
                self._fetches.missing(digest)

    def failed(self, token: int) -> None:
        """Note that the database failed on a `PersistBatch`, `LoadBodies` or `LookUp`.

        The machine asks again after a while, and gives up in the end what cannot be stored.
        """
        request = self._requests.pop(token)
        request.tries += 1
        if request.reads:
            self._failing = True
        elif request.tries >= limits.MAX_TRIES or len(self._retries) >= limits.MAX_RETRIES:
            self._release(request)
            for digest in request.effect.ids:  # they may come again
                self._pending.pop(digest, None)
            return
        self._retries.append((self._now_ns + limits.RETRY_NS, request))

    def _release(self, request: _Request) -> None:
        self._unstored_bytes -= request.size_bytes
        if request.peer is not None:
            request.peer.unstored_bytes -= request.size_bytes
            request.peer.unstored_frames -= 1

    # Time

    def _run_timers(self) -> None:
        while self._retries and self._retries[0][0] <= self._now_ns:
            _, request = self._retries.popleft()
            if isinstance(request.effect, LoadBodies) and not self._is_joined(request.peer):
                self._failing = any(each.reads for _, each in self._retries)
            else:
                self._request(request)
        self._fetches.expire(self._now_ns)
        self._announce_unread()
        self._exchange_leaves()

    def _announce_unread(self) -> None:
        due_ns = self.unread.due_ns
        if due_ns is None or self._now_ns < max(due_ns, self._again_ns):
            return
        if self._failing:
            self._again_ns = self._now_ns + limits.RETRY_NS
            return
        due, expired = self.unread.take_due(self._now_ns, limits.REBROADCAST_IDS)
        if len(due) + len(expired) == limits.REBROADCAST_IDS:
            self._again_ns = self._now_ns + self._bounds.unread_interval_ns
        if expired:
            self._effects.append(Expire(expired))
        for digest in due:
            self._announce_again(digest)

    def _exchange_leaves(self) -> None:
        version = self._graph.version
        if version != self._leaves_version and self._leaves_ns is None:
            # Not before what is new has been announced, or the peer would ask for what is pushed.
            self._leaves_ns = self._now_ns + self._bounds.leaves_interval_ns
        if self._leaves_ns is None or self._now_ns < self._leaves_ns or self._failing:
            return
        self._leaves_ns = None
        self._leaves_version = version
        leaves = self._graph.leaves(self._bounds.leaf_ids)
        for peer in self._peers.values():
            if peer.leaves != version:
                peer.leaves, peer.leaves_due = version, leaves

    # Frames that come

    def receive(self, key: str, frame: FrameIn) -> None:
        """Take in a frame of a peer, if it is joined; a fault adds points to it."""
        peer = self._peers.get(key)
        if peer is None:
            return
        if self._is_slowed(peer.key):
            peer.rest_ns = self._now_ns + limits.SLOW_NS
        if isinstance(frame, Bodies):
            is_empty = not (frame.batch.hashes or frame.refused)
            self._receive_bodies(peer, frame)
        else:
            ids = listed(frame)
            is_empty = not ids.ids
            self._count(GossipCounter.IDS_RECEIVED, len(ids.ids))
            match frame.WhichOneof("kind"):
                case "inv":
                    self._receive_inventory(peer, ids)
                case "get_events":
                    self._receive_request(peer, ids.ids)
                case "sync_leaves":
                    self._receive_leaves(peer, ids)
        if is_empty:
            reason = "frames come that say nothing: send those that say something"
            self._fault(peer.key, scores.EMPTY_POINTS, reason)
        self._end_overdue(peer)

    def _end_overdue(self, peer: GossipPeer) -> None:
        """Note what a peer has not delivered that sends frames."""
        undelivered = self._fetches.end_overdue(self._now_ns, peer.key)
        if undelivered:
            self._count(GossipCounter.UNDELIVERED, undelivered)
            points = min(scores.UNDELIVERED_MOST_POINTS, scores.UNDELIVERED_POINTS * undelivered)
            reason = "messages that were announced are not delivered: announce what is held durably"
            self._fault(peer.key, points, reason)

    def reject(self, key: str, reason: str) -> None:
        """Note a frame that cannot be read; ``reason`` is one sentence for the peer."""
        if key in self._peers:
            self._fault(key, scores.PROTOCOL_POINTS, reason)

    def _receive_inventory(self, peer: GossipPeer, inventory: Inventory) -> None:
        """Note which messages a peer has; a repeated announcement is answered again.

        An announcement that is made again expects an answer, which is not answered in turn.
        """
        repeated = 0
        unknown: list[tuple[bytes, bytes]] = []
        for digest, content in with_contents(inventory.ids, inventory.content_digests):
            seen = self._recent.get(digest)
            if seen is None:
                unknown.append((digest, content))
                continue
            differs = self._differs(peer.key, digest, seen.content, content)
            known = not differs and not self._mark_holder(digest, seen, peer.store)
            if not seen.notified & peer.bit:
                peer.answer(digest, self._bounds.queued_ids)
            elif differs:
                continue
            elif seen.expecting & peer.bit:
                seen.expecting &= ~peer.bit
            elif known:
                repeated += 1
                peer.answer(digest, self._bounds.queued_ids)
        if repeated:
            reason = "messages are announced again and again: announce unread ones, at intervals"
            self._fault(peer.key, scores.REPEATED_ID_POINTS * repeated, reason)
        self._fetch(peer, unknown)

    def _fetch(self, peer: GossipPeer, announced: Iterable[tuple[bytes, bytes]]) -> None:
        """Fetch announced messages that may be missing, as far as not too many wait already."""
        dropped = sum(not self._note_announced(peer, *each) for each in announced)
        self._count(GossipCounter.IDS_DROPPED, dropped)
        waits_for_us = self._failing or self._looking or peer.unstored_frames
        if dropped and not waits_for_us:
            most = self._bounds.announced_ids
            reason = f"more than {most:,} announced messages have not come: deliver them first"
            self._fault(peer.key, scores.OVERFLOW_POINTS, reason)

    def _note_announced(self, peer: GossipPeer, digest: bytes, content: bytes) -> bool:
        """Note an announced message; return False if too many of the peer wait."""
        pending = self._pending.get(digest)
        if pending is not None:
            if not self._differs(peer.key, digest, pending.content, content):
                pending.holders |= peer.store.bit
            return True
        if self._is_refused(peer.key, digest):
            return True
        return self._fetches.announce(digest, peer.key, content)

    def _receive_request(self, peer: GossipPeer, ids: Sequence[bytes]) -> None:
        """Queue the bodies that a peer asks for, also while they are read: they may be new."""
        again = dropped = 0
        for digest in ids:
            seen = self._recent.get(digest)
            again += seen is not None and bool(seen.sent_to & peer.bit)
            if digest in peer.asked or digest in peer.ready:
                continue
            if len(peer.asked) >= self._bounds.asked_ids:
                dropped += 1
                continue
            peer.pushes.pop(digest, None)
            peer.asked[digest] = None
        if again:
            reason = "bodies are asked for again that were sent: keep them"
            self._fault(peer.key, scores.ASKED_AGAIN_POINTS * again, reason)
        if dropped:
            self._count(GossipCounter.IDS_DROPPED, dropped)
            reason = f"more than {self._bounds.asked_ids:,} bodies are asked for: wait for them"
            self._fault(peer.key, scores.OVERFLOW_POINTS, reason)

    def _receive_bodies(self, peer: GossipPeer, frame: Bodies) -> None:
        self._count(GossipCounter.BODIES_RECEIVED, len(frame.batch) + len(frame.refused))
        fresh = self._sort(peer, frame.batch)
        for digest, label in frame.refused:
            self._count(GossipCounter.REFUSED, 1, label)
            if digest:
                length_ns = limits.TOO_NEW_NS if label == _TOO_NEW else limits.REFUSED_NS
                self._refused[peer.key, digest] = self._now_ns + length_ns
                self._fetches.refuse(digest, peer.key)
        if frame.refused:
            self._fault(peer.key, scores.REFUSED_POINTS * len(frame.refused))
        if fresh:
            batch = frame.batch if len(fresh) == len(frame.batch) else frame.batch.select(fresh)
            self._unstored_bytes += frame.size_bytes
            peer.unstored_bytes += frame.size_bytes
            peer.unstored_frames += 1
            persist = PersistBatch(next(self._tokens), batch)
            self._request(_Request(persist, peer, frame.size_bytes))

    def _is_refused(self, peer: str, digest: bytes) -> bool:
        """Return True if a message of a peer was refused recently."""
        return self._refused.get((peer, digest), 0) > self._now_ns

    def _sort(self, peer: GossipPeer, batch: RecordBatch) -> list[int]:
        """Return the places of messages that are to be stored."""
        fresh, repeated, asked = [], 0, False
        for index, digest in enumerate(batch.hashes):
            content = batch.content_digests[index]
            asked |= self._fetches.is_asked(digest, peer.key)
            seen = self._recent.get(digest)
            pending = self._pending.get(digest)
            if seen is not None:
                repeated += self._receive_stored(peer, digest, seen, content)
            elif pending is not None:
                repeated += peer.key in pending.peers
                pending.peers[peer.key] = None
                if not self._differs(peer.key, digest, pending.content, content):
                    pending.holders |= peer.store.bit
            else:
                fresh.append(index)
                holders = self._resolve(digest, content) | peer.store.bit
                self._pending[digest] = _Pending(holders, content, {peer.key: None})
        if asked:
            self._fetches.sources[peer.key].delivered_ns = self._now_ns
        if repeated:
            self._count(GossipCounter.BODIES_REPEATED, repeated)
            reason = "messages are sent again that were received before: send each once"
            self._fault(peer.key, scores.REPEATED_BODY_POINTS * repeated, reason)
        return fresh

    def _receive_stored(
        self, peer: GossipPeer, digest: bytes, seen: SeenMessage, content: bytes
    ) -> bool:
        """Note the body of a stored message; return True if the peer has sent it before."""
        if not self._differs(peer.key, digest, seen.content, content):
            self._mark_holder(digest, seen, peer.store)
        if not seen.notified & peer.bit:
            peer.answer(digest, self._bounds.queued_ids)
        is_repeated = bool(seen.received_from & peer.bit)
        seen.received_from |= peer.bit
        return is_repeated

    def _receive_leaves(self, peer: GossipPeer, leaves: Inventory) -> None:
        """Request the leaves that are missing here, and announce descendants of the others.

        A peer that lists all its leaves, or all down to some time, lacks those of this node that
        it does not list.
        """
        self._note_pace(peer)
        recent, graph = self._recent, self._graph
        unknown: list[tuple[bytes, bytes]] = []
        for digest, content in with_contents(leaves.ids, leaves.content_digests):
            seen = recent.get(digest)
            if seen is not None:
                if not self._differs(peer.key, digest, seen.content, content):
                    self._mark_holder(digest, seen, peer.store)
            elif digest not in graph:
                unknown.append((digest, content))
        self._fetch(peer, unknown)
        known = [each for each in leaves.ids if each in recent or each in graph]
        behind = graph.descendants(known, limits.DESCENDANT_IDS)
        floor = known if leaves.rest_count else ()
        behind += graph.newer_leaves(floor, self._bounds.leaf_ids)
        known_there = frozenset(leaves.ids)
        for digest in behind:
            if digest not in known_there:
                self._offer(peer, digest)

    def _note_pace(self, peer: GossipPeer) -> None:
        before_ns, peer.leaves_received_ns = peer.leaves_received_ns, self._now_ns
        interval_ns = self._bounds.leaves_interval_ns // _LEAVES_SHARE
        if before_ns is not None and self._now_ns < before_ns + interval_ns:
            reason = "leaves come too often: send them when they are due, if they have changed"
            self._fault(peer.key, scores.LEAVES_POINTS, reason)

    def _offer(self, peer: GossipPeer, digest: bytes) -> None:
        """Announce a message that follows on a leaf, unless the peer has it or is to answer."""
        seen = self._recent.get(digest)
        if seen is None or digest in peer.pushes:
            return
        if not (seen.holders & peer.store.bit or seen.expecting & peer.bit):
            self._tell(peer, digest)

    # Frames that go

    def _go_on(self) -> None:
        """Send, read and look up whatever can be now."""
        ids = [] if self._looking else self._fetches.check_next(limits.LOOK_UP_IDS)
        if ids:
            self._looking = True
            self._request(_Request(LookUp(next(self._tokens), ids)))
        for peer in self._peers.values():
            frame = None if peer.writing else self._next_frame(peer)
            if frame is not None:
                peer.writing = True
                peer.announced_last = frame.HasField("inv")
                self._effects.append(WriteFrame(peer.key, frame))
            self._load(peer)
            self._listen(peer)

    def _next_frame(self, peer: GossipPeer) -> RawGossipFrame | None:
        source = self._fetches.sources[peer.key]
        if source.open or source.guesses:
            ask = self._fetches.ask(self._now_ns, peer.key, slowed=self._is_slowed(peer.key))
            self._count(GossipCounter.IDS_ASKED, len(ask))
            if ask:
                return frame_of("get_events", ask)
        if peer.leaves_due is not None:
            leaves, peer.leaves_due = peer.leaves_due, None
            return RawGossipFrame(sync_leaves=leaves)
        if peer.announces(self._now_ns) and not (peer.announced_last and peer.ready):
            inventory = self._next_inventory(peer)
            if inventory.ids:
                return RawGossipFrame(inv=inventory)
        return self._next_bodies(peer) if peer.ready else None

    def _next_inventory(self, peer: GossipPeer) -> Inventory:
        """Take the next announcements; what is forgotten since has no digest, and is left out."""
        contents: dict[bytes, bytes] = {}
        for digest in peer.take_announcements(self._now_ns, self._bounds.frame_ids):
            seen = self._recent.get(digest)
            if seen is None:
                content = self.unread.content_of(digest)
                if content is not None:
                    contents[digest] = content
                continue
            contents[digest] = seen.content
            if seen.notified & peer.bit:
                seen.expecting |= peer.bit
            seen.notified |= peer.bit
        self._count(GossipCounter.IDS_SENT, len(contents))
        digests = contents.values() if any(contents.values()) else ()
        return Inventory(ids=contents, content_digests=digests)

    def _next_bodies(self, peer: GossipPeer) -> RawGossipFrame:
        ready, peer.ready = peer.ready, {}
        for digest in ready:
            seen = self._recent.get(digest)
            if seen is not None:
                seen.notified |= peer.bit
                seen.sent_to |= peer.bit
        pushed = sum(was_pushed for _, was_pushed in ready.values())
        self._count(GossipCounter.BODIES_PUSHED, pushed)
        self._count(GossipCounter.BODIES_ANSWERED, len(ready) - pushed)
        return RawGossipFrame(events=RawEvents(messages=[message for message, _ in ready.values()]))

    def _load(self, peer: GossipPeer) -> None:
        ids = peer.gather(self._bounds.round_ids)
        if ids:
            peer.is_loading = True
            load = LoadBodies(next(self._tokens), ids, self._bounds.frame_bytes)
            self._request(_Request(load, peer))

    def loaded(self, token: int, messages: Sequence[bytes | None]) -> None:
        """Take in encoded ``WakuMessageAndTopic`` of the first IDs of a `LoadBodies`, in order.

        At least one, None for messages that are not stored; the others are asked for again. What
        the peer got elsewhere meanwhile is left out.
        """
        request, effect = self._answered(token, LoadBodies, len(messages))
        peer = request.peer
        if peer is None or not self._is_joined(peer):
            return
        peer.is_loading, missing = False, 0
        for digest, message in zip(effect.ids, messages, strict=False):
            pushed = peer.loading.pop(digest)
            seen = self._recent.get(digest)
            has_it = seen is not None and bool(seen.holders & peer.store.bit)
            missing += message is None and not pushed
            if message is not None and not (pushed and has_it):
                peer.ready[digest] = message, pushed
                peer.asked.pop(digest, None)
            elif pushed and has_it:
                peer.answer(digest, self._bounds.queued_ids)
        if missing:
            self._fault(peer.key, scores.NOT_STORED_POINTS * missing)

    def _listen(self, peer: GossipPeer) -> None:
        reading = (
            self._unstored_bytes < limits.MAX_UNSTORED_BYTES
            and peer.unstored_bytes < self._bounds.unstored_bytes
            and peer.unstored_frames < limits.MAX_UNSTORED_FRAMES
            and self._now_ns >= peer.rest_ns
        )
        if reading != peer.reading:
            peer.reading = reading
            self._effects.append(Listen(peer.key, reading))
