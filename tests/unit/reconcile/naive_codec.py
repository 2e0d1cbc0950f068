"""RangesData made up at random, as ranges of the naive peer and as arrays."""

from dataclasses import dataclass
from random import Random

import numpy as np

from reconcile.codec.ranges import Payload, Ranges
from reconcile.ids import LOWEST, SyncId, SyncIds
from tests.support.spec_peer import Range


def ranges_of(records: list[Range]) -> Ranges:
    fingerprints = b"".join(record.fingerprint or bytes(32) for record in records)
    return Ranges(
        SyncIds.of(record.upper for record in records),
        np.array([record.kind for record in records], np.uint8),
        np.frombuffer(fingerprints, np.uint64).reshape(-1, 4),
        np.array([len(record.items) for record in records], np.int64),
        np.array([record.reconciled for record in records], np.bool_),
        SyncIds.of(item for record in records for item in record.items),
    )


def payload_of(cluster: int, shards: tuple[int, ...], records: list[Range]) -> Payload:
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


def made_up(random: Random, style: Style, count: int, begin: int = 0) -> list[Range]:
    """Return random legal records, the first of which may begin late."""
    records: list[Range] = []
    lower = LOWEST
    if begin:
        records.append(Range((begin, bytes(32)), 0))
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


def _record(random: Random, style: Style, lower: SyncId, upper: SyncId, kind: int) -> Range:
    if kind == 1:
        return Range(upper, kind, fingerprint=_hash(random, style))
    if kind == 0:
        return Range(upper, kind)
    wanted = random.randint(0, style.items)
    times = [random.randint(lower[0], upper[0]) for _ in range((wanted + 1) // 2)]
    drawn = {(random.choice(times), _hash(random, style)) for _ in range(wanted)}
    items = tuple(sorted(item for item in drawn if lower <= item < upper))
    return Range(upper, kind, items=items, reconciled=random.random() < 0.5)
