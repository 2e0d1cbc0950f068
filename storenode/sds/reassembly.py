"""Incomplete contents: the places of their segments in the log, bounded in number and time.

Only the places of segments are kept, never their bytes: what is complete is read from the log. So
a set costs little, and goes on after a restart.

1. Segments belong together if sender, hash, count and length are equal. One that lies about one of
   these begins a set of its own.
2. Anybody can publish segments under another's name. Of the *candidates* for one index the best
   `MAX_CANDIDATES` are kept: those with the better proof first, then those that the causal history
   of the next segment names, then the newest.
3. Choices of one candidate for each index are tried until the content has its hash: first those in
   which each segment's causal history names the one before, as a sender's segments do; of these
   there are few, however many candidates there are. Then the best candidates, and those that differ
   from these in one index. A set is tried `MAX_LINKED_ATTEMPTS` and `MAX_ATTEMPTS` times in all;
   when all linked attempts are used up it is dropped.
4. A sender has at most `MAX_SETS_PER_SENDER` sets, and all have `MAX_SETS` with `MAX_PLACES`
   segments: of the sender who has most, the set with the fewest segments makes room.
5. A set that was unchanged for ``patience_ms`` is dropped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from storenode.sds.limits import (
    MAX_ATTEMPTS,
    MAX_CANDIDATES,
    MAX_LINKED_ATTEMPTS,
    MAX_NAMED_BY_SEGMENT,
    MAX_PLACES,
    MAX_SETS,
    MAX_SETS_PER_SENDER,
)
from storenode.sds.log import Key
from storenode.sds.segments import Segment, SegmentSet

SetName = tuple[str, SegmentSet]
"""A sender, and what its segments of one content have in common."""


@dataclass(slots=True, eq=False)
class _Candidate:
    place: Key
    rank: int
    number: int
    causes: Sequence[str]
    before: _Candidate | None = None
    is_named: bool = False

    def order(self) -> tuple[int, bool, int]:
        return self.rank, self.is_named, self.number


@dataclass(slots=True)
class _Set:
    changed_ms: int
    of_index: dict[int, list[_Candidate]] = field(default_factory=dict)
    size: int = 0
    tried: dict[tuple[Key, ...], None] = field(default_factory=dict)
    linked: int = 0

    @property
    def has_attempts(self) -> bool:
        """True while choices that are not linked may be tried."""
        return len(self.tried) - self.linked < MAX_ATTEMPTS

    def choices(self, count: int) -> Iterator[tuple[list[_Candidate], bool]]:
        """Yield a candidate for each index, in the order of trying, and whether all are linked."""
        best = [self._best(index) for index in range(count)]
        for last in sorted(self.of_index[count - 1], key=_Candidate.order, reverse=True):
            chain, is_linked = [last], True
            for index in reversed(range(count - 1)):
                before = chain[-1].before
                is_linked = is_linked and before is not None
                chain.append(best[index] if before is None else before)
            yield chain[::-1], is_linked
        yield best, False
        for index in range(count):
            for other in self.of_index[index]:
                if not self.has_attempts:
                    return
                yield [*best[:index], other, *best[index + 1 :]], False

    def link(self, index: int, added: _Candidate) -> None:
        """Link a candidate with those of the indices around it, by their causal histories."""
        for before in self.of_index.get(index - 1, ()):
            _link(before, added)
        for after in self.of_index.get(index + 1, ()):
            _link(added, after)

    def _best(self, index: int) -> _Candidate:
        return max(self.of_index[index], key=_Candidate.order)


def _link(before: _Candidate, after: _Candidate) -> None:
    if after.before is None and before.place[1] in after.causes:
        after.before, before.is_named = before, True


@dataclass(frozen=True, slots=True)
class Dropped:
    """A set that was given up with segments for ``received`` of its indices."""

    sender_id: str
    whole: SegmentSet
    received: int


class Reassembly:
    """The contents that are not complete."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._sets: OrderedDict[SetName, _Set] = OrderedDict()
        self._sets_of: Counter[str] = Counter()
        self._places_of: Counter[str] = Counter()
        self._numbers = 0

    def __len__(self) -> int:
        """Count the sets."""
        return len(self._sets)

    @property
    def places(self) -> int:
        """The number of segments."""
        return self._places_of.total()

    def add(
        self,
        now_ms: int,
        sender_id: str,
        segment: Segment,
        place: Key,
        *,
        rank: int = 0,
        causes: Sequence[str] = (),
    ) -> SetName | None:
        """Note where a segment is; return the name of its set if that can be tried now.

        A higher ``rank`` is a better proof; ``causes`` is the causal history of the segment.
        """
        name = sender_id, segment.whole
        known = self._sets.get(name)
        if known is None:
            known = self._sets[name] = _Set(now_ms)
            self._sets_of[sender_id] += 1
        candidates = known.of_index.setdefault(segment.index, [])
        if any(each.place == place for each in candidates):
            return None
        self._numbers += 1
        added = _Candidate(place, rank, self._numbers, causes[-MAX_NAMED_BY_SEGMENT:])
        known.link(segment.index, added)
        candidates.append(added)
        known.size += 1
        self._places_of[sender_id] += 1
        if len(candidates) > MAX_CANDIDATES:
            # Not the newest: what would show that it is genuine may be next to come.
            candidates.remove(min(candidates[:-1], key=_Candidate.order))
            known.size -= 1
            self._places_of[sender_id] -= 1
        known.changed_ms = now_ms
        self._sets.move_to_end(name)
        return name if len(known.of_index) == segment.whole.count else None

    def attempts(self, name: SetName) -> Iterator[tuple[Key, ...]]:
        """Yield choices of places that were not tried yet; end the set by `remove` on success."""
        known = self._sets[name]
        for chosen, is_linked in known.choices(name[1].count):
            places = tuple([each.place for each in chosen])
            if places in known.tried:
                continue
            if known.linked >= MAX_LINKED_ATTEMPTS:
                return
            if not is_linked and not known.has_attempts:
                continue
            known.tried[places] = None
            known.linked += is_linked
            yield places

    def is_exhausted(self, name: SetName) -> bool:
        """Return True if no attempt is left for a set."""
        return self._sets[name].linked >= MAX_LINKED_ATTEMPTS

    def remove(self, name: SetName) -> Dropped:
        """Forget a set; return how much of it was held."""
        sender, _ = name
        known = self._sets.pop(name)
        self._sets_of[sender] -= 1
        self._places_of[sender] -= known.size
        if not self._sets_of[sender]:
            del self._sets_of[sender], self._places_of[sender]
        return Dropped(*name, received=len(known.of_index))

    def sweep(self, now_ms: int) -> list[Dropped]:
        """Drop the sets that are too old or too many."""
        dropped = []
        while (name := self._surplus(now_ms)) is not None:
            dropped.append(self.remove(name))
        return dropped

    def check(self) -> None:
        """Verify the invariants."""
        sizes: Counter[str] = Counter()
        for (sender, whole), each in self._sets.items():
            assert each.size == sum(map(len, each.of_index.values()))
            assert all(0 < len(found) <= MAX_CANDIDATES for found in each.of_index.values())
            assert all(0 <= index < whole.count for index in each.of_index)
            assert len(each.tried) <= MAX_ATTEMPTS + MAX_LINKED_ATTEMPTS
            sizes[sender] += each.size
        assert sizes == self._places_of
        assert Counter(sender for sender, _ in self._sets) == self._sets_of

    def _surplus(self, now_ms: int) -> SetName | None:
        if not self._sets:
            return None
        oldest = next(iter(self._sets))
        if now_ms - self._sets[oldest].changed_ms >= self._patience_ms:
            return oldest
        ((sender, count),) = self._sets_of.most_common(1)
        if self.places > MAX_PLACES:
            ((sender, _),) = self._places_of.most_common(1)
        elif len(self._sets) <= MAX_SETS and count <= MAX_SETS_PER_SENDER:
            return None
        of_sender = (name for name in self._sets if name[0] == sender)
        return min(of_sender, key=lambda name: len(self._sets[name].of_index))
