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
`MAX_WALK_BYTES` and `MAX_EDGES`: then the walk stops where it is, truncated. The claimants of an ID
are a group that is made once: a reference to a crowded ID costs as much as any other.

Reads are few because they are large: all keys that the frontier needs are asked for together, with
what is probably needed next. In a dense history that is a window: the claims of the channel which
are next in time. Where too many claims of windows stay unused, it is what the database reaches by
parents, up to a number of keys that grows while they are used.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Final, NamedTuple

from store.domain.claims import (
    Child,
    Claim,
    ClaimAnswer,
    ClaimCache,
    ClaimQuery,
    Found,
    HintQuery,
    Reference,
    Selection,
    parent_bytes,
    references,
    usable_hint,
)
from store.domain.ports import CausalRequest
from storenode.sds.codec import sds_key

FEWEST_AHEAD: Final = 64
FIRST_AHEAD: Final = 256
MOST_AHEAD: Final = 4_096
"""Keys that the database reaches by parents in one read."""

FEWEST_IN_WINDOW: Final = 256
MOST_IN_WINDOW: Final = 4_096
"""Claims of one window."""

WIDE_FRONTIER_KEYS: Final = 512
"""Keys whose read is large enough without any that are reached from them."""

LARGE_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Size of an answer beyond which the next one is made smaller."""

MAX_SEEN_REFERENCES: Final = 4_096
"""References that are looked at to plan one read, a few milliseconds."""

MAX_READ_KEYS: Final = 4_096
MAX_READ_HINTS: Final = 512
"""Keys and hints of one read."""

MAX_WALK_BYTES: Final = 128 * 1024 * 1024
"""Memory of one walk, estimated, without what is prefetched. 100,000 messages of SDS participants
take about a third of it; messages with hundreds of missing parents each exhaust it."""

MAX_EDGES: Final = 16 * 1024 * 1024
"""References that led to stored messages, at 4 bytes each: 160 for each of 100,000 messages."""

MAX_PREFETCHED_BYTES: Final = 64 * 1024 * 1024
"""Memory of what was read and not used yet, estimated; then it is dropped."""

STEP_REFERENCES: Final = 4_096
"""References looked at in one step, a few milliseconds."""

STEP_KNOWN_IDS: Final = 4_096
"""Known IDs hashed in one step, a few milliseconds."""

_MOST_EDGES: Final = 2
"""Edges of one reference; where it selects more, it has them as a group."""

_NODE_BYTES: Final = 700
_MISSING_BYTES: Final = 300

HEADS: Final = -1
"""The number that stands for the request, where a message's number is expected."""

_KNOWN: Final = -1
_MISSED: Final = -2
_FOUND: Final = -3
_LEFT_OUT: Final = -4
_SETTLED: Final = frozenset((_KNOWN, _LEFT_OUT))
_FIRST_GROUP: Final = -16
"""From here down, numbers stand for groups: all claimants of one ID."""

