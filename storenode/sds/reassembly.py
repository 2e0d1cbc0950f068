"""Which segments are there: sets of places in the log, bounded in number and time.

Only the places of segments are kept, never their bytes: what is complete is read from the log. So
a set costs little whoever sends it, and goes on after a restart.

1. Segments belong together if sender, hash, count and length are equal. One that lies about one of
   these begins a set of its own.
2. Of different segments with one index the first `MAX_CLAIMS` are kept. When a content does not
   have its hash, the other ones are tried, and so are those that come later: `MAX_ATTEMPTS` times
   in all. So a forged segment that comes first does not keep a content from being read.
3. A sender has at most `MAX_SETS_PER_SENDER` sets, and all have `MAX_SETS` with `MAX_PLACES`
   segments: the set that was unchanged for longest makes room, of the sender who has most.
4. A set that was unchanged for ``patience_ms`` is dropped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product

from storenode.sds.limits import (
    MAX_ATTEMPTS,
    MAX_CLAIMS,
    MAX_PLACES,
    MAX_SETS,
    MAX_SETS_PER_SENDER,
)
from storenode.sds.pages import Key
from storenode.sds.segments import Segment, SegmentSet

_Name = tuple[str, SegmentSet]


@dataclass(slots=True)
class _Set:
    changed_ms: int
    places: dict[int, list[Key]] = field(default_factory=dict)
    size: int = 0
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Complete:
    """A set with all its segments: where each of them may be, newest first."""

    sender_id: str
    whole: SegmentSet
    places: tuple[tuple[Key, ...], ...]
    tried: int = 0

    def attempts(self) -> Iterator[tuple[Key, ...]]:
        """One place for each segment, in turn; few."""
        return islice(product(*self.places), MAX_ATTEMPTS - self.tried)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A set that was given up with ``held`` of its segments."""

    sender_id: str
    whole: SegmentSet
    held: int


class Reassembly:
    """The sets that are not complete."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self._sets: OrderedDict[_Name, _Set] = OrderedDict()
        self._of_sender: Counter[str] = Counter()
        self._places = 0

    def __len__(self) -> int:
        """Count the sets."""
        return len(self._sets)

    @property
    def places(self) -> int:
        """Count the segments."""
        return self._places

    def add(self, now_ms: int, sender_id: str, segment: Segment, place: Key) -> Complete | None:
        """Note where a segment is; a set that it completes is not kept any longer."""
        name = sender_id, segment.whole
        known = self._sets.get(name)
        if known is None:
            known = self._keep(name, _Set(now_ms))
        claims = known.places.setdefault(segment.index, [])
        if place in claims or len(claims) >= MAX_CLAIMS:
            return None
        claims.insert(0, place)
        known.size += 1
        known.changed_ms = now_ms
        self._places += 1
        self._sets.move_to_end(name)
        if len(known.places) < segment.whole.count:
            return None
        places = tuple(tuple(known.places[index]) for index in range(segment.whole.count))
        self._remove(name)
        return Complete(sender_id, segment.whole, places, known.attempts)

    def put_back(self, now_ms: int, complete: Complete, attempts: int) -> Dropped | None:
        """So many attempts did not give the content: a segment that comes yet may.

        Answers that it is given up where no attempts are left.
        """
        name = complete.sender_id, complete.whole
        tried = complete.tried + attempts
        if tried >= MAX_ATTEMPTS:
            return Dropped(*name, held=complete.whole.count)
        places = {index: list(claims) for index, claims in enumerate(complete.places)}
        size = sum(map(len, places.values()))
        if name not in self._sets:
            self._keep(name, _Set(now_ms, places, size, tried))
            self._places += size
        return None

    def sweep(self, now_ms: int) -> list[Dropped]:
        """Drop what is too old or too much."""
        dropped = []
        while (name := self._surplus(now_ms)) is not None:
            dropped.append(Dropped(*name, held=len(self._sets[name].places)))
            self._remove(name)
        return dropped

    def check(self) -> None:
        """Verify the invariants."""
        sets = self._sets.values()
        assert self._places == sum(each.size for each in sets)
        assert all(each.size == sum(map(len, each.places.values())) for each in sets)
        assert +self._of_sender == Counter(sender for sender, _ in self._sets)

    def _keep(self, name: _Name, made: _Set) -> _Set:
        self._sets[name] = made
        self._of_sender[name[0]] += 1
        return made

    def _remove(self, name: _Name) -> None:
        self._places -= self._sets.pop(name).size
        self._of_sender[name[0]] -= 1
        if not self._of_sender[name[0]]:
            del self._of_sender[name[0]]

    def _surplus(self, now_ms: int) -> _Name | None:
        if not self._sets:
            return None
        oldest = next(iter(self._sets))
        if now_ms - self._sets[oldest].changed_ms >= self._patience_ms:
            return oldest
        (sender, count) = self._of_sender.most_common(1)[0]
        crowded = len(self._sets) > MAX_SETS or self._places > MAX_PLACES
        if crowded or count > MAX_SETS_PER_SENDER:
            return next(name for name in self._sets if name[0] == sender)
        return None
