"""Causal walks: the messages that some heads of an SDS channel follow from, found by bulk reads.

The walk goes breadth first over references: the heads at depth 0, then the parents of every
selected message (`store.domain.claims` defines what a reference selects). Rules:

1. Each stored message is taken once, at the depth where it is met first, in this order: by depth,
   then by the order in which its child was taken, then by the child's causal history, then by the
   order of claimants. A limit therefore keeps what is nearest to the heads.
2. A reference to a known ID selects nothing and is never missing.
3. An ID that is referenced and for which nothing was found is missing, once.
4. ``truncated``: something that is stored and was referenced is not taken, because of a limit
   (messages, depth, memory, claimants per ID). At a limit the references of what was taken are
   still looked at, so that each of them ends as taken, known, missing or left out.
5. The result lists every parent before its children; inside a cycle, and only there, one child
   comes before its parent.

References are claims of publishers. Cycles end because nothing is taken twice, and memory ends at
`MAX_WALK_BYTES` and `MAX_EDGES`: then the walk stops where it is, truncated.

Reads are few because they are large: all keys and hints that the frontier and what was read last
need are asked for together, with further keys that the database reaches by parents. The number of
these grows with every read.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Final, NamedTuple

from store.domain.claims import (
    PARENT_BYTES,
    Child,
    Claim,
    ClaimAnswer,
    ClaimCache,
    ClaimQuery,
    HintQuery,
    Reference,
    references,
    usable_hint,
)
from store.domain.ports import CausalRequest
from storenode.sds.codec import sds_key

FEWEST_AHEAD: Final = 64
FIRST_AHEAD: Final = 256
MOST_AHEAD: Final = 4_096
"""Keys that the database reaches by parents in one read."""

MAX_READ_KEYS: Final = 4_096
MAX_READ_HINTS: Final = 512
"""Keys and hints of one read."""

MAX_SEEN_REFERENCES: Final = 4_096
"""References that are looked at to plan one read, a few milliseconds."""

MAX_WALK_BYTES: Final = 128 * 1024 * 1024
"""Memory of one walk, estimated, without what is prefetched. 100,000 messages of SDS participants
take about half of it; messages with hundreds of missing parents each exhaust it."""

MAX_EDGES: Final = 16 * 1024 * 1024
"""References that led to stored messages, at 4 bytes each: 160 for each of 100,000 messages."""

MAX_PREFETCHED_BYTES: Final = 64 * 1024 * 1024
"""After reads of so much memory, estimated, everything that was not used yet is dropped."""

STEP_REFERENCES: Final = 4_096
"""References looked at in one step, a few milliseconds."""

STEP_KNOWN_IDS: Final = 4_096
"""Known IDs hashed in one step, a few milliseconds."""

_NODE_BYTES: Final = 700
_MISSING_BYTES: Final = 400

HEADS: Final = -1
"""The number that stands for the request, where a message's number is expected."""


class Origin(NamedTuple):
    """The location of a reference: parent ``slot`` of message ``node``, or a head."""

    node: int
    slot: int

    @property
    def is_head(self) -> bool:
        """True for an entry of the request."""
        return self.node == HEADS


class WalkState(Enum):
    """An answer of a step that needs no read: others may work first, or the result is complete."""

    PAUSED = 1
    DONE = 2


