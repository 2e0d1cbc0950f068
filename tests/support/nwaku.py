"""nwaku's side of a reconciliation, as naively as it can be written.

It has nwaku's faults: lower bounds lose their hashes when they are sent, and a range of less than
`partitions` nanoseconds with more IDs than `threshold` is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from store.gateway.wire import decode_varint, delimited
from storenode.message.varint import varint

Id = tuple[int, bytes]
Bounds = tuple[Id, Id]
ZERO: Final = bytes(32)
SKIP, FINGERPRINT, ITEM_SET = 0, 1, 2


@dataclass
class NwakuRange:
    """A range between two IDs; of an item set, ``ids`` and ``reconciled``."""

    bounds: Bounds
    kind: int = SKIP
    fingerprint: bytes = b""
    ids: Sequence[Id] = ()
    reconciled: bool = False


def encode(ranges: Sequence[NwakuRange], pubsub_topics: Sequence[str] = ()) -> bytes:
    """Encode a payload as nwaku does."""
    if not ranges:
        return b"\0"
    out = b""
    for topics in (pubsub_topics, ()):
        out += varint(len(topics)) + b"".join(delimited(topic.encode()) for topic in topics)
    first = last = ranges[0].bounds[0]
    out += varint(first[0])
    for each in ranges:
        upper = each.bounds[1]
        out += varint(upper[0] - last[0])
        if upper[0] == last[0]:
            size = next((n for n in range(32) if upper[1][n] != first[1][n]), 31) + 1
            out += bytes([size]) + upper[1][:size]
        out += bytes([each.kind])
        if each.kind == FINGERPRINT:
            out += each.fingerprint
        elif each.kind == ITEM_SET:
            out += varint(len(each.ids))
            before = 0
            for at_ns, digest in each.ids:
                out += varint(at_ns - before) + digest
                before = at_ns
            out += bytes([each.reconciled])
        last = upper
    return out


def decode(data: bytes) -> tuple[list[list[str]], list[NwakuRange]]:
    """Decode topics of both kinds and ranges as nwaku does, without its checks."""
    if len(data) <= 1:
        return [[], []], []
    at = 0

    def number() -> int:
        nonlocal at
        found = decode_varint(data, at)
        assert found is not None, "a payload is cut off"
        value, at = found
        return value

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        return data[at - size : at]

    topics = [[take(number()).decode() for _ in range(number())] for _ in range(2)]
    ranges = []
    lower = number()
    while at < len(data):
        upper, digest = lower + number(), ZERO
        if upper == lower:
            digest = take(take(1)[0]).ljust(32, b"\0")
        found = NwakuRange(((lower, ZERO), (upper, digest)), take(1)[0])
        if found.kind == FINGERPRINT:
            found.fingerprint = take(32)
        elif found.kind == ITEM_SET:
            ids, time = [], 0
            for _ in range(number()):
                time += number()
                ids.append((time, take(32)))
            found.ids, found.reconciled = ids, bool(take(1)[0])
        ranges.append(found)
        lower = upper
    return topics, ranges


def xor(digests: Collection[bytes]) -> bytes:
    """Return the XOR of hashes."""
    value = 0
    for digest in digests:
        value ^= int.from_bytes(digest, "big")
    return value.to_bytes(32, "big")


@dataclass
class SimulatedNwaku:
    """A node of nwaku with some messages; `sends` are those that it would transfer.

    ``topics``: pubsub and content topic of messages, where they have any.
    """

    ids: list[Id]
    threshold: int = 100
    partitions: int = 8
    topics: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    sends: set[bytes] = field(default_factory=set)
    receives: set[bytes] = field(default_factory=set)
    _wanted: list[set[str]] = field(default_factory=lambda: [set(), set()])

    def __post_init__(self) -> None:
        self.ids = sorted(self.ids)

    def begin(self, low_ns: int, high_ns: int, pubsub_topics: Sequence[str] = ()) -> bytes:
        """Return the first frame of a session."""
        bounds = (low_ns, ZERO), (high_ns, ZERO)
        only = NwakuRange(bounds, FINGERPRINT, xor([each[1] for each in self._within(bounds)]))
        return encode([only], pubsub_topics)

    def answer(self, data: bytes) -> bytes | None:
        """Return the answer to a frame; None: the session has ended."""
        topics, asked = decode(data)
        if all(each.kind == SKIP for each in asked):
            return None
        # Topics of which it has no message select nothing, and where none is left, everything.
        for place, wanted in enumerate(topics):
            known = {each[place] for each in self.topics.values()}
            self._wanted[place] = known.intersection(wanted)
        ranges: list[NwakuRange] = []
        for each in asked:
            for answered in self._process(each):
                if ranges and answered.kind == SKIP == ranges[-1].kind:
                    ranges[-1].bounds = ranges[-1].bounds[0], answered.bounds[1]
                else:
                    ranges.append(answered)
        if all(each.kind == SKIP for each in ranges):
            return encode([])
        return encode(ranges)

    def _within(self, bounds: Bounds) -> list[Id]:
        return [each for each in self.ids if bounds[0] <= each <= bounds[1]]

    def _is_outside(self, bounds: Bounds) -> bool:
        return not self.ids or self.ids[-1] < bounds[0] or self.ids[0] > bounds[1]

    def _matches(self, digest: bytes) -> bool:
        if digest not in self.topics:
            return True
        pairs = zip(self._wanted, self.topics[digest], strict=True)
        return all(not wanted or topic in wanted for wanted, topic in pairs)

    def _process(self, asked: NwakuRange) -> Iterator[NwakuRange]:
        bounds = asked.bounds
        if asked.kind == SKIP:
            yield NwakuRange(bounds)
        elif asked.kind == ITEM_SET:
            yield self._process_items(asked)
        elif self._fingerprint(bounds) == asked.fingerprint:
            yield NwakuRange(bounds)
        else:
            yield from self._split(bounds)

    def _fingerprint(self, bounds: Bounds) -> bytes:
        return xor([digest for _, digest in self._within(bounds) if self._matches(digest)])

    def _items(self, bounds: Bounds, *, reconciled: bool = False) -> NwakuRange:
        ids = [each for each in self._within(bounds) if self._matches(each[1])]
        return NwakuRange(bounds, ITEM_SET, ids=ids, reconciled=reconciled)

    def _split(self, bounds: Bounds) -> Iterator[NwakuRange]:
        if self._is_outside(bounds):
            yield NwakuRange(bounds, ITEM_SET, reconciled=True)
            return
        if len(self._within(bounds)) <= self.threshold:
            yield self._items(bounds)
            return
        low, high = bounds[0][0], bounds[1][0]
        if high - low < self.partitions:
            return
        size, rest = divmod(high - low, self.partitions)
        for number in range(self.partitions):
            end = low + size + (number < rest)
            part = (low, ZERO), (end, ZERO)
            low = end
            if self._is_outside(part):
                yield NwakuRange(part, ITEM_SET, reconciled=True)
            elif len(self._within(part)) <= self.threshold:
                yield self._items(part)
            else:
                yield NwakuRange(part, FINGERPRINT, self._fingerprint(part))

    def _process_items(self, asked: NwakuRange) -> NwakuRange:
        own = self._items(asked.bounds, reconciled=True)
        if self._is_outside(asked.bounds):
            return NwakuRange(asked.bounds) if asked.reconciled else own
        self.sends |= {digest for _, digest in set(own.ids) - set(asked.ids)}
        self.receives |= {digest for _, digest in set(asked.ids) - set(own.ids)}
        return NwakuRange(asked.bounds) if asked.reconciled else own
