"""The state that the parts of `store.gossip.machine.Gossip` share: tables, time and effects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from store.gossip.events import (
    Confirm,
    Conflicting,
    CutOff,
    Effect,
    Expire,
    GossipCount,
    GossipCounter,
    LoadBodies,
    LookUp,
    PersistBatch,
    Read,
    Waiting,
)
from store.gossip.fetch_queue import FetchQueue
from store.gossip.graph import Graph
from store.gossip.incomplete_events import IncompleteEvents
from store.gossip.limits import MAX_REFUSED, GossipConfig
from store.gossip.peer import GossipPeer
from store.gossip.recent_messages import Bits, RecentMessages
from store.gossip.scores import PeerStanding, Scores
from store.gossip.stores import Store, Stores
from store.gossip.unread import UnreadEvents
from store.messages.conflicts import Conflict, is_other_content
from storenode.common.bounded import BoundedDict


@dataclass(slots=True)
class Pending:
    """A message that is being stored: which stores have it, and which peers have delivered it.

    ``content``: its content digest.
    """

    depth: int
    holders: int
    content: bytes = b""
    peers: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
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


class Core:
    """The tables of the machine, the time of the step (``now_ns``), and its ``effects``."""

    def __init__(self, config: GossipConfig) -> None:
        self.config = config
        self.now_ns = 0
        self.effects: list[Effect] = []
        self.counts: Counter[tuple[GossipCounter, str]] = Counter()
        self.peers: dict[str, GossipPeer] = {}
        self.peer_bits = Bits()
        self.recent = RecentMessages(config.seen_ids)
        self.stores = Stores(self._forget_store)
        self.unread = UnreadEvents(
            config.max_unread, config.unread_age_ns, config.unread_interval_ns
        )
        self.graph = Graph(config.graph_events)
        self.incomplete = IncompleteEvents(config.max_waiting)
        self.scores = Scores(config.cut_off_ns)
        self.fetches = FetchQueue(
            announced_ids=config.announced_ids,
            round_ids=config.round_ids,
            patience_ns=config.patience_ns,
            silence_ns=config.silence_ns,
        )
        self.pending: dict[bytes, Pending] = {}
        self.requests: dict[int, Request] = {}
        self.failing = False  # the last time that something was to be read
        self.looking = False  # a look-up is under way
        self._tokens = 0
        self._conflicts = BoundedDict[tuple[bytes, bytes], None](MAX_REFUSED)
        self._refused = BoundedDict[tuple[str, bytes], int](MAX_REFUSED)
        self._confirms: dict[str, tuple[list[bytes], list[int]]] = {}
        self._read: list[bytes] = []
        self._faults: dict[str, str] = {}

    # What comes out

    def count(self, what: GossipCounter, count: int, reason: str = "") -> None:
        """Add to a counter, unless the count is 0."""
        if count:
            self.counts[what, reason] += count

    def flush(self) -> list[Effect]:
        """Return all effects of the step, and clear them."""
        effects: list[Effect] = [
            Confirm(voice, ids, counts) for voice, (ids, counts) in self._confirms.items()
        ]
        if self._read:
            effects.append(Read(self._read))
        effects += self.effects
        effects += [GossipCount(what, count, why) for (what, why), count in self.counts.items()]
        self.effects, self._confirms, self._read = [], {}, []
        self.counts.clear()
        return effects

    def token(self) -> int:
        """Return a number for the next request."""
        self._tokens += 1
        return self._tokens

    def request(self, request: Request) -> None:
        """Send a request to the database."""
        self.requests[request.effect.token] = request
        self.effects.append(request.effect)

    # Confirmations

    def confirm(self, digest: bytes, store: Store) -> None:
        """Count a store that has stored an event, if the event waits for confirmations."""
        count = self.unread.confirm(digest, store.voice)
        if not count:
            return
        ids, counts = self._confirms.setdefault(store.voice, ([], []))
        ids.append(digest)
        counts.append(count)
        self.count(GossipCounter.CONFIRMATIONS, 1)
        if self.unread.take_read(digest):
            self._read.append(digest)

    def make_unread(self, digest: bytes, needed: int, age_ns: int = 0) -> None:
        """Wait for confirmations of an event; known ones count at once."""
        if not needed:
            return
        place = self.recent.place(digest)
        content = self.recent.content_digests[place]
        expired = self.unread.add(self.now_ns, digest, needed, age_ns, content)
        if expired:
            self.effects.append(Expire(expired))
        for store in self.stores.of_mask(self.recent.holders[place]):
            self.confirm(digest, store)
        if self.unread.take_read(digest):
            self._read.append(digest)

    def restore_confirm(self, digest: bytes, voice: str) -> None:
        """Count a confirmation that the database has already."""
        self.unread.confirm(digest, voice)
        if self.unread.take_read(digest):
            self._read.append(digest)

    def repeat_confirms(self, digest: bytes) -> None:
        """Report the known confirmations of an event again."""
        voices = self.unread.voices(digest)
        for voice in voices:
            ids, counts = self._confirms.setdefault(voice, ([], []))
            ids.append(digest)
            counts.append(len(voices))

    def mark_holder(self, digest: bytes, place: int, store: Store) -> bool:
        """Note that a store has a message that is stored here; return False if that was known."""
        if self.recent.holders[place] & store.bit:
            return False
        self.recent.holders[place] |= store.bit
        for peer in self.peers.values():
            if peer.store is store:
                peer.holds(self.now_ns, digest)
        self.confirm(digest, store)
        return True

    # Conflicts

    def differs(self, peer: str, digest: bytes, own: bytes, theirs: bytes) -> bool:
        """Return True if a peer has other content under an ID, and note the conflict once."""
        if not is_other_content(own, theirs):
            return False
        if (digest, theirs) not in self._conflicts:
            self._conflicts[digest, theirs] = None
            self.count(GossipCounter.CONFLICTS, 1)
            self.effects.append(Conflicting(peer, Conflict(digest, own, theirs)))
        return True

    def differs_here(self, peer: str, digest: bytes, place: int, theirs: bytes) -> bool:
        """Return True if a peer has other content than this node, and note the conflict once."""
        return self.differs(peer, digest, self.recent.content_digests[place], theirs)

    def holders_of(self, digest: bytes, content: bytes) -> int:
        """Take a message out of what is wanted, and return the stores that announced it.

        Only those whose content digest is ``content``.
        """
        holders = 0
        for key, theirs in self.fetches.resolve(digest):
            if not self.differs(key, digest, content, theirs):
                holders |= self.peers[key].store.bit
        return holders

    def content_of(self, digest: bytes) -> bytes | None:
        """Return the content digest of a message that is held; None: it is forgotten."""
        place = self.recent.place(digest)
        return self.unread.content_of(digest) if place < 0 else self.recent.content_digests[place]

    # Parents

    def note_waiting(self, events: list[bytes]) -> None:
        """Report which parents these events wait for now."""
        self.effects += [Waiting(event, self.incomplete.missing(event)) for event in events]

    # Faults

    def fault(self, peer: str, points: float, reason: str) -> None:
        """Add points to a peer, which may be cut off when the step ends."""
        before = self.scores.standing(self.now_ns, peer)
        after = self.scores.add(self.now_ns, peer, points, reason)
        self._note(peer, before, after)
        if after is PeerStanding.CUT_OFF:
            self._faults[peer] = reason

    def fault_lightly(self, peer: str, points: float) -> None:
        """Add points to a peer that never cut it off."""
        before = self.scores.standing(self.now_ns, peer)
        self._note(peer, before, self.scores.add_lightly(self.now_ns, peer, points))

    def slowed(self, peer: str) -> bool:
        """Return True if a peer is slowed."""
        return self.scores.standing(self.now_ns, peer) is PeerStanding.SLOWED

    def cut_off(self) -> list[str]:
        """Return the peers that are cut off in this step, and end their streams."""
        cut, self._faults = [peer for peer in self._faults if peer in self.peers], {}
        for peer in cut:
            until_ns, reason = self.scores.sentence(peer)
            self.effects.append(CutOff(peer, until_ns, reason))
            self.count(GossipCounter.CUT_OFF, 1)
        return cut

    def _note(self, peer: str, before: PeerStanding, after: PeerStanding) -> None:
        if before is PeerStanding.GOOD and after is PeerStanding.SLOWED and peer in self.peers:
            self.count(GossipCounter.SLOWED, 1)

    # Refusals

    def refuse(self, peer: str, digest: bytes, until_ns: int) -> None:
        """Request a message from a peer no more until a time."""
        self._refused[peer, digest] = until_ns

    def is_refused(self, peer: str, digest: bytes) -> bool:
        """Return True if a message of a peer was refused recently."""
        return self._refused.get((peer, digest), 0) > self.now_ns

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        for table in (
            self.recent,
            self.stores,
            self.unread,
            self.graph,
            self.incomplete,
            self.scores,
            self.fetches,
        ):
            table.check()
        for peer in self.peers.values():
            peer.check(self.config)
        assert self.fetches.sources.keys() == self.peers.keys()
        assert len(self.peers) <= self.config.max_peers
        assert not any(digest in self.recent for digest in self.pending)
        assert all(digest in self.recent for digest in self.unread.ids()) or self._evicts
        assert not self._confirms
        assert not self._read

    def _forget_store(self, bit: int) -> None:
        self.recent.forget_store(bit)
        for pending in self.pending.values():
            pending.holders &= ~bit

    @property
    def _evicts(self) -> bool:
        return len(self.recent) == self.config.seen_ids
