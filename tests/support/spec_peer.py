"""A peer that does what WAKU-SYNC says and nothing more: plain Python, one range at a time.

No deduction, no planning, no limits; its own reading and writing of payloads. It shares nothing
with the engine, so that both must have understood the specification alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

Id = tuple[int, bytes]

LOWEST: Id = (0, bytes(32))
SKIP, FINGERPRINT, ITEM_SET = 0, 1, 2


@dataclass
class Range:
    """A range of a payload; lower bounds are implied by the order."""

    upper: Id
    kind: int
    fingerprint: bytes = b""
    items: list[Id] = field(default_factory=list)
    reconciled: bool = False


@dataclass
class SpecPeer:
    """A set of IDs and what was found out about it.

    Attributes:
        ids: all that it holds.
        cluster: its cluster.
        shards: its shards.
        small: a range with so many IDs or fewer is sent as a set.
        parts: into how many a larger one is split.
    """

    ids: list[Id]
    cluster: int = 1
    shards: tuple[int, ...] = (0, 3)
    small: int = 8
    parts: int = 4
    to_send: set[Id] = field(default_factory=set)
    to_receive: set[Id] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.ids = sorted(set(self.ids))

    def within(self, lower: Id, upper: Id) -> list[Id]:
        """Return what it holds in a range."""
        return self.ids[bisect_left(self.ids, lower) : bisect_left(self.ids, upper)]

    def first(self, lower: Id, upper: Id) -> bytes:
        """Return the initiator's first payload."""
        skip = [Range(lower, SKIP)] if lower > LOWEST else []
        return self.write([*skip, Range(upper, FINGERPRINT, xor(self.within(lower, upper)))])

    def answer(self, payload: bytes) -> bytes:
        """Return the response to a payload."""
        if not payload:
            return b""
        cluster, shards, ranges = read(payload)
        if (cluster, set(shards)) != (self.cluster, set(self.shards)):
            return b""
        response: list[Range] = []
        lower = LOWEST
        for received in ranges:
            response += self.respond(lower, received)
            lower = received.upper
        return self.write(response)

    def respond(self, lower: Id, received: Range) -> list[Range]:
        """Return the response to one range."""
        ours = self.within(lower, received.upper)
        if received.kind == FINGERPRINT and received.fingerprint != xor(ours):
            return self.split(lower, received.upper)
        if received.kind == ITEM_SET:
            self.to_send |= set(ours) - set(received.items)
            self.to_receive |= set(received.items) - set(ours)
            if not received.reconciled:
                return [Range(received.upper, ITEM_SET, items=ours, reconciled=True)]
        return [Range(received.upper, SKIP)]

    def split(self, lower: Id, upper: Id) -> list[Range]:
        """Return a set if the range is small, else sets and fingerprints of its parts."""
        ours = self.within(lower, upper)
        bounds = [] if len(ours) <= self.small else self.bounds(lower, ours)
        if not bounds:
            return [Range(upper, ITEM_SET, items=ours)]
        parts = []
        for begin, end in zip([lower, *bounds], [*bounds, upper], strict=True):
            inside = self.within(begin, end)
            if len(inside) <= self.small:
                parts.append(Range(end, ITEM_SET, items=inside))
            else:
                parts.append(Range(end, FINGERPRINT, xor(inside)))
        return parts

    def bounds(self, lower: Id, ours: list[Id]) -> list[Id]:
        """Return bounds between equal shares of IDs, as far as they can be expressed."""
        chosen: list[Id] = []
        for part in range(1, self.parts):
            place = len(ours) * part // self.parts
            bound = between(ours[place - 1], ours[place])
            if expressible(chosen[-1] if chosen else lower, bound):
                chosen.append(bound)
        return chosen

    def write(self, ranges: list[Range]) -> bytes:
        """Return a payload; nothing but Skips is the empty one."""
        merged: list[Range] = []
        for item in ranges:
            if merged and merged[-1].kind == item.kind == SKIP:
                start = merged[-2].upper if len(merged) > 1 else LOWEST
                if expressible(start, item.upper):
                    merged.pop()
            merged.append(item)
        return b"" if all(item.kind == SKIP for item in merged) else self.encode(merged)

    def encode(self, ranges: list[Range]) -> bytes:
        """Return a payload with just these ranges."""
        head = [self.cluster, len(self.shards), *self.shards]
        return b"".join(map(varint, head)) + write_ranges(ranges)


def xor(ids: Iterable[Id]) -> bytes:
    """Return the fingerprint of a range."""
    total = 0
    for _, hash_ in ids:
        total ^= int.from_bytes(hash_, "big")
    return total.to_bytes(32, "big")


def first_difference(left: bytes, right: bytes) -> int:
    """Return the number of leading bytes that are equal."""
    return next((place for place in range(32) if left[place] != right[place]), 32)


def between(smaller: Id, greater: Id) -> Id:
    """Return a short bound that parts two neighbours."""
    if smaller[0] < greater[0]:
        return greater[0], bytes(32)
    length = first_difference(smaller[1], greater[1]) + 1
    return greater[0], greater[1][:length].ljust(32, b"\0")


def expressible(previous: Id, bound: Id) -> bool:
    """Return True if the delta encoding of SyncIDs can say this bound after that one."""
    if bound <= previous:
        return False
    if bound[0] > previous[0]:
        return bound[1] == bytes(32)
    length = first_difference(previous[1], bound[1]) + 1
    return bound[1][:length].ljust(32, b"\0") == bound[1]


def varint(value: int) -> bytes:
    """Encode a number as LEB128."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def write_ranges(ranges: list[Range]) -> bytes:
    """Write ranges, delta-encoded."""
    encoded = bytearray()
    previous = LOWEST
    for item in ranges:
        assert expressible(previous, item.upper), (previous, item.upper)
        encoded += varint(item.upper[0] - previous[0])
        if item.upper[0] == previous[0]:
            length = first_difference(previous[1], item.upper[1]) + 1
            encoded += bytes([length]) + item.upper[1][:length]
        encoded.append(item.kind)
        encoded += item.fingerprint
        if item.kind == ITEM_SET:
            encoded += varint(len(item.items))
            time = 0
            for timestamp, hash_ in item.items:
                encoded += varint(timestamp - time) + hash_
                time = timestamp
            encoded.append(item.reconciled)
        previous = item.upper
    return bytes(encoded)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        assert len(taken) == count, "the payload ends early"
        self.at += count
        return taken

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


def read(payload: bytes) -> tuple[int, list[int], list[Range]]:
    """Read cluster, shards and ranges of a payload."""
    reader = _Reader(payload)
    cluster = reader.varint()
    shards = [reader.varint() for _ in range(reader.varint())]
    ranges: list[Range] = []
    previous = LOWEST
    while reader.at < len(payload):
        difference = reader.varint()
        hash_ = bytes(32)
        if difference == 0:
            hash_ = reader.take(reader.take(1)[0]).ljust(32, b"\0")
        previous = (previous[0] + difference, hash_)
        (kind,) = reader.take(1)
        item = Range(previous, kind)
        if kind == FINGERPRINT:
            item.fingerprint = reader.take(32)
        elif kind == ITEM_SET:
            time = 0
            for _ in range(reader.varint()):
                time += reader.varint()
                item.items.append((time, reader.take(32)))
            item.reconciled = bool(reader.take(1)[0])
        ranges.append(item)
    return cluster, shards, ranges
