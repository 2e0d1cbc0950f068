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
`MAX_WALK_BYTES`: then the walk stops where it is, truncated.

Reads are few because they are large: all keys and hints that the frontier and what was read last
need are asked for together, with further keys that the database reaches by parents. The number of
these grows with every read.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from store.domain.claims import (
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

MAX_WALK_BYTES: Final = 256 * 1024 * 1024
"""Memory of one walk, estimated: of all that was read, and of references that led to messages.
100,000 messages of SDS participants take less than half of it; messages with hundreds of parents
each exhaust it."""

STEP_REFERENCES: Final = 4_096
"""References looked at in one step, a few milliseconds."""

STEP_KNOWN_IDS: Final = 4_096
"""Known IDs hashed in one step, a few milliseconds."""

_EDGE_BYTES: Final = 4

HEADS: Final = -1
"""The number that stands for the request, where a message's number is expected."""


class Origin(NamedTuple):
    """The location of a reference: parent ``slot`` of message ``node``, or a head."""

    node: int
    slot: int


class CausalWalk:
    """A ``GetCausalHistory`` request; ``step`` until it ``is_done``.

    ``taken`` has claims in the order of taking, in the end without their parents; a message's
    number is its index there. See the module's rules.
    """

    def __init__(self, request: CausalRequest) -> None:
        self.taken: list[Claim] = []
        self.missing: dict[bytes, Origin] = {}
        self.truncated = False
        self.is_done = False
        self._request = request
        self._known: set[bytes] = set()
        self._claims = ClaimCache(request.claimants)
        self._latest: Sequence[Claim] = ()  # the last read
        self._numbers: dict[bytes, int] = {}  # message hash -> number
        self._found_by_hint: set[bytes] = set()  # keys without claimants
        self._edges = array("i")
        self._edge_ends = array("i")  # of what is expanded; the rest of what is taken follows
        self._limit = request.max_messages  # 0 where the depth is exhausted
        self._ahead = FIRST_AHEAD
        self._steps = self._run()

    def step(self, answer: ClaimAnswer | None = None) -> ClaimQuery | None:
        """Advance the walk, with the answer to the last read.

        Returns:
            The next read; None: it needs none, and others may work first.
        """
        try:
            return self._steps.send(answer)
        except StopIteration:
            self.is_done = True
            return None

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
        assert len(self._edge_ends) <= count, "more is expanded than taken"
        assert all(0 <= edge < count for edge in self._edges), "an edge leads to nothing"
        for key in self.missing:
            assert not self._claims.sets.get(key), "the missing is found"

    def _run(self) -> Generator[ClaimQuery | None, ClaimAnswer | None, None]:
        request = self._request
        known = iter(request.known_ids)
        while portion := list(islice(known, STEP_KNOWN_IDS)):
            self._known.update(sds_key(request.channel_id, known_id) for known_id in portion)
            yield None
        found: list[Reference] = [
            (sds_key(request.channel_id, head.message_id), usable_hint(head.retrieval_hint))
            for head in request.entries
        ]
        node, depth, level_end, left = HEADS, -1, 0, STEP_REFERENCES
        while True:
            slot, before = 0, len(self.taken)
            while (slot := self._resolve(node, found, slot)) < len(found):
                if node != HEADS and self._is_full():
                    return self._finish()
                reads_ahead = node != HEADS and not 0 < request.max_depth <= depth + 1
                answer = yield self._plan_read(node, found, slot, reads_ahead=reads_ahead)
                assert answer is not None, "a read was not answered"
                self._claims.add(answer)
                self._latest = answer.claims
            if node == HEADS:
                del self._edges[:]
            else:
                self._edge_ends.append(len(self._edges))
                key, timestamp, digest, message_id, _, _, is_proven = self.taken[node]
                self.taken[node] = key, timestamp, digest, message_id, b"", b"", is_proven
            left -= 1 + len(found) + len(self.taken) - before
            node += 1
            if node == len(self.taken) or (left <= 0 and self._is_full()):
                return self._finish()
            if left <= 0:
                yield None
                left = STEP_REFERENCES
            if node == level_end:
                depth, level_end = depth + 1, len(self.taken)
                if 0 < request.max_depth <= depth:
                    self._limit = 0
            found = references(*self.taken[node][4:6])

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
                selected, is_cut = selection
                self.truncated |= is_cut
                if not claims:
                    self._note_missing(key, Origin(node, at), is_found=bool(selected))
                claims = selected
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
        self.taken.append(claim)
        self._numbers[claim[2]] = number
        return number

    def _is_full(self) -> bool:
        return self._claims.read_bytes + _EDGE_BYTES * len(self._edges) > MAX_WALK_BYTES

    def _plan_read(
        self, node: int, found: Sequence[Reference], slot: int, *, reads_ahead: bool
    ) -> ClaimQuery:
        """Return what the reference at ``slot`` needs, and others that follow."""
        claims = self._claims
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
        yield None if node == HEADS else self.taken[node][:3], slot, found
        following = self.taken[node + 1 :]
        if self._limit > len(self.taken) and not self._request.max_depth:
            following += [claim for claim in self._latest if claim[2] not in self._numbers]
        for claim in following:
            yield claim[:3], 0, references(claim[4], claim[5])

    def _choose_ahead(self) -> int:
        """Return how many further keys the database should reach: twice as many each time."""
        room, ahead = self._limit - len(self.taken), self._ahead
        self._ahead = min(2 * ahead, MOST_AHEAD)
        return min(ahead, max(FEWEST_AHEAD, 2 * room)) if room > 0 else 0

    def _finish(self) -> None:
        """Drop what only the walk needs, and messages of which no parent was resolved."""
        count = len(self._edge_ends)
        if count < len(self.taken):
            self.truncated = True
            del self.taken[count:]
            self.missing = {
                key: origin for key, origin in self.missing.items() if origin.node < count
            }
        self._claims = ClaimCache(0)
        self._numbers.clear()
        self._latest = ()
