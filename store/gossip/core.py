"""What the parts of `gossip.machine.Gossip` share: the tables, the time, and what comes out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from store.gossip.config import GossipConfig
from store.gossip.events import (
    Confirm,
    Conflicting,
    Counted,
    CutOff,
    Effect,
    Expire,
    Load,
    LookUp,
    Persist,
    Read,
    Waiting,
    What,
)
from store.gossip.graph import Graph
from store.gossip.limits import MAX_PUBLISHING, MAX_REFUSED
from store.gossip.peer import Peer
from store.gossip.scores import Scores, Standing
from store.gossip.seen import Bits, Seen
from store.gossip.stores import Store, Stores
from store.gossip.unread import UnreadEvents
from store.gossip.waiting import WaitingEvents
from store.gossip.wanted import Wanted
from store.messages.conflicts import Conflict, is_other_content
from storenode.common.bounded import BoundedDict


@dataclass(slots=True)
class Pending:
    """A message on its way to be durable: who has it, and who has delivered it.

    ``content``: its content digest.
    """

    depth: int
    holders: int
    content: bytes = b""
    peers: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Request:
    """Something that the database was asked for.

    ``peer``: for whom; it may have left since. ``size_bytes``: of the frame that is stored.
    ``tries``: how often it has failed.
    """

    effect: Persist | Load | LookUp
    peer: Peer | None = None
    size_bytes: int = 0
    tries: int = 0

    @property
    def reads(self) -> bool:
        """Does it say whether this node can deliver what it has announced?"""
        return not isinstance(self.effect, Persist)


class Core:
    """The tables. ``now_ns`` is the time of the step, ``effects`` what it comes to."""

    def __init__(self, config: GossipConfig) -> None:
        self.config = config
        self.now_ns = 0
        self.effects: list[Effect] = []
        self.counts: Counter[tuple[What, str]] = Counter()
        self.peers: dict[str, Peer] = {}
        self.peer_bits = Bits()
        self.seen = Seen(config.seen_ids)
        self.stores = Stores(self._forget_store)
        self.unread = UnreadEvents(
            config.max_unread, config.unread_age_ns, config.unread_interval_ns
        )
        self.graph = Graph(config.graph_events)
        self.waiting = WaitingEvents(config.max_waiting)
        self.scores = Scores(config.cut_off_ns)
        self.wanted = Wanted(
            announced_ids=config.announced_ids,
            round_ids=config.round_ids,
            patience_ns=config.patience_ns,
            silence_ns=config.silence_ns,
        )
        self.pending: dict[bytes, Pending] = {}
        self.publishing = BoundedDict[bytes, int](MAX_PUBLISHING)
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

    def count(self, what: What, count: int, reason: str = "") -> None:
        """Count something."""
        if count:
            self.counts[what, reason] += count

    def flush(self) -> list[Effect]:
        """Everything that the step comes to."""
        effects: list[Effect] = [
            Confirm(voice, ids, counts) for voice, (ids, counts) in self._confirms.items()
        ]
        if self._read:
            effects.append(Read(self._read))
        effects += self.effects
        effects += [Counted(what, count, why) for (what, why), count in self.counts.items()]
        self.effects, self._confirms, self._read = [], {}, []
        self.counts.clear()
        return effects

    def token(self) -> int:
        """A name for the next request."""
        self._tokens += 1
        return self._tokens

    def request(self, request: Request) -> None:
        """Ask the database for something."""
        self.requests[request.effect.token] = request
        self.effects.append(request.effect)

    # Confirmations

    def confirm(self, digest: bytes, store: Store) -> None:
        """A store holds an event durably; it counts if the event waits for it."""
        count = self.unread.confirm(digest, store.voice)
        if not count:
            return
        ids, counts = self._confirms.setdefault(store.voice, ([], []))
        ids.append(digest)
        counts.append(count)
        self.count(What.CONFIRMATIONS, 1)
        if self.unread.take_read(digest):
            self._read.append(digest)

    def make_unread(self, digest: bytes, needed: int, age_ns: int = 0) -> None:
        """An event needs confirmations from now on; those that are known count at once."""
        if not needed:
            return
        place = self.seen.place(digest)
        content = self.seen.content_digests[place]
        expired = self.unread.add(self.now_ns, digest, needed, age_ns, content)
        if expired:
            self.effects.append(Expire(expired))
        for store in self.stores.of_mask(self.seen.holders[place]):
            self.confirm(digest, store)
        if self.unread.take_read(digest):
            self._read.append(digest)

    def restore_confirm(self, digest: bytes, voice: str) -> None:
        """A confirmation that is durable already."""
        self.unread.confirm(digest, voice)
        if self.unread.take_read(digest):
            self._read.append(digest)

    def repeat_confirms(self, digest: bytes) -> None:
        """Somebody new wants to know who has confirmed an event."""
        voices = self.unread.voices(digest)
        for voice in voices:
            ids, counts = self._confirms.setdefault(voice, ([], []))
            ids.append(digest)
            counts.append(len(voices))

    def mark_holder(self, digest: bytes, place: int, store: Store) -> bool:
        """A store is known to hold a message that is held here; False if it was known before."""
        if self.seen.holders[place] & store.bit:
            return False
        self.seen.holders[place] |= store.bit
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
            self.count(What.CONFLICTS, 1)
            self.effects.append(Conflicting(peer, Conflict(digest, own, theirs)))
        return True

    def differs_here(self, peer: str, digest: bytes, place: int, theirs: bytes) -> bool:
        """Return True if a peer has other content than this node, and note the conflict once."""
        return self.differs(peer, digest, self.seen.content_digests[place], theirs)

    def holders_of(self, digest: bytes, content: bytes) -> int:
        """Take a message out of what is wanted, and return the stores that announced it.

        Only those whose content digest is ``content``.
        """
        holders = 0
        for key, theirs in self.wanted.resolve(digest):
            if not self.differs(key, digest, content, theirs):
                holders |= self.peers[key].store.bit
        return holders

    def content_of(self, digest: bytes) -> bytes | None:
        """Return the content digest of a message that is held; None: it is forgotten."""
        place = self.seen.place(digest)
        return self.unread.content_of(digest) if place < 0 else self.seen.content_digests[place]

    # Parents

    def note_waiting(self, events: list[bytes]) -> None:
        """What these events wait for has changed."""
        self.effects += [Waiting(event, self.waiting.missing(event)) for event in events]

    # Faults

    def fault(self, peer: str, points: float, reason: str) -> None:
        """Hold something against a peer; it may be cut off when the step ends."""
        before = self.scores.standing(self.now_ns, peer)
        after = self.scores.add(self.now_ns, peer, points, reason)
        self._note(peer, before, after)
        if after is Standing.CUT_OFF:
            self._faults[peer] = reason

    def fault_lightly(self, peer: str, points: float) -> None:
        """Hold something against a peer that is no reason to cut it off."""
        before = self.scores.standing(self.now_ns, peer)
        self._note(peer, before, self.scores.add_lightly(self.now_ns, peer, points))

    def slowed(self, peer: str) -> bool:
        """Is a peer slowed?"""
        return self.scores.standing(self.now_ns, peer) is Standing.SLOWED

    def cut_off(self) -> list[str]:
        """Peers that have gone too far in this step; they are told, and have left."""
        cut, self._faults = [peer for peer in self._faults if peer in self.peers], {}
        for peer in cut:
            until_ns, reason = self.scores.sentence(peer)
            self.effects.append(CutOff(peer, until_ns, reason))
            self.count(What.CUT_OFF, 1)
        return cut

    def _note(self, peer: str, before: Standing, after: Standing) -> None:
        if before is Standing.GOOD and after is Standing.SLOWED and peer in self.peers:
            self.count(What.SLOWED, 1)

    # Refusals

    def refuse(self, peer: str, digest: bytes, until_ns: int) -> None:
        """A message is not to be asked for from a peer again until then."""
        self._refused[peer, digest] = until_ns

    def is_refused(self, peer: str, digest: bytes) -> bool:
        """Was this one of a peer refused a short time ago?"""
        return self._refused.get((peer, digest), 0) > self.now_ns

    def check(self) -> None:
        """Raise AssertionError if an invariant or a bound is broken."""
        for table in (
            self.seen,
            self.stores,
            self.unread,
            self.graph,
            self.waiting,
            self.scores,
            self.wanted,
        ):
            table.check()
        for peer in self.peers.values():
            peer.check(self.config)
        assert self.wanted.sources.keys() == self.peers.keys()
        assert len(self.peers) <= self.config.max_peers
        assert not any(digest in self.seen for digest in self.pending)
        assert all(digest in self.seen for digest in self.unread.ids()) or self._evicts
        assert not self._confirms
        assert not self._read

    def _forget_store(self, bit: int) -> None:
        self.seen.forget_store(bit)
        for pending in self.pending.values():
            pending.holders &= ~bit

    @property
    def _evicts(self) -> bool:
        return len(self.seen) == self.config.seen_ids
