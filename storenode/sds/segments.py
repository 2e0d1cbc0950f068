"""Segments: contents that are too large for one message, in parts (LIP-243), and their assembly.

Every content is wrapped, also one that fits into one segment. Two revisions are read: the one
published in June 2026, which is written by default, and the one that nim-segmentation writes. They
differ in the type of field 4. Parity segments are recognised and not used: SDS fetches what is
missing.

Incomplete contents are bounded in number and time. Only the positions of their segments in the log
are kept, never their bytes.

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
4. Of more than `MAX_SETS` sets, or sets with more than `MAX_PLACES` segments, the sender with most
   loses the set with the fewest indices.
5. A set that was unchanged for ``patience_ms`` is dropped.

Source: Message Segmentation and Reconstruction (LIP-243), "Wire Format", "Segmentation".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from Crypto.Hash import keccak
from google.protobuf.message import DecodeError

from storenode.sds.limits import (
    MAX_ATTEMPTS,
    MAX_CANDIDATES,
    MAX_CONTENT_BYTES,
    MAX_LINKED_ATTEMPTS,
    MAX_NAMED_BY_SEGMENT,
    MAX_PLACES,
    MAX_SEGMENTS,
    MAX_SETS,
    SEGMENT_HASH_BYTES,
)
from storenode.sds.log import Key
from storenode.wire.waku.segmentation.v1.segment_pb2 import SegmentMessage, SegmentMessageProto

_HEADER_BYTES: Final = 128
_ALIGNED_BYTES: Final = 64
"""nim-segmentation's: its parts are a multiple of this, and leave room for the other fields."""


class SegmentError(ValueError):
    """The bytes are no segment that can be used; the text says why."""


class Revision(Enum):
    """The revision in which segments are written."""

    PUBLISHED = "published"
    """The format of the text of June 2026."""
    NIM = "nim"
    """The format of nim-segmentation."""


