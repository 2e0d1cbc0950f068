"""A store of SDS messages in memory for walks, and a naive oracle of their rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sim.messages import BYTEA, UUID, encode_array
from store.domain.causal import CausalWalk
from store.domain.claims import Claim, ClaimAnswer, ClaimQuery, Hinted, HintQuery, Lookup, rank
from store.domain.ports import CausalRequest, HistoryEntry, SdsLookup, TopicFilter
from storenode.message.limits import MAX_SDS_CLAIMANTS
from storenode.sds.codec import sds_key

CHANNEL = b"channel"
Parent = tuple[bytes, bytes | None]


def digest(number: int) -> bytes:
    """Return the message hash of a number."""
    return number.to_bytes(32, "big")


def packed_keys(keys: Sequence[bytes]) -> bytes:
    """Encode ``uuid[]`` in Postgres's binary format."""
    return encode_array(UUID, keys)


def packed_hints(hints: Sequence[bytes | None]) -> bytes:
    """Encode ``bytea[]`` in Postgres's binary format."""
    return encode_array(BYTEA, hints)


@dataclass(frozen=True)
class Stored:
    """A stored message; without ``message_id`` its payload is opaque.

    ``proven``: its message ID proves it.
    """

    timestamp: int
    hash: bytes
    message_id: bytes | None
    parents: tuple[Parent, ...] = ()
    proven: bool = False

    def claim(self, *, prefers: bool) -> Claim:
        """Return the claim as a reader returns it that prefers proven messages, or does not."""
        assert self.message_id is not None
        return (
            sds_key(CHANNEL, self.message_id),
            self.timestamp,
            self.hash,
            self.message_id,
            packed_keys([sds_key(CHANNEL, parent) for parent, _ in self.parents]),
            packed_hints([hint for _, hint in self.parents]),
            prefers and self.proven,
        )


