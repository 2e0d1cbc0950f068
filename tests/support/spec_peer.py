"""A peer that does what WAKU-SYNC says and nothing more: plain Python, one range at a time.

No deduction, no planning, no limits; its own reading and writing of payloads by the letter of the
specification. It shares nothing with the engine, so that both must have understood that alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Id = tuple[int, bytes]

LOWEST: Id = (0, bytes(32))
MAX_TIMESTAMP = 2**63 - 1
SKIP, FINGERPRINT, ITEM_SET = 0, 1, 2


class RefusedError(Exception):
    """The bytes are no payload."""


@dataclass(frozen=True)
class Range:
    """A range of a payload; lower bounds are implied by the order."""

    upper: Id
    kind: int
    fingerprint: bytes = b""
    items: Sequence[Id] = ()
    reconciled: bool = False


@dataclass
class SpecPeer:
    """A set of IDs and what was found out about it.

    Attributes:
        ids: all that it holds.
        cluster: its cluster.
        shards: its shards.
        small: the most IDs of a range that is sent as a set.
        parts: the number of parts of a larger one.
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
        bounds = [each.upper for each in ranges]
        assert all(map(expressible, [LOWEST, *bounds], bounds)), bounds
        return encoded(self.cluster, self.shards, ranges)


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


def encoded_bound(previous: Id, bound: Id) -> bytes:
    """Write a greater bound, whether or not a decoder would read all of it."""
    if bound[0] != previous[0]:
        return varint(bound[0] - previous[0])
    length = first_difference(previous[1], bound[1]) + 1
    return b"\0" + bytes([length]) + bound[1][:length]


def write_ranges(ranges: Sequence[Range]) -> bytes:
    """Write ranges, delta-encoded."""
    parts = []
    previous = LOWEST
    for item in ranges:
        parts += [encoded_bound(previous, item.upper), bytes([item.kind]), item.fingerprint]
        if item.kind == ITEM_SET:
            parts.append(varint(len(item.items)))
            before = 0
            for timestamp, hash_ in item.items:
                parts += [varint(timestamp - before), hash_]
                before = timestamp
            parts.append(bytes([item.reconciled]))
        previous = item.upper
    return b"".join(parts)


def encoded(cluster: int, shards: Sequence[int], ranges: Sequence[Range]) -> bytes:
    """Write a payload."""
    return b"".join(map(varint, [cluster, len(shards), *shards])) + write_ranges(ranges)


class Reader:
    """Takes bytes from the front; raises `RefusedError` for what no encoder may send."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise RefusedError("cut off")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        groups = [self.take(1)[0]]
        while groups[-1] >= 0x80:
            groups.append(self.take(1)[0])
        value = sum((group & 0x7F) << 7 * place for place, group in enumerate(groups))
        if varint(value) != bytes(groups) or value > MAX_TIMESTAMP:
            raise RefusedError("not minimal, or too large")
        return value

    def bound(self, previous: Id) -> Id:
        delta = self.number()
        bound = previous[0] + delta, bytes(32)
        if delta == 0:
            length = self.take(1)[0]
            if not 1 <= length <= 32:
                raise RefusedError("length")
            bound = previous[0], self.take(length) + bytes(32 - length)
        if bound <= previous or bound[0] > MAX_TIMESTAMP:
            raise RefusedError("not greater, or too large")
        return bound

    def range(self, lower: Id) -> Range:
        upper, kind = self.bound(lower), self.take(1)[0]
        if kind == SKIP:
            return Range(upper, kind)
        if kind == FINGERPRINT:
            return Range(upper, kind, self.take(32))
        if kind != ITEM_SET:
            raise RefusedError("kind")
        items: list[Id] = []
        for _ in range(self.number()):
            delta = self.number()
            items.append(((items[-1][0] if items else 0) + delta, self.take(32)))
        if sorted(set(items)) != items or (items and (items[0] < lower or items[-1] >= upper)):
            raise RefusedError("order")
        reconciled = self.take(1)[0]
        if reconciled > 1:
            raise RefusedError("reconciled")
        return Range(upper, kind, items=items, reconciled=bool(reconciled))

    def ranges(self) -> list[Range]:
        """Read ranges up to the end."""
        found: list[Range] = []
        while self.at < len(self.data):
            found.append(self.range(found[-1].upper if found else LOWEST))
        return found


def read(payload: bytes) -> tuple[int, list[int], list[Range]]:
    """Read cluster, shards and ranges of a payload."""
    reader = Reader(payload)
    cluster = reader.number()
    return cluster, [reader.number() for _ in range(reader.number())], reader.ranges()
