"""``GetCausalHistory``: the causal past of some heads, whatever it is like, from bulk reads.

The walk goes breadth first over references: the heads at depth 0, then the parents of every
selected message (`store.domain.claims` says what a reference selects). Rules:

1. Each stored message is taken once, at the depth where it is met first, in this order: by depth,
   then by the order in which its child was taken, then by the child's causal history, then by the
   order of claimants. A limit therefore keeps what is nearest to the heads.
2. A reference to a known ID selects nothing and is never missing.
3. An ID that is referenced and for which nothing was found is missing, once.
4. ``truncated``: something that is held and was referenced is not taken, because of a limit
   (messages, depth, memory, claimants per ID). At a limit the references of what was taken are
   still looked at, so that each of them ends as taken, known, missing or left out.
5. What was taken is given out with every parent before its children; inside a cycle, and only
   there, one child comes before its parent.

References are claims of whoever published them. Cycles end because nothing is taken twice, and
memory ends at `MAX_WALK_BYTES` and `MAX_EDGES`: then the walk stops where it is, truncated. The
claimants of an ID are a group that is made once: a reference to a crowded ID costs as much as any
other.

Reads are few because they are large: all keys that the frontier needs are asked for together,
with what is probably needed next. Messages that are close in causality are close in time, so this
is the channel's window just below the frontier as long as enough of it is used; in a channel
where the history is thin among other messages, it is what parents lead to.

=========  ==========================  =====================================================
state      `CausalWalk.step` answers   the caller then
=========  ==========================  =====================================================
walking    ``Read``                    reads, steps again with the `Answer`
walking    ``Pause``                   lets others work, steps again
done       ``Done``                    takes ``parents_first()``, ``missing``, ``truncated``
=========  ==========================  =====================================================
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from store.domain.claims import (
    DONE,
    FIRST_GROUP,
    HEADS,
    PAUSE,
    Answer,
    Child,
    Claim,
    Claims,
    Done,
    Found,
    HintQuery,
    Origin,
    Pause,
    Read,
    Reference,
    Selection,
    Window,
    parent_bytes,
    references,
    usable_hint,
)
from store.domain.ports import CausalRequest, SyncId
from storenode.sds.codec import sds_key

FIRST_CLAIMS: Final = 256
LARGEST_WINDOW_CLAIMS: Final = 4_096
MOST_AHEAD_CLAIMS: Final = 2_048
FEWEST_CLAIMS: Final = 64

WIDE_FRONTIER_KEYS: Final = 512
"""So many keys at a time make a read worth its while without anything in advance."""

LARGE_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Size of an answer beyond which the next one is made smaller."""

_GROWTH: Final = 4
_THIN_WINDOWS: Final = 2
_ROUNDS_AHEAD: Final = 16