@dataclass
class World:
    """The messages inside a filter.

    Hashes in ``foreign`` are readable in another channel. Keys that are read ahead are cut at
    ``most_prefetched``, so that small worlds too are walked in many reads. Requests prefer proven
    messages if it ``prefers``, and have at most ``claimants`` for one ID.
    """

    messages: list[Stored] = field(default_factory=list)
    foreign: frozenset[bytes] = frozenset()
    most_prefetched: int = 1 << 30
    prefers: bool = False
    claimants: int = MAX_SDS_CLAIMANTS
    queries: list[ClaimQuery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.sort(key=lambda stored: (stored.timestamp, stored.hash))
        readable = [stored for stored in self.messages if stored.message_id is not None]
        claims = [stored.claim(prefers=self.prefers) for stored in readable]
        self.by_key: dict[bytes, list[Claim]] = {}
        for claim in sorted(claims, key=rank):
            self.by_key.setdefault(claim[0], []).append(claim)
        self.by_hash = {stored.hash: stored for stored in self.messages}

    def complete(self, wanted: CausalRequest) -> CausalRequest:
        """Return a request with the settings of this world."""
        return replace(wanted, prefer_proven=self.prefers, claimants=self.claimants)

    def answer(self, query: ClaimQuery, entries: Sequence[HistoryEntry]) -> ClaimAnswer:
        """Return the answer that a database gives."""
        self.queries.append(query)
        asked = dict.fromkeys(query.keys)
        if query.ahead:
            limit = len(asked) + min(query.ahead, self.most_prefetched)
            asked.update(dict.fromkeys(self._reachable(query.keys, limit)))
        claims = [
            claim for key in asked for claim in self.by_key.get(key, ())[: self.claimants + 1]
        ]
        hinted = {(each.key, each.hash): self._named(each, entries) for each in query.hints}
        return ClaimAnswer(tuple(asked), claims, hinted)

    def _reachable(self, keys: Iterable[bytes], limit: int) -> list[bytes]:
        met = dict.fromkeys(keys)
        queue = list(met)
        for key in queue:
            for claim in self.by_key.get(key, ()):
                stored = self.by_hash[claim[2]]
                for parent, _ in stored.parents:
                    parent_key = sds_key(CHANNEL, parent)
                    if parent_key not in met and len(met) < limit:
                        met[parent_key] = None
                        queue.append(parent_key)
        return queue

    def _named(self, query: HintQuery, entries: Sequence[HistoryEntry]) -> Hinted | None:
        stored = self.by_hash.get(query.hash)
        if stored is None or stored.hash in self.foreign:
            return None
        if stored.message_id is not None:
            claim = stored.claim(prefers=self.prefers)
            return Hinted(claim, readable=True) if claim[0] == query.key else None
        if query.child is None:
            message_id = entries[query.slot].message_id
        else:
            message_id = self.by_hash[query.child[2]].parents[query.slot][0]
        assert sds_key(CHANNEL, message_id) == query.key
        claim = (query.key, stored.timestamp, stored.hash, message_id, *_NO_PARENTS, False)
        return Hinted(claim, readable=False)


_NO_PARENTS = (packed_keys(()), packed_hints(()))


def request(heads: Iterable[Parent], **limits: object) -> CausalRequest:
    """Make a request from heads; ``limits`` are its fields."""
    wanted = CausalRequest(CHANNEL, tuple(HistoryEntry(*head) for head in heads), TopicFilter())
    return replace(wanted, **limits)  # type: ignore[arg-type]


def chain(length: int, every: int = 1) -> World:
    """Make ``length`` messages of which each ``every``-th names the one that far before it."""

    def parents(number: int) -> tuple[Parent, ...]:
        before = number - every
        named = before >= 0 and number % every == 0
        return ((b"%d" % before, digest(before)),) if named else ()

    return World([Stored(1 + n, digest(n), b"%d" % n, parents(n)) for n in range(length)])


def walk(world: World, wanted: CausalRequest) -> CausalWalk:
    """Run a walk to its end and check its invariants at every step."""
    running = CausalWalk(world.complete(wanted))
    answer: ClaimAnswer | None = None
    while True:
        query = running.step(answer)
        if running.is_done:
            return running
        running.check()
        answer = None if query is None else world.answer(query, wanted.entries)


def look_up(world: World, entries: Iterable[Parent]) -> Lookup:
    """Run a lookup to its end."""
    named = tuple(HistoryEntry(*entry) for entry in dict.fromkeys(entries))
    lookup = Lookup(SdsLookup(CHANNEL, named, TopicFilter(), world.claimants))
    answer: ClaimAnswer | None = None
    while (query := lookup.step(answer)) is not None:
        answer = world.answer(query, named)
    return lookup


@dataclass
class Expected:
    """The expected result: hashes in the order of taking, missing IDs with their hints."""

    taken: list[bytes] = field(default_factory=list)
    missing: dict[bytes, bytes | None] = field(default_factory=dict)
    truncated: bool = False
    edges: set[tuple[bytes, bytes]] = field(default_factory=set)  # (child, parent)


def select(world: World, message_id: bytes, hint: bytes | None) -> tuple[list[Stored], bool]:
    """Return the messages that a reference selects, and True if claimants are left out."""
    claimants = [stored for stored in world.messages if stored.message_id == message_id]
    proven = [stored for stored in claimants if world.prefers and stored.proven]
    claimants = proven + [stored for stored in claimants if stored not in proven]
    named = [stored for stored in claimants if stored.hash == hint]
    if named:
        before = [] if named[0] in proven else proven[: world.claimants]
        return before + named, False
    opaque = [
        stored
        for stored in world.messages
        if stored.hash == hint and stored.message_id is None and stored.hash not in world.foreign
    ]
    return claimants[: world.claimants] + opaque, len(claimants) > world.claimants


@dataclass
class ExpectedLookup:
    """The expected result of a lookup: (message ID, hash) of each message, in order."""

    messages: list[tuple[bytes, bytes]]
    missing: list[HistoryEntry]
    truncated: bool


def naive_look_up(world: World, entries: Iterable[Parent]) -> ExpectedLookup:
    """Look up one entry at a time."""
    messages: dict[tuple[bytes, bytes], None] = {}
    missing: dict[Parent, None] = {}
    truncated = False
    for message_id, hint in entries:
        selected, cut = select(world, message_id, hint)
        truncated |= cut
        messages.update(dict.fromkeys((message_id, each.hash) for each in selected))
        if not selected:
            missing[message_id, hint] = None
    return ExpectedLookup(list(messages), [HistoryEntry(*entry) for entry in missing], truncated)


def naive_walk(world: World, wanted: CausalRequest) -> Expected:
    """Walk breadth first, one reference at a time."""
    expected = Expected()
    taken: dict[bytes, int] = {}  # hash -> depth
    found_ids: set[bytes] = set()
    queue: list[tuple[Stored | None, Parent, int]] = [
        (None, (head.message_id, head.retrieval_hint), 0) for head in wanted.entries
    ]
    for child, (message_id, hint), depth in queue:
        if message_id in wanted.known_ids:
            continue
        selected, cut = select(world, message_id, hint)
        expected.truncated |= cut
        if selected:
            found_ids.add(message_id)
        else:
            expected.missing.setdefault(message_id, hint)
        for stored in selected:
            if stored.hash not in taken:
                if len(taken) >= wanted.max_messages or 0 < wanted.max_depth < depth:
                    expected.truncated = True
                    continue
                taken[stored.hash] = depth
                queue += [(stored, parent, depth + 1) for parent in stored.parents]
            if child is not None:
                expected.edges.add((child.hash, stored.hash))
    expected.taken = list(taken)
    for message_id in found_ids:
        expected.missing.pop(message_id, None)
    return expected


def in_one_cycle(edges: set[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
    """Return the edges whose child is also an ancestor of the parent."""
    parents: dict[bytes, list[bytes]] = {}
    for child, parent in edges:
        parents.setdefault(child, []).append(parent)

    def ancestors(start: bytes) -> set[bytes]:
        met = {start}
        queue = [start]
        for one in queue:
            fresh = [parent for parent in parents.get(one, ()) if parent not in met]
            met.update(fresh)
            queue += fresh
        return met

    return {(child, parent) for child, parent in edges if child in ancestors(parent)}
