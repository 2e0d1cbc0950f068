"""RangesData by the letter of the specification, without arrays: an oracle to compare with."""

from dataclasses import dataclass
from random import Random

import numpy as np

from reconcile.codec.ranges import Payload, Ranges
from reconcile.ids import LOWEST, SyncId, SyncIds

MAX_TIMESTAMP = 2**63 - 1


class RefusedError(Exception):
    """The bytes are no payload."""


@dataclass(frozen=True)
class Record:
    """A range: what it holds depends on its kind."""

    upper: SyncId
    kind: int
    fingerprint: bytes = b""
    items: tuple[SyncId, ...] = ()
    reconciled: bool = False


def leb128(value: int) -> bytes:
    groups = [value & 0x7F]
    while value := value >> 7:
        groups[-1] |= 0x80
        groups.append(value & 0x7F)
    return bytes(groups)


def encoded_bound(previous: SyncId, bound: SyncId) -> bytes:
    if bound[0] != previous[0]:
        return leb128(bound[0] - previous[0])
    length = 1
    while bound[1][:length] == previous[1][:length]:
        length += 1
    return b"\0" + bytes([length]) + bound[1][:length]


def encoded_records(records: list[Record], previous: SyncId = LOWEST) -> bytes:
    parts = []
    for record in records:
        parts += [encoded_bound(previous, record.upper), bytes([record.kind]), record.fingerprint]
        if record.kind == 2:
            parts.append(leb128(len(record.items)))
            before = 0
            for timestamp, hash_ in record.items:
                parts += [leb128(timestamp - before), hash_]
                before = timestamp
            parts.append(bytes([record.reconciled]))
        previous = record.upper
    return b"".join(parts)


def encoded(cluster: int, shards: tuple[int, ...], records: list[Record]) -> bytes:
    head = [cluster, len(shards), *shards]
    return b"".join(map(leb128, head)) + encoded_records(records)


class Reader:
    """Takes bytes from the front."""

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
        if leb128(value) != bytes(groups) or value > MAX_TIMESTAMP:
            raise RefusedError("not minimal, or too large")
        return value

    def bound(self, previous: SyncId) -> SyncId:
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

    def record(self, lower: SyncId) -> Record:
        upper, kind = self.bound(lower), self.take(1)[0]
        if kind == 0:
            return Record(upper, kind)
        if kind == 1:
            return Record(upper, kind, fingerprint=self.take(32))
        if kind != 2:
            raise RefusedError("kind")
        items: list[SyncId] = []
        for _ in range(self.number()):
            delta = self.number()
            items.append(((items[-1][0] if items else 0) + delta, self.take(32)))
        if sorted(set(items)) != items or (items and (items[0] < lower or items[-1] >= upper)):
            raise RefusedError("order")
        reconciled = self.take(1)[0]
        if reconciled > 1:
            raise RefusedError("reconciled")
        return Record(upper, kind, items=tuple(items), reconciled=bool(reconciled))


def decoded_records(data: bytes) -> list[Record]:
    reader, records, previous = Reader(data), [], LOWEST
    while reader.at < len(data):
        records.append(reader.record(previous))
        previous = records[-1].upper
    return records


def ranges_of(records: list[Record]) -> Ranges:
    fingerprints = b"".join(record.fingerprint or bytes(32) for record in records)
    return Ranges(
        SyncIds.of(record.upper for record in records),
        np.array([record.kind for record in records], np.uint8),
        np.frombuffer(fingerprints, np.uint64).reshape(-1, 4),
        np.array([len(record.items) for record in records], np.int64),
        np.array([record.reconciled for record in records], np.bool_),
        SyncIds.of(item for record in records for item in record.items),
    )


def payload_of(cluster: int, shards: tuple[int, ...], records: list[Record]) -> Payload:
    return Payload(cluster, shards, ranges_of(records))


@dataclass(frozen=True)
class Style:
    """The kind of records to make up.

    Attributes:
        kinds: weights of the kinds.
        ties: share of bounds within the nanosecond of the bound before.
        step: greatest difference in time between bounds.
        items: most items of a set.
        hash_bytes: the values that bytes of hashes have.
    """

    kinds: tuple[int, int, int] = (1, 1, 1)
    ties: float = 0.2
    step: int = 2**22
    items: int = 8
    hash_bytes: bytes = bytes(range(256))


def made_up(random: Random, style: Style, count: int, begin: int = 0) -> list[Record]:
    """Return random legal records, the first of which may begin late."""
    records: list[Record] = []
    lower = LOWEST
    if begin:
        records.append(Record((begin, bytes(32)), 0))
        lower = records[-1].upper
    while len(records) < count:
        upper = _next_bound(random, style, lower)
        kind = random.choices((0, 1, 2), style.kinds)[0]
        records.append(_record(random, style, lower, upper, kind))
        lower = upper
    return records


def _next_bound(random: Random, style: Style, lower: SyncId) -> SyncId:
    if random.random() < style.ties:
        place = random.choice((0, 1, 1, 2, 31))
        if lower[1][place] < 255:
            byte = random.randint(lower[1][place] + 1, 255)
            return lower[0], (lower[1][:place] + bytes([byte])).ljust(32, b"\0")
    return lower[0] + random.randint(1, style.step), bytes(32)


def _hash(random: Random, style: Style) -> bytes:
    return bytes(random.choices(style.hash_bytes, k=32))


def _record(random: Random, style: Style, lower: SyncId, upper: SyncId, kind: int) -> Record:
    if kind == 1:
        return Record(upper, kind, fingerprint=_hash(random, style))
    if kind == 0:
        return Record(upper, kind)
    wanted = random.randint(0, style.items)
    times = [random.randint(lower[0], upper[0]) for _ in range((wanted + 1) // 2)]
    drawn = {(random.choice(times), _hash(random, style)) for _ in range(wanted)}
    items = tuple(sorted(item for item in drawn if lower <= item < upper))
    return Record(upper, kind, items=items, reconciled=random.random() < 0.5)