class Pace:
    """The choice of what to read in advance at the next read, adapted to how much of it was used.

    A *window* takes the channel's claims just before those read last: a cheap row each, worth it
    while a good part is used. *Ahead* lets the database follow parents from the keys that are
    needed: several times dearer, and nearly all of it is used. Windows come first and grow; when
    two in a row were hardly used, or there is nothing more below, some rounds go ahead; then a
    window is tried again, from the frontier on.
    """

    def __init__(self) -> None:
        self._window_claims = FIRST_CLAIMS
        self._ahead_claims = FIRST_CLAIMS
        self._most_claims = LARGEST_WINDOW_CLAIMS
        self._below: SyncId | None = None  # where the next window begins; None: at the frontier
        self._thin = 0
        self._proven = False  # the last window was well used
        self._rounds_ahead = 0
        self._asked = 0
        self._asked_window = False
        self._taken = 0

    def plan(
        self, keys: int, newest: SyncId | None, taken: int, room: int
    ) -> tuple[Window | None, int]:
        """Choose a window, or a number of keys to go ahead, or neither.

        ``keys`` are needed now by children of which ``newest`` is the latest (None: by heads
        only); ``taken`` messages were taken so far and ``room`` more may be.
        """
        self._judge(taken - self._taken)
        self._taken, self._asked, self._asked_window = taken, 0, False
        if newest is None or not 0 < keys < WIDE_FRONTIER_KEYS or room <= 0:
            return None, 0
        most = max(FEWEST_CLAIMS, 2 * room)
        if self._rounds_ahead:
            self._rounds_ahead -= 1
            self._asked = min(self._ahead_claims, most)
            return None, self._asked
        self._asked, self._asked_window = min(self._window_claims, most), True
        following = 0
        if self._proven:
            following = min(_GROWTH * self._asked, self._most_claims, 2 * (room - self._asked))
        return Window(self._below or newest, self._asked, max(following, 0)), 0

    def note(self, answer: Answer, answer_bytes: int) -> None:
        """Note from the answer how far the window came and how large claims are here."""
        if answer_bytes > LARGE_ANSWER_BYTES:
            self._window_claims = self._ahead_claims = FEWEST_CLAIMS
        if _GROWTH * answer_bytes > LARGE_ANSWER_BYTES:
            # As large as fits, and no attempt at more.
            fitting = LARGE_ANSWER_BYTES * len(answer.claims) // answer_bytes
            self._most_claims = min(max(fitting, FEWEST_CLAIMS), LARGEST_WINDOW_CLAIMS)
        if self._asked_window:
            self._below = answer.reached
            if answer.reached is None:
                self._go_ahead()

    def _judge(self, used: int) -> None:
        if not self._asked:
            return
        if self._asked_window:
            self._judge_window(used)
        elif 2 * used >= self._asked:
            self._ahead_claims = min(2 * self._ahead_claims, MOST_AHEAD_CLAIMS)
        else:
            self._ahead_claims = max(self._ahead_claims // 2, FEWEST_CLAIMS)

    def _judge_window(self, used: int) -> None:
        if 4 * used >= self._asked:
            self._thin, self._proven = 0, True
            self._window_claims = min(_GROWTH * self._window_claims, self._most_claims)
        elif 16 * used < self._asked:
            self._thin, self._proven = self._thin + 1, False
            self._window_claims = max(self._window_claims // 4, FIRST_CLAIMS)
            self._window_claims = min(self._window_claims, self._most_claims)
            if self._thin >= _THIN_WINDOWS:
                self._go_ahead()

    def _go_ahead(self) -> None:
        self._rounds_ahead = _ROUNDS_AHEAD
        self._below = None
        self._thin, self._proven = _THIN_WINDOWS - 1, False


MAX_SEEN_REFERENCES: Final = 4_096
"""References of one look, a few milliseconds."""

MAX_READ_KEYS: Final = 4_096
MAX_READ_HINTS: Final = 512
"""Keys and hints of one read."""

Expansion = tuple[Child | None, int, Sequence[Reference]]
"""A child (None: the request), the slot of the first reference that counts, and all of them."""


class LookAhead:
    """A look at what a walk will need next; ``keys`` and ``hints`` are what should be read.

    The walk stops at the first reference that cannot be resolved. Others behind it cannot either:
    asking for all of them at once makes one round trip of many.
    """

    def __init__(
        self, claims: Claims, outcomes: Mapping[bytes, int], taken: Sequence[Found]
    ) -> None:
        """``outcomes``: number of the message that was taken for a key, or a negative mark."""
        self.keys: dict[bytes, None] = {}
        self.hints: dict[tuple[bytes, bytes], HintQuery] = {}
        self.newest: SyncId | None = None
        self._claims = claims
        self._outcomes = outcomes
        self._taken = taken
        self._left = MAX_SEEN_REFERENCES
        self._reached: deque[Claim] = deque()
        self._met: set[bytes] = set()

    def look(self, frontier: Iterable[Expansion], ignored: frozenset[int], *, deep: bool) -> None:
        """Collect what ``frontier`` needs, and if ``deep`` what the claimants behind it need.

        References whose outcome is one of the marks in ``ignored`` need nothing.
        """
        for child, first, found in frontier:
            self._visit(child, first, found, ignored)
            if self._full():
                return
        while deep and self._reached and not self._full():
            claim = self._reached.popleft()
            self._visit(claim[:3], 0, references(claim[4], claim[5]), ignored)

    def _full(self) -> bool:
        return (
            self._left <= 0 or len(self.keys) >= MAX_READ_KEYS or len(self.hints) >= MAX_READ_HINTS
        )

    def _visit(
        self, child: Child | None, first: int, found: Sequence[Reference], ignored: frozenset[int]
    ) -> None:
        self._left -= 1 + len(found)
        outcomes, claims = self._outcomes, self._claims
        for slot in range(first, len(found)):
            key, hint = found[slot]
            outcome = outcomes.get(key)
            if outcome is not None and outcome >= 0:
                if (
                    hint is None
                    or self._taken[outcome][2] == hint
                    or claims.is_hint_read(key, hint)
                ):
                    continue
                self.hints[key, hint] = HintQuery(key, hint, child, slot)
            elif outcome in ignored:
                continue
            elif hint is None and outcome is not None and outcome <= FIRST_GROUP:
                continue  # all that it selects was taken
            elif not claims.is_read(key):
                self._want(key, child)
            elif hint is not None and claims.lacks_hint(key, hint):
                self.hints[key, hint] = HintQuery(key, hint, child, slot)
            else:
                self._reach(key)

    def _want(self, key: bytes, child: Child | None) -> None:
        self.keys[key] = None
        if child is not None:
            position = child[1], child[2]
            if self.newest is None or position > self.newest:
                self.newest = position

    def _reach(self, key: bytes) -> None:
        claim = self._claims.peek(key)
        if claim is not None and key not in self._met:
            self._met.add(key)
            self._reached.append(claim)


MAX_WALK_BYTES: Final = 128 * 1024 * 1024
"""Memory of one walk, estimated, beside what is prefetched. 100,000 messages of SDS participants
take about a third of it; messages with hundreds of parents each that nobody holds exhaust it."""

MAX_EDGES: Final = 16 * 1024 * 1024
"""References that led to something held, at 4 bytes each: 160 for each of 100,000 messages."""

MAX_PREFETCHED_BYTES: Final = 64 * 1024 * 1024
"""Memory of what was read and not used yet, estimated; then it is forgotten."""

STEP_REFERENCES: Final = 4_096
"""References looked at in one step, a few milliseconds."""

_MOST_EDGES: Final = 2
"""Of one reference; where it selects more, it has them as a group."""

_NODE_BYTES: Final = 700
_MISSING_BYTES: Final = 300

_KNOWN: Final = -1
_MISSED: Final = -2
_FOUND: Final = -3
_LEFT_OUT: Final = -4
_SETTLED: Final = frozenset((_KNOWN, _LEFT_OUT))


class CausalWalk:
    """A walk; see the module's rules and table.

    ``taken`` is in the order of taking; a message's number is its index there.
    """

    def __init__(self, request: CausalRequest, known_keys: frozenset[bytes]) -> None:
        self.taken: list[Found] = []
        self.missing: dict[bytes, Origin] = {}
        self.truncated = False
        self._request = request
        self._heads: list[Reference] = [
            (sds_key(request.channel_id, head.message_id), usable_hint(head.retrieval_hint))
            for head in request.heads
        ]
        # key -> number of its only claimant, of the group of its claimants, or a mark
        self._outcomes: dict[bytes, int] = dict.fromkeys(known_keys, _KNOWN)
        self._by_hash: dict[bytes, int] = {}  # messages that are not their key's only claimant
        self._claims = Claims(request.claimants)
        self._pace = Pace()
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

    def step(self, answer: Answer | None = None) -> Read | Pause | Done:
        """Continue, with the answer if one was asked for."""
        if answer is not None:
            self._pace.note(answer, self._claims.add(answer))
        found = self._expand_heads() if self._node == HEADS else self._expand_frontier()
        if self._node != HEADS and len(self._edges) > MAX_EDGES:
            return self._end()
        if found is not None:
            if self._node != HEADS and self._memory() > MAX_WALK_BYTES:
                return self._end()
            return self._read(found)
        return PAUSE if self._frontier else self._end()

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
                        group = FIRST_GROUP - parent
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
        lowest = FIRST_GROUP - len(self._group_ends)
        for edge in (*self._edges, *self._members):
            assert lowest < edge < count, "an edge leads to nothing"
            assert edge >= 0 or edge <= FIRST_GROUP, "an edge is a mark"
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
        """About the bytes that the walk takes; what was prefetched has its own limit."""
        return (
            len(self.taken) * _NODE_BYTES
            + len(self.missing) * _MISSING_BYTES
            + sum(map(parent_bytes, self._frontier))
        )

    def _end(self) -> Done:
        """Let go of what only the walk needs, and of what was taken and not expanded: where that
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
        return DONE

    def _expand(self, found: Sequence[Reference]) -> bool:
        """Resolve references from ``_slot`` on; False at one for which something must be read."""
        outcomes, taken, edges = self._outcomes, self.taken, self._edges
        for slot in range(self._slot, len(found)):
            key, hint = found[slot]
            outcome = outcomes.get(key)
            if outcome is None:
                claim = self._claims.take_sole(key, hint)
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
        if outcome is not None and outcome <= FIRST_GROUP and self._resolve_in(outcome, hint):
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
        number, place = self._by_hash.get(hint), FIRST_GROUP - group
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
            if self._outcomes.get(key, _FOUND) > FIRST_GROUP:
                self._outcomes[key] = _FOUND
            if len(claims) > _MOST_EDGES:  # many references may name one message beside these
                self._edges.append(self._leading(key, claims[:-1]))
                claims = claims[-1:]
        for claim in claims:
            self._take_further(claim)

    def _group(self, key: bytes, claims: Sequence[Claim]) -> int:
        """Return the group of an ID's claimants, which are taken as far as the limits allow."""
        group = self._outcomes.get(key, _FOUND)
        if group > FIRST_GROUP:
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
        return FIRST_GROUP - len(self._group_ends) + 1

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

    def _read(self, found: Sequence[Reference]) -> Read:
        """What the reference at which the walk stopped needs, with all that is seen to follow."""
        key, _ = found[self._slot]
        # Only here, where the claimants themselves are asked for: what is dropped between those
        # and a hint of theirs would be asked for again and again.
        if not self._claims.is_read(key):
            self._claims.limit(MAX_PREFETCHED_BYTES)
        room = self._limit - len(self.taken)
        ahead = LookAhead(self._claims, self._outcomes, self.taken)
        ahead.look(self._expansions(found), _SETTLED, deep=room > 0 and not self._request.max_depth)
        window, follow = self._pace.plan(len(ahead.keys), ahead.newest, len(self.taken), room)
        return Read(tuple(ahead.keys), tuple(ahead.hints.values()), window, follow)

    def _expansions(self, found: Sequence[Reference]) -> Iterator[Expansion]:
        is_head = self._node == HEADS
        yield None if is_head else self._frontier[0][:3], self._slot, found
        for claim in islice(self._frontier, 0 if is_head else 1, None):
            yield claim[:3], 0, references(claim[4], claim[5])
