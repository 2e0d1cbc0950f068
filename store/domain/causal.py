"""``GetCausalHistory``: the causal past of some heads, walked from bulk reads.

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
memory ends at `MAX_WALK_BYTES`: then the walk stops where it is, truncated.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from sds.codec import sds_key
from store.domain.claims import (
    Answer,
    Child,
    Claim,
    Claims,
    Read,
    Reference,
    Selection,
    references,
)
from store.domain.lookahead import Expansion, LookAhead
from store.domain.lookup import usable_hint
from store.domain.pace import Pace
from store.domain.ports import CausalRequest

MAX_WALK_BYTES: Final = 128 * 1024 * 1024
"""Memory of one walk, estimated, beside what is prefetched. 100,000 messages of SDS participants
take about a third of it; messages with hundreds of parents each that nobody holds exhaust it."""

MAX_PREFETCHED_BYTES: Final = 64 * 1024 * 1024
"""Memory of what was read and not used yet, estimated; then it is forgotten."""

STEP_REFERENCES: Final = 4_096
"""References looked at in one step, a few milliseconds."""

_NODE_BYTES: Final = 450
_MISSING_BYTES: Final = 300

_KNOWN: Final = -1
_MISSED: Final = -2
_FOUND: Final = -3
_LEFT_OUT: Final = -4
_SETTLED: Final = frozenset((_KNOWN, _LEFT_OUT))
_HEADS: Final = -1


class Pause:
    """The step has used up its share of time; nothing is needed to go on."""


class Done:
    """The walk is complete."""


PAUSE: Final = Pause()
DONE: Final = Done()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a reference stands: in parent ``slot`` of message ``node``, or among the heads."""

    node: int
    slot: int

    @property
    def is_head(self) -> bool:
        """True for an entry of the request."""
        return self.node == _HEADS