class CausalWalk:
    """A ``GetCausalHistory`` request; ``step`` until it returns `WalkState.DONE`.

    ``taken`` has claims without their parents, in the order of taking; a message's number is its
    index there. See the module's rules.
    """

    def __init__(self, request: CausalRequest) -> None:
        self.taken: list[Claim] = []
        self.missing: dict[bytes, Origin] = {}
        self.truncated = False
        self._request = request
        self._known: set[bytes] = set()
        self._claims = ClaimCache(request.claimants)
        self._latest: Sequence[Claim] = ()  # the last read
        self._numbers: dict[bytes, int] = {}  # message hash -> number
        self._found_by_hint: set[bytes] = set()  # keys without claimants
        self._frontier: deque[Claim] = deque()  # what is taken and not expanded
        self._frontier_bytes = 0  # of the keys of parents
        self._edges = array("i")
        self._edge_ends = array("i")
        self._limit = request.max_messages  # 0 where the depth is exhausted
        self._ahead = FIRST_AHEAD
        self._steps = self._run()
        next(self._steps)

    def step(self, answer: ClaimAnswer | None = None) -> ClaimQuery | WalkState:
        """Advance the walk, with the answer if one was asked for."""
        return self._steps.send(answer)

    def parents_first(self) -> Iterator[int]:
        """Return the numbers of what was taken, every parent before its children.

        Depth first from the far end, so that the order stays close to that of time; what is on
        the path already is a cycle and not followed.
        """
        edges, ends = self._edges, self._edge_ends
        seen = bytearray(len(self.taken))
        path: list[tuple[int, int]] = []
        for root in range(len(self.taken) - 1, -1, -1):
            if seen[root]:
                continue
            seen[root] = 1
            node, at = root, ends[root - 1] if root else 0
            while True:
                end = ends[node]
                while at < end:
                    parent = edges[at]
                    at += 1
                    if parent < len(seen) and not seen[parent]:
                        seen[parent] = 1
                        path.append((node, at))
                        node, at = parent, ends[parent - 1] if parent else 0
                        end = ends[node]
                yield node
                if not path:
                    break
                node, at = path.pop()

    def check(self) -> None:
        """Verify the invariants between steps; raises AssertionError."""
        count = len(self.taken)
        assert count <= self._request.max_messages, "more is taken than the limit allows"
        assert len({claim[2] for claim in self.taken}) == count, "one is taken twice"
        assert len(self._edge_ends) + len(self._frontier) == count, "the frontier is out of step"
        assert all(0 <= edge < count for edge in self._edges), "an edge leads to nothing"
        for key in self.missing:
            assert not self._claims.sets.get(key), "the missing is found"

    def _run(self) -> Generator[ClaimQuery | WalkState, ClaimAnswer | None, None]:
        request = self._request
        yield WalkState.PAUSED  # the start
        known = iter(request.known_ids)
        while portion := list(islice(known, STEP_KNOWN_IDS)):
            self._known.update(sds_key(request.channel_id, known_id) for known_id in portion)
            yield WalkState.PAUSED
        found: list[Reference] = [
            (sds_key(request.channel_id, head.message_id), usable_hint(head.retrieval_hint))
            for head in request.heads
        ]
        node, depth, level_end, left = HEADS, -1, 0, STEP_REFERENCES
        while True:
            slot, before = 0, len(self.taken)
            while (slot := self._resolve(node, found, slot)) < len(found) and not self._is_full():
                reads_ahead = node != HEADS and not 0 < request.max_depth <= depth + 1
                answer = yield self._plan_read(node, found, slot, reads_ahead=reads_ahead)
                assert answer is not None, "a read was not answered"
                self._claims.add(answer)
                self._latest = answer.claims
            if slot < len(found):
                break
            if node == HEADS:
                del self._edges[:]
            else:
                self._edge_ends.append(len(self._edges))
                self._frontier_bytes -= len(self._frontier.popleft()[4])
            left -= 1 + len(found) + len(self.taken) - before
            if not self._frontier or (left <= 0 and self._is_full()):
                break
            if left <= 0:
                yield WalkState.PAUSED
                left = STEP_REFERENCES
            node += 1
            if node == level_end:
                depth, level_end = depth + 1, len(self.taken)
                if 0 < request.max_depth <= depth:
                    self._limit = 0
            claim = self._frontier[0]
            found = references(claim[4], claim[5])
        self._finish()
        yield WalkState.DONE

    def _resolve(self, node: int, found: Sequence[Reference], slot: int) -> int:
        """Resolve references from ``slot`` on; return the slot of the first that needs a read."""
        sets, known, numbers, edges = self._claims.sets, self._known, self._numbers, self._edges
        for at in range(slot, len(found)):
            key, hint = found[at]
            if key in known:
                continue
            claims: Sequence[Claim] | None = sets.get(key)
            if claims is None:
                return at
            if len(claims) != 1 or (hint is not None and claims[0][2] != hint):
                selection = self._claims.select(key, hint)
                if selection is None:
                    return at
                self.truncated |= selection.cut
                if not claims:
                    self._note_missing(key, Origin(node, at), is_found=bool(selection.claims))
                claims = selection.claims
            for claim in claims:
                number = numbers.get(claim[2])
                if number is None:
                    number = self._take(claim)
                if number >= 0:
                    edges.append(number)
        return len(found)

    def _note_missing(self, key: bytes, origin: Origin, *, is_found: bool) -> None:
        """Note a reference to an ID without claimants, of which a hint may name a message."""
        if is_found:
            self.missing.pop(key, None)
            self._found_by_hint.add(key)
        elif key not in self._found_by_hint:
            self.missing.setdefault(key, origin)

    def _take(self, claim: Claim) -> int:
        """Take a message; return its number, negative at a limit."""
        number = len(self.taken)
        if number >= self._limit:
            self.truncated = True
            return -1
        key, timestamp, digest, message_id, parent_keys, _, is_proven = claim
        bare = (key, timestamp, digest, message_id, b"", b"", is_proven)
        self.taken.append(bare)
        self._numbers[digest] = number
        self._frontier.append(claim)
        self._frontier_bytes += len(parent_keys)
        group = self._claims.sets[key]
        if claim in group:
            group[group.index(claim)] = bare
        return number

    def _is_full(self) -> bool:
        used = len(self.taken) * _NODE_BYTES + PARENT_BYTES * self._frontier_bytes
        used += (len(self.missing) + len(self._found_by_hint)) * _MISSING_BYTES
        return used > MAX_WALK_BYTES or len(self._edges) > MAX_EDGES

    def _plan_read(
        self, node: int, found: Sequence[Reference], slot: int, *, reads_ahead: bool
    ) -> ClaimQuery:
        """Return what the reference at ``slot`` needs, and others that follow."""
        claims = self._claims
        # Only here, where the claimants themselves are asked for: what is dropped between those
        # and a hint of theirs would be asked for again and again.
        if found[slot][0] not in claims.sets and claims.read_bytes > MAX_PREFETCHED_BYTES:
            claims.evict(self._is_needed)
            self._latest = ()
        keys: dict[bytes, None] = {}
        hints: dict[tuple[bytes, bytes], HintQuery] = {}
        left = MAX_SEEN_REFERENCES
        for child, first, seen in self._expansions(node, found, slot):
            left -= 1 + len(seen)
            for at in range(first, len(seen)):
                key, hint = seen[at]
                if key in self._known:
                    continue
                if key not in claims.sets:
                    keys[key] = None
                elif hint is not None and claims.select(key, hint) is None:
                    hints[key, hint] = HintQuery(key, hint, child, at)
            if left <= 0 or len(keys) >= MAX_READ_KEYS or len(hints) >= MAX_READ_HINTS:
                break
        ahead = self._choose_ahead() if keys and reads_ahead else 0
        return ClaimQuery(tuple(keys), tuple(hints.values()), ahead)

    def _expansions(
        self, node: int, found: Sequence[Reference], slot: int
    ) -> Iterator[tuple[Child | None, int, Sequence[Reference]]]:
        """Yield the references that are not resolved yet, each with its child and first slot."""
        is_head = node == HEADS
        yield None if is_head else self._frontier[0][:3], slot, found
        following: Iterator[Claim] = islice(self._frontier, 0 if is_head else 1, None)
        if self._limit > len(self.taken) and not self._request.max_depth:
            untaken = (claim for claim in self._latest if claim[2] not in self._numbers)
            following = chain(following, untaken)
        for claim in following:
            yield claim[:3], 0, references(claim[4], claim[5])

    def _is_needed(self, key: bytes, claims: Sequence[Claim]) -> bool:
        """Return True if a set was used, so that a reference to it needs no read."""
        if not claims:
            return key in self.missing
        return all(claim[2] in self._numbers for claim in claims)

    def _choose_ahead(self) -> int:
        """Return how many further keys the database should reach: twice as many each time."""
        room, ahead = self._limit - len(self.taken), self._ahead
        self._ahead = min(2 * ahead, MOST_AHEAD)
        return min(ahead, max(FEWEST_AHEAD, 2 * room)) if room > 0 else 0

    def _finish(self) -> None:
        """Drop what only the walk needs, and messages of which no parent was resolved."""
        if dropped := len(self._frontier):
            self.truncated = True
            del self.taken[-dropped:]
            count = len(self.taken)
            self.missing = {
                key: origin for key, origin in self.missing.items() if origin.node < count
            }
        self._claims.evict(lambda *_: False)
        self._numbers.clear()
        self._frontier.clear()
        self._latest = ()