_Expansion = tuple[Child | None, int, Sequence[Reference]]
"""A child (None: the request), the slot of the first reference that counts, and all of them."""


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

    ``taken`` is in the order of taking; a message's number is its index there. See the module's
    rules.
    """

    def __init__(self, request: CausalRequest) -> None:
        self.taken: list[Found] = []
        self.missing: dict[bytes, Origin] = {}
        self.truncated = False
        self._request = request
        self._heads: list[Reference] = [
            (sds_key(request.channel_id, head.message_id), usable_hint(head.retrieval_hint))
            for head in request.heads
        ]
        # key -> number of its only claimant, of the group of its claimants, or a mark
        self._outcomes: dict[bytes, int] = {}
        self._unhashed: Iterator[bytes] | None = iter(request.known_ids)
        self._by_hash: dict[bytes, int] = {}  # messages that are not their key's only claimant
        self._claims = ClaimCache(request.claimants)
        self._ahead = FIRST_AHEAD
        self._asked_ahead = 0
        self._taken_before = 0  # the last read
        self._asked_window = 0
        self._unused = 0  # claims of windows
        self._frontier: deque[Claim] = deque()  # what is taken and not expanded
        self._edges = array("i")
        self._edge_ends = array("i")
        self._members = array("i")  # of all groups, one group after the other
        self._group_ends = array("i")
        self._led: set[int] = set()  # groups that begin with what is proven
        self._proven: set[int] = set()  # members of those that are
        self._leaders: dict[bytes, int] = {}  # key -> group of its proven claimants alone
        self._node = HEADS  # whose references are being looked at
        self._slot = 0
        self._depth = 0
        self._level_end = 0
        self._limit = request.max_messages  # 0 where the depth is exhausted
        self._dropped = 0

    def step(self, answer: ClaimAnswer | None = None) -> ClaimQuery | WalkState:
        """Advance the walk, with the answer if one was asked for."""
        if self._unhashed is not None:
            return self._hash_known(self._unhashed)
        if answer is not None and self._claims.add(answer) > LARGE_ANSWER_BYTES:
            self._ahead = FEWEST_AHEAD
            self._asked_ahead = self._asked_window = 0
        found = self._expand_heads() if self._node == HEADS else self._expand_frontier()
        if self._node != HEADS and len(self._edges) > MAX_EDGES:
            return self._end()
        if found is not None:
            if self._node != HEADS and self._memory() > MAX_WALK_BYTES:
                return self._end()
            return self._read(found)
        return WalkState.PAUSED if self._frontier else self._end()

    def parents_first(self) -> Iterator[int]:
        """Return the numbers of what was taken, every parent before its children.

        Depth first from the far end, so that the order stays close to that of time; what is on
        the path already is a cycle and not followed.
        """
        edges, ends, members = self._edges, self._edge_ends, self._members
        group_ends = self._group_ends
        # The next member of each group; what is before it was met already.
        nexts = array("i", [0, *group_ends[:-1]]) if group_ends else group_ends
        seen = bytearray(len(self.taken)) + b"\1" * self._dropped
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
                    if parent < 0:
                        group = _FIRST_GROUP - parent
                        member = nexts[group]
                        if member == group_ends[group]:
                            at += 1
                            continue
                        nexts[group] = member + 1
                        parent = members[member]
                    else:
                        at += 1
                    if not seen[parent]:
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
        count, expanded = len(self.taken), max(self._node, 0)
        assert count <= self._request.max_messages, "more is taken than the limit allows"
        assert len({(found[0], found[2]) for found in self.taken}) == count, "one is taken twice"
        assert len(self._edge_ends) == expanded, "an expanded message has no edges' end"
        assert len(self._frontier) == count - expanded, "the frontier is out of step"
        lowest = _FIRST_GROUP - len(self._group_ends)
        for edge in (*self._edges, *self._members):
            assert lowest < edge < count, "an edge leads to nothing"
            assert edge >= 0 or edge <= _FIRST_GROUP, "an edge is a mark"
        assert all(member >= 0 for member in self._members), "a group is in a group"
        assert all(self._outcomes[key] == _MISSED for key in self.missing), "the missing is found"

    def _expand_heads(self) -> Sequence[Reference] | None:
        if not self._expand(self._heads):
            return self._heads
        self._edges = array("i")
        self._node = self._slot = 0
        self._level_end = len(self.taken)
        return None

    def _expand_frontier(self) -> Sequence[Reference] | None:
        """Expand what fits into a step; the references at which it stopped for want of a read."""
        frontier, ends = self._frontier, self._edge_ends
        left = STEP_REFERENCES
        while frontier and left > 0:
            claim = frontier[0]
            found = references(claim[4], claim[5])
            if self._node == self._level_end:
                self._deepen()
            before = len(self.taken)
            if not self._expand(found):
                return found
            frontier.popleft()
            ends.append(len(self._edges))
            self._node += 1
            self._slot = 0
            left -= 1 + len(found) + len(self.taken) - before
        return None

    def _deepen(self) -> None:
        self._level_end = len(self.taken)
        self._depth += 1
        if 0 < self._request.max_depth <= self._depth:
            self._limit = 0

    def _memory(self) -> int:
        """Estimate the memory of the walk without what was prefetched, which has its own limit."""
        return (
            len(self.taken) * _NODE_BYTES
            + len(self.missing) * _MISSING_BYTES
            + sum(map(parent_bytes, self._frontier))
        )

    def _end(self) -> WalkState:
        """Drop what only the walk needs, and of what was taken and not expanded: where that
        stands in the order of parents and children is not known.
        """
        self._dropped = len(self._frontier)
        if self._dropped:
            self.truncated = True
            del self.taken[-self._dropped :]
            self.missing = {
                key: origin for key, origin in self.missing.items() if origin.node < self._node
            }
        self._claims.clear()
        self._outcomes.clear()
        self._by_hash.clear()
        self._leaders.clear()
        self._frontier.clear()
        return WalkState.DONE

    def _expand(self, found: Sequence[Reference]) -> bool:
        """Resolve references from ``_slot`` on; False at one for which something must be read."""
        outcomes, taken, edges = self._outcomes, self.taken, self._edges
        for slot in range(self._slot, len(found)):
            key, hint = found[slot]
            outcome = outcomes.get(key)
            if outcome is None:
                claim = self._claims.pop_sole(key, hint)
                if claim is not None:
                    outcome = outcomes[key] = self._take(claim)
                    if outcome >= 0:
                        edges.append(outcome)
                    continue
            elif outcome >= 0 and (hint is None or taken[outcome][2] == hint):
                edges.append(outcome)
                continue
            if not self._resolve(outcome, key, hint, slot):
                self._slot = slot
                return False
        return True

    def _resolve(self, outcome: int | None, key: bytes, hint: bytes | None, slot: int) -> bool:
        if outcome in _SETTLED:
            return True
        if outcome is not None and outcome >= 0 and hint is not None:
            return self._resolve_beside(outcome, key, hint)
        if outcome is not None and outcome <= _FIRST_GROUP and self._resolve_in(outcome, hint):
            return True
        selection = self._claims.select(key, hint)
        if selection is None:
            return False
        self._connect(key, selection, slot)
        return True

    def _resolve_in(self, group: int, hint: bytes | None) -> bool:
        """Resolve a reference that selects a group as a whole, or just the member it names."""
        if hint is None:
            self._edges.append(group)
            return True
        number, place = self._by_hash.get(hint), _FIRST_GROUP - group
        start = self._group_ends[place - 1] if place else 0
        if number is None or number not in self._members[start : self._group_ends[place]]:
            return False
        if group in self._led and number not in self._proven:
            return False  # the proven members are selected with it
        self._edges.append(number)
        return True

    def _resolve_beside(self, sole: int, key: bytes, hint: bytes) -> bool:
        """Resolve a hint that does not name the claimant which was taken as the only one."""
        if not self._claims.is_hint_read(key, hint):
            return False
        hinted = self._claims.hinted(key, hint)
        self._edges.append(sole)
        if hinted is not None:
            self._take_further(hinted.claim)
        return True

    def _connect(self, key: bytes, selection: Selection, slot: int) -> None:
        if not selection.claims:
            if self._outcomes.setdefault(key, _MISSED) == _MISSED and key not in self.missing:
                self.missing[key] = Origin(self._node, slot)
            return
        self.missing.pop(key, None)
        self.truncated |= selection.cut
        claims, shared = selection.claims, selection.shared
        if shared > 1:
            self._edges.append(self._group(key, claims[:shared]))
            claims = claims[shared:]
        else:
            if self._outcomes.get(key, _FOUND) > _FIRST_GROUP:
                self._outcomes[key] = _FOUND
            if len(claims) > _MOST_EDGES:  # many references may name one message beside these
                self._edges.append(self._leading(key, claims[:-1]))
                claims = claims[-1:]
        for claim in claims:
            self._take_further(claim)

    def _group(self, key: bytes, claims: Sequence[Claim]) -> int:
        """Return the group of an ID's claimants, which are taken as far as the limits allow."""
        group = self._outcomes.get(key, _FOUND)
        if group > _FIRST_GROUP:
            numbers = [self._number(claim) for claim in claims]
            proven = [number for number, claim in zip(numbers, claims, strict=True) if claim[6]]
            group = self._outcomes[key] = self._new_group(numbers)
            if proven:
                self._led.add(group)
                self._proven.update(proven)
        return group

    def _leading(self, key: bytes, claims: Sequence[Claim]) -> int:
        """Return the group of an ID's proven claimants."""
        group = self._leaders.get(key)
        if group is None:
            numbers = [self._number(claim) for claim in claims]
            group = self._leaders[key] = self._new_group(numbers)
        return group

    def _new_group(self, numbers: Sequence[int]) -> int:
        self._members.extend([number for number in numbers if number >= 0])
        self._group_ends.append(len(self._members))
        return _FIRST_GROUP - len(self._group_ends) + 1

    def _take_further(self, claim: Claim) -> None:
        number = self._number(claim)
        if number >= 0:
            self._edges.append(number)

    def _number(self, claim: Claim) -> int:
        """Return the number of one of several claimants, which is taken if it was not yet."""
        number = self._by_hash.get(claim[2])
        if number is None:
            number = self._take(claim)
            if number >= 0:
                self._by_hash[claim[2]] = number
        return number

    def _take(self, claim: Claim) -> int:
        """Take a message; its number, or the mark of a limit."""
        number = len(self.taken)
        if number >= self._limit:
            self.truncated = True
            return _LEFT_OUT
        self.taken.append(claim[:4])
        self._frontier.append(claim)
        return number

    def _read(self, found: Sequence[Reference]) -> ClaimQuery:
        """Return what the reference at which the walk stopped needs, with all that follows.

        References behind it need reads too: asking for all of them at once makes one round trip of
        many. Those of claims that were read and not taken are looked at as well.
        """
        key, _ = found[self._slot]
        # Only here, where the claimants themselves are asked for: what is dropped between those
        # and a hint of theirs would be asked for again and again.
        if not self._claims.is_read(key):
            self._claims.limit(MAX_PREFETCHED_BYTES)
        keys: dict[bytes, None] = {}
        hints: dict[tuple[bytes, bytes], HintQuery] = {}
        reached: deque[Claim] = deque()
        met: set[bytes] = set()
        left = MAX_SEEN_REFERENCES
        follows = self._limit > len(self.taken) and not self._request.max_depth
        for child, first, seen in chain(self._expansions(found), _expand_reached(reached)):
            left -= 1 + len(seen)
            for slot in range(first, len(seen)):
                key, hint = seen[slot]
                if self._is_resolved(key, hint):
                    continue
                if self._outcomes.get(key, _FOUND) < 0 and not self._claims.is_read(key):
                    keys[key] = None
                elif hint is not None and self._needs_hint(key, hint):
                    hints[key, hint] = HintQuery(key, hint, child, slot)
                elif key not in met and (claim := self._claims.peek(key)) is not None:
                    met.add(key)
                    if follows:
                        reached.append(claim)
            if left <= 0 or len(keys) >= MAX_READ_KEYS or len(hints) >= MAX_READ_HINTS:
                break
        used = len(self.taken) - self._taken_before
        self._taken_before = len(self.taken)
        ahead, window = self._choose_ahead(len(keys), used), self._choose_window(len(keys), used)
        newest = [(claim[1], claim[2]) for claim in islice(self._frontier, MAX_READ_HINTS)]
        before = max(newest) if window else (0, b"")
        return ClaimQuery(tuple(keys), tuple(hints.values()), ahead, window, before)

    def _is_resolved(self, key: bytes, hint: bytes | None) -> bool:
        outcome = self._outcomes.get(key)
        if outcome is None:
            return False
        if outcome >= 0:
            is_same = hint is None or self.taken[outcome][2] == hint
            return is_same or (hint is not None and self._claims.is_hint_read(key, hint))
        return outcome in _SETTLED or (hint is None and outcome <= _FIRST_GROUP)

    def _needs_hint(self, key: bytes, hint: bytes) -> bool:
        return self._outcomes.get(key, _FOUND) >= 0 or self._claims.lacks_hint(key, hint)

    def _choose_window(self, keys: int, used: int) -> int:
        """Return how many claims the next window should have, at most half of them unused."""
        if self._asked_window:
            self._unused = max(self._unused + self._asked_window - used, 0)
        self._asked_window, size = 0, 2 * self._asked_window
        room = self._limit - len(self.taken)
        is_limited = self._request.max_depth > 0 or room <= 0
        if keys and self._frontier and not is_limited and self._unused <= len(self.taken) // 2:
            size = min(max(size, FEWEST_IN_WINDOW), MOST_IN_WINDOW)
            self._asked_window = min(size, max(FEWEST_AHEAD, 2 * room))
        return self._asked_window

    def _choose_ahead(self, keys: int, used: int) -> int:
        """Return how many further keys the database should reach from ``keys``."""
        if self._asked_ahead:
            is_used = 2 * used >= self._asked_ahead
            size = 2 * self._ahead if is_used else self._ahead // 2
            self._ahead = min(max(size, FEWEST_AHEAD), MOST_AHEAD)
        self._asked_ahead = 0
        room, depth = self._limit - len(self.taken), self._request.max_depth
        is_last_level = 0 < depth <= self._depth + 1
        if self._node != HEADS and 0 < keys < WIDE_FRONTIER_KEYS and room > 0 and not is_last_level:
            self._asked_ahead = min(self._ahead, max(FEWEST_AHEAD, 2 * room))
        return self._asked_ahead

    def _expansions(self, found: Sequence[Reference]) -> Iterator[_Expansion]:
        is_head = self._node == HEADS
        yield None if is_head else self._frontier[0][:3], self._slot, found
        for claim in islice(self._frontier, 0 if is_head else 1, None):
            yield claim[:3], 0, references(claim[4], claim[5])

    def _hash_known(self, unhashed: Iterator[bytes]) -> WalkState:
        channel = self._request.channel_id
        portion = list(islice(unhashed, STEP_KNOWN_IDS))
        self._outcomes.update((sds_key(channel, known), _KNOWN) for known in portion)
        if not portion:
            self._unhashed = None
        return WalkState.PAUSED


def _expand_reached(reached: deque[Claim]) -> Iterator[_Expansion]:
    while reached:
        claim = reached.popleft()
        yield claim[:3], 0, references(claim[4], claim[5])