class CausalWalk:
    """One walk; see the module's rules and table.

    Columns, by the number of a message in the order of taking: ``keys`` (of the ID, 16 bytes),
    ``timestamps`` (ns), ``hashes`` (32 bytes) and ``message_ids``.
    """

    def __init__(self, request: CausalRequest) -> None:
        self.keys: list[bytes] = []
        self.timestamps = array("q")
        self.hashes: list[bytes] = []
        self.message_ids: list[bytes] = []
        self.missing: dict[bytes, Origin] = {}
        self.truncated = False
        self._request = request
        self._heads: list[Reference] = [
            (sds_key(request.channel_id, head.message_id), usable_hint(head.retrieval_hint))
            for head in request.heads
        ]
        self._unhashed: Iterator[bytes] | None = iter(request.known_ids)
        self._outcomes: dict[bytes, int] = {}  # key -> number of its only claimant, or a mark
        self._by_hash: dict[bytes, int] = {}  # messages that are not their key's only claimant
        self._claims = Claims()
        self._pace = Pace()
        self._parents: deque[tuple[bytes, bytes]] = deque()  # of what is taken and not expanded
        self._edges = array("i")
        self._edge_ends = array("i")
        self._node = _HEADS  # whose references are being looked at
        self._slot = 0
        self._depth = 0
        self._level_end = 0
        self._bytes = 0
        self._dropped = 0

    def __len__(self) -> int:
        """Count what was taken."""
        return len(self.hashes)

    def step(self, answer: Answer | None = None) -> Read | Pause | Done:
        """Go on, with the answer if one was asked for."""
        if answer is not None:
            self._claims.add(answer)
            self._pace.note(answer)
        if self._unhashed is not None:
            return self._hash_known(self._unhashed)
        left = STEP_REFERENCES
        while left > 0:
            if self._node == len(self) or (self._bytes > MAX_WALK_BYTES and not self._slot):
                return self._end()
            found = self._heads if self._node == _HEADS else references(*self._parents[0])
            if not self._expand(found):
                return self._read(found)
            left -= 1 + len(found)
            self._advance()
        return PAUSE

    def parents_first(self) -> Iterator[int]:
        """Numbers of what was taken, every parent before its children.

        Depth first from the far end, so that the order stays close to that of time; what is on
        the path already is a cycle and not followed.
        """
        edges, ends = self._edges, self._edge_ends
        seen = bytearray(len(self)) + b"\1" * self._dropped
        path: list[tuple[int, int]] = []
        for root in range(len(self) - 1, -1, -1):
            if seen[root]:
                continue
            seen[root] = 1
            node, at = root, ends[root - 1] if root else 0
            while True:
                end = ends[node]
                while at < end:
                    parent = edges[at]
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

    def child(self, number: int) -> Child:
        """Key, timestamp and hash of a message that was taken."""
        return self.keys[number], self.timestamps[number], self.hashes[number]

    def check(self) -> None:
        """Verify the invariants between steps; raises AssertionError."""
        count = len(self)
        assert count == len(self.keys) == len(self.timestamps) == len(self.message_ids)
        assert count <= self._request.max_messages, "more is taken than the limit allows"
        assert len(set(zip(self.keys, self.hashes, strict=True))) == count, "one is taken twice"
        assert len(self._edge_ends) == max(self._node, 0), "an expanded message has no edges' end"
        assert len(self._parents) == count - max(self._node, 0), "the frontier is out of step"
        assert all(0 <= edge < count for edge in self._edges), "an edge leads to nothing"
        assert all(self._outcomes[key] == _MISSED for key in self.missing), "the missing is found"

    def _hash_known(self, unhashed: Iterator[bytes]) -> Pause:
        channel = self._request.channel_id
        portion = list(islice(unhashed, STEP_REFERENCES))
        self._outcomes.update((sds_key(channel, known), _KNOWN) for known in portion)
        if not portion:
            self._unhashed = None
        return PAUSE

    def _advance(self) -> None:
        """Turn to the next message's references; note where depths begin."""
        if self._node == _HEADS:
            self._edges = array("i")
            self._level_end = len(self)
        else:
            keys, hints = self._parents.popleft()
            self._bytes -= len(keys) + len(hints)
            self._edge_ends.append(len(self._edges))
        self._node += 1
        self._slot = 0
        if self._node == self._level_end:
            self._depth += 1
            self._level_end = len(self)

    def _end(self) -> Done:
        """Let go of what only the walk needs, and of what was taken and not expanded: where that
        stands in the order of parents and children is not known.
        """
        kept = max(self._node, 0)
        self._dropped = len(self) - kept
        if self._dropped:
            self.truncated = True
            del self.keys[kept:], self.timestamps[kept:]
            del self.hashes[kept:], self.message_ids[kept:]
        self._claims.clear()
        self._outcomes.clear()
        self._by_hash.clear()
        self._parents.clear()
        return DONE

    def _expand(self, found: Sequence[Reference]) -> bool:
        """Resolve references from ``_slot`` on; False at one for which something must be read."""
        outcomes, hashes, edges = self._outcomes, self.hashes, self._edges
        for slot in range(self._slot, len(found)):
            key, hint = found[slot]
            outcome = outcomes.get(key, _MISSED)
            if outcome >= 0 and (hint is None or hashes[outcome] == hint):
                edges.append(outcome)
            elif not self._resolve(key, hint, slot):
                self._slot = slot
                return False
        return True

    def _resolve(self, key: bytes, hint: bytes | None, slot: int) -> bool:
        outcome = self._outcomes.get(key)
        if outcome is None:
            claim = self._claims.take_sole(key, hint)
            if claim is not None:
                self._outcomes[key] = self._take(claim)
                return True
        elif outcome in _SETTLED:
            return True
        if outcome is not None and outcome >= 0:
            return hint is not None and self._resolve_beside(outcome, key, hint)
        selection = self._claims.select(key, hint)
        if selection is None:
            return False
        self._connect(key, selection, slot)
        return True

    def _resolve_beside(self, sole: int, key: bytes, hint: bytes) -> bool:
        """Resolve a hint that does not name the claimant which was taken as the only one."""
        if not self._claims.is_hint_read(key, hint):
            return False
        hinted = self._claims.hinted(key, hint)
        if hinted is None or not hinted.readable:
            self._edges.append(sole)
        if hinted is not None:
            self._take_further(hinted.claim)
        return True

    def _connect(self, key: bytes, selection: Selection, slot: int) -> None:
        if not selection.claims:
            if self._outcomes.setdefault(key, _MISSED) == _MISSED and key not in self.missing:
                self.missing[key] = Origin(self._node, slot)
                self._bytes += _MISSING_BYTES
            return
        self._outcomes[key] = _FOUND
        self.missing.pop(key, None)
        self.truncated |= selection.cut
        for claim in selection.claims:
            self._take_further(claim)

    def _take_further(self, claim: Claim) -> None:
        number = self._by_hash.get(claim[2])
        if number is None:
            number = self._take(claim)
            if number >= 0:
                self._by_hash[claim[2]] = number
        else:
            self._edges.append(number)

    def _take(self, claim: Claim) -> int:
        """Take a message and connect it to its child; its number, or the mark of a limit."""
        request, number = self._request, len(self.hashes)
        depth = self._depth + (self._node != _HEADS)
        if number >= request.max_messages or 0 < request.max_depth < depth:
            self.truncated = True
            return _LEFT_OUT
        key, timestamp, digest, message_id, parent_keys, parent_hints = claim
        self.keys.append(key)
        self.timestamps.append(timestamp)
        self.hashes.append(digest)
        self.message_ids.append(message_id)
        self._parents.append((parent_keys, parent_hints))
        self._edges.append(number)
        self._bytes += _NODE_BYTES + len(message_id) + len(parent_keys) + len(parent_hints)
        return number

    def _read(self, found: Sequence[Reference]) -> Read:
        """What the reference at which the walk stopped needs, with all that is seen to follow."""
        request = self._request
        key, _ = found[self._slot]
        # Only here, where the claimants themselves are asked for: what is dropped between those
        # and a hint of theirs would be asked for again and again.
        if self._claims.bytes > MAX_PREFETCHED_BYTES and not self._claims.is_read(key):
            self._claims.clear()
        room = request.max_messages - len(self)
        if 0 < request.max_depth <= self._depth:
            room = 0
        ahead = LookAhead(self._claims, self._outcomes, self.hashes)
        ahead.look(self._frontier(found), _SETTLED, deep=room > 0 and not request.max_depth)
        window, follow = self._pace.plan(len(ahead.keys), ahead.newest, len(self), room)
        return Read(tuple(ahead.keys), tuple(ahead.hints.values()), window, follow)

    def _frontier(self, found: Sequence[Reference]) -> Iterator[Expansion]:
        is_head = self._node == _HEADS
        yield None if is_head else self.child(self._node), self._slot, found
        first = 0 if is_head else 1
        for number, parents in enumerate(islice(self._parents, first, None), self._node + 1):
            yield self.child(number), 0, references(*parents)