@dataclass(frozen=True, slots=True)
class SegmentSet:
    """The fields that all segments of one content share; ``length`` in bytes, if known."""

    content_hash: bytes
    count: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a content; ``index`` counts from 0."""

    whole: SegmentSet
    index: int
    part: bytes


def content_hash(content: bytes) -> bytes:
    """Return the Keccak-256 of a content, 32 bytes."""
    return keccak.new(digest_bits=256, data=content).digest()


def split(content: bytes, segment_bytes: int, revision: Revision) -> list[bytes]:
    """Encode the segments of a content, which may be empty.

    ``segment_bytes`` is the largest part in the published revision, and the largest segment in
    nim-segmentation's.

    Raises:
        ValueError: it needs more segments than receivers accept.
    """
    part_bytes = segment_bytes
    if revision is Revision.NIM:
        part_bytes = (segment_bytes - _HEADER_BYTES) // _ALIGNED_BYTES * _ALIGNED_BYTES
    parts = [content[at : at + part_bytes] for at in range(0, len(content), part_bytes)] or [b""]
    if len(parts) > MAX_SEGMENTS or len(content) > MAX_CONTENT_BYTES:
        most = min(part_bytes * MAX_SEGMENTS, MAX_CONTENT_BYTES)
        raise ValueError(
            f"the content has {len(content)} bytes: {most} fit into {MAX_SEGMENTS} segments"
        )
    whole = content_hash(content)
    if revision is Revision.NIM:
        return [
            SegmentMessage(
                original_payload_hash=whole,
                original_payload_length=len(content),
                index=index,
                data_segment_count=len(parts),
                segment_payload=part,
            ).SerializeToString()
            for index, part in enumerate(parts)
        ]
    return [
        SegmentMessageProto(
            entire_message_hash=whole,
            data_segment_index=index,
            data_segment_count=len(parts),
            payload=part,
        ).SerializeToString()
        for index, part in enumerate(parts)
    ]


def read_segment(data: bytes) -> Segment:
    """Decode a segment of either revision.

    Raises:
        SegmentError: it is none, or its numbers do not fit.
    """
    try:
        nim = SegmentMessage.FromString(data)
        # Of the wrong type, field 4 would be unknown here, and a count is never 0.
        if nim.data_segment_count:
            length, is_parity = nim.original_payload_length, nim.is_parity
            whole = SegmentSet(nim.original_payload_hash, nim.data_segment_count, length)
            found = Segment(whole, nim.index, nim.segment_payload)
        else:
            segment = SegmentMessageProto.FromString(data)
            whole = SegmentSet(segment.entire_message_hash, segment.data_segment_count)
            found = Segment(whole, segment.data_segment_index, segment.payload)
            is_parity = segment.is_parity
    except DecodeError:
        raise SegmentError("it is no segment") from None
    if is_parity:
        raise SegmentError("it is a parity segment")
    if len(whole.content_hash) != SEGMENT_HASH_BYTES:
        raise SegmentError(f"its hash has {len(whole.content_hash)} bytes, not 32")
    if not found.index < whole.count <= MAX_SEGMENTS:
        raise SegmentError(f"it is number {found.index} of {whole.count}: up to {MAX_SEGMENTS} fit")
    if whole.length is not None and not len(found.part) <= whole.length <= MAX_CONTENT_BYTES:
        raise SegmentError(f"its content has {whole.length} bytes, and it has {len(found.part)}")
    return found


def join(whole: SegmentSet, parts: Sequence[bytes]) -> bytes | None:
    """Return the content of all parts in order; None where it does not have the hash."""
    content = b"".join(parts)
    if whole.length is not None:
        content = content[: whole.length]
    return content if content_hash(content) == whole.content_hash else None


SetName = tuple[str, SegmentSet]
"""A sender, and what its segments of one content have in common."""


@dataclass(slots=True, eq=False)
class _Candidate:
    key: Key
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
    tried: set[tuple[Key, ...]] = field(default_factory=set)
    linked: int = 0

    @property
    def size(self) -> int:
        """The number of candidates."""
        return sum(map(len, self.of_index.values()))

    def choices(self, count: int) -> Iterator[tuple[list[_Candidate], bool]]:
        """Yield a candidate for each index, in the order of trying, and whether all are linked."""
        best = [max(self.of_index[index], key=_Candidate.order) for index in range(count)]
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
                yield [*best[:index], other, *best[index + 1 :]], False

    def add(self, index: int, added: _Candidate) -> None:
        """Add a candidate, linked with those of the indices around it by their histories."""
        for before in self.of_index.get(index - 1, ()):
            _link(before, added)
        for after in self.of_index.get(index + 1, ()):
            _link(added, after)
        candidates = self.of_index.setdefault(index, [])
        candidates.append(added)
        if len(candidates) > MAX_CANDIDATES:
            # Not the newest: what would show that it is genuine may be next to come.
            candidates.remove(min(candidates[:-1], key=_Candidate.order))


def _link(before: _Candidate, after: _Candidate) -> None:
    if after.before is None and before.key[1] in after.causes:
        after.before, before.is_named = before, True


class Reassembly:
    """The contents that are not complete.

    Attributes:
        sets: the sets by name, those that changed last at the end.
    """

    def __init__(self, patience_ms: int) -> None:
        self._patience_ms = patience_ms
        self.sets: OrderedDict[SetName, _Set] = OrderedDict()
        self._places_of: Counter[str] = Counter()
        self._numbers = 0

    @property
    def places(self) -> int:
        """The number of segments."""
        return self._places_of.total()

    def add(
        self,
        now_ms: int,
        sender_id: str,
        segment: Segment,
        key: Key,
        *,
        rank: int = 0,
        causes: Sequence[str] = (),
    ) -> SetName | None:
        """Note where a segment is; return the name of its set if that can be tried now.

        A higher ``rank`` is a better proof; ``causes`` is the causal history of the segment.
        """
        name = sender_id, segment.whole
        known = self.sets.setdefault(name, _Set(now_ms))
        if any(each.key == key for each in known.of_index.get(segment.index, ())):
            return None
        self._numbers += 1
        before = known.size
        known.add(
            segment.index, _Candidate(key, rank, self._numbers, causes[-MAX_NAMED_BY_SEGMENT:])
        )
        self._places_of[sender_id] += known.size - before
        known.changed_ms = now_ms
        self.sets.move_to_end(name)
        return name if len(known.of_index) == segment.whole.count else None

    def attempts(self, name: SetName) -> Iterator[tuple[Key, ...]]:
        """Yield choices that were not tried yet; end the set by `remove` on success."""
        known = self.sets[name]
        for number, (chosen, is_linked) in enumerate(known.choices(name[1].count)):
            is_left = len(known.tried) - known.linked < MAX_ATTEMPTS
            # There are thousands of choices, of which the first few may be linked.
            if self.is_exhausted(name) or (number >= MAX_CANDIDATES and not is_left):
                return
            keys = tuple([each.key for each in chosen])
            if keys not in known.tried and (is_linked or is_left):
                known.tried.add(keys)
                known.linked += is_linked
                yield keys

    def is_exhausted(self, name: SetName) -> bool:
        """Return True if no attempt is left for a set."""
        return self.sets[name].linked >= MAX_LINKED_ATTEMPTS

    def remove(self, name: SetName) -> int:
        """Forget a set; return of how many indices segments came."""
        known = self.sets.pop(name)
        self._places_of[name[0]] -= known.size
        self._places_of += Counter()  # without the senders that have none
        return len(known.of_index)

    def sweep(self, now_ms: int) -> list[tuple[SetName, int]]:
        """Remove the sets that are too old or too many; return them as `remove` does."""
        dropped = []
        while (name := self._surplus(now_ms)) is not None:
            dropped.append((name, self.remove(name)))
        return dropped

    def check(self) -> None:
        """Verify the invariants."""
        sizes: Counter[str] = Counter()
        for (sender, whole), each in self.sets.items():
            assert all(0 < len(found) <= MAX_CANDIDATES for found in each.of_index.values())
            assert all(0 <= index < whole.count for index in each.of_index)
            assert len(each.tried) <= MAX_ATTEMPTS + MAX_LINKED_ATTEMPTS
            sizes[sender] += each.size
        assert sizes == self._places_of

    def _surplus(self, now_ms: int) -> SetName | None:
        if not self.sets:
            return None
        oldest = next(iter(self.sets))
        if now_ms - self.sets[oldest].changed_ms >= self._patience_ms:
            return oldest
        if len(self.sets) > MAX_SETS:
            counts = Counter(sender for sender, _ in self.sets)
        elif self.places > MAX_PLACES:
            counts = self._places_of
        else:
            return None
        return min(self.sets, key=lambda name: (-counts[name[0]], len(self.sets[name].of_index)))
