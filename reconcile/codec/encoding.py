"""The encoder of ``RangesData`` (WAKU-SYNC, "Payload encoding").

The kernel encodes well-formed ranges. Without it, and to name what is wrong, one record is written
after the other.
"""

from __future__ import annotations

import numpy as np

from reconcile import kernel
from reconcile.codec.bounds import prefix_length
from reconcile.codec.ranges import Payload, RangeKind, Ranges
from reconcile.ids import LOWEST
from storenode.message.varint import varint


def encode(payload: Payload) -> bytes:
    """Return the bytes of a payload; none if it has no ranges.

    Raises:
        ValueError: a bound cannot be expressed after the bound before it, the items of a set do
            not ascend in time, or a number is negative.
    """
    ranges = payload.ranges
    if not len(ranges):
        return b""
    head = encode_head(payload.cluster, payload.shards)
    written: bytes | None = None
    if kernel.compiled is not None and _are_aligned(ranges):
        written = kernel.compiled.encode(
            head,
            ranges.upper.timestamps,
            ranges.upper.hashes,
            ranges.kinds,
            np.ascontiguousarray(ranges.fingerprints),
            ranges.counts,
            ranges.reconciled,
            ranges.items.timestamps,
            ranges.items.hashes,
        )
    if written is None:
        _check_shape(ranges)
        written = head + _encode_records(ranges)
    return written


def encode_head(cluster: int, shards: tuple[int, ...]) -> bytes:
    """Return the bytes in front of the ranges.

    Raises:
        ValueError: a number is negative.
    """
    return b"".join(map(varint, (cluster, len(shards), *shards)))


def _are_aligned(ranges: Ranges) -> bool:
    sizes = len(ranges.upper), len(ranges.fingerprints), len(ranges.counts), len(ranges.reconciled)
    return sizes == (len(ranges),) * 4


def _check_shape(ranges: Ranges) -> None:
    kinds, counts = ranges.kinds, ranges.counts
    fit = _are_aligned(ranges) and kinds.max() <= RangeKind.ITEM_SET
    fit = fit and counts.min() >= 0 and not counts[kinds != RangeKind.ITEM_SET].any()
    if not fit or counts.sum() != len(ranges.items):
        raise ValueError(
            f"{len(ranges)} ranges of {counts.sum()} items come with {len(ranges.items)} items, or"
            " have an unknown type, or items where there is no set: pass columns that fit"
        )


def _encode_records(ranges: Ranges) -> bytes:
    written = bytearray()
    fingerprints = np.ascontiguousarray(ranges.fingerprints).view("V32").ravel()
    columns = ranges.kinds.tolist(), ranges.counts.tolist(), ranges.reconciled.tolist()
    records = zip(ranges.upper.pairs(), fingerprints, *columns, strict=True)
    previous, item = LOWEST, 0
    for bound, fingerprint, kind, count, reconciled in records:
        delta = _difference(previous[0], bound[0])
        length = 0 if delta else prefix_length(previous[1], bound[1])
        if any(bound[1]) if delta else not length:
            raise ValueError(
                f"bound ({bound[0]}, {bound[1].hex()}) cannot be expressed after "
                f"({previous[0]}, {previous[1].hex()}): lead to it with bridge()"
            )
        written += varint(delta)
        written += b"" if delta else bytes((length,)) + bound[1][:length]
        written.append(kind)
        if kind == RangeKind.FINGERPRINT:
            written += fingerprint.tobytes()
        elif kind == RangeKind.ITEM_SET:
            written += varint(count)
            before = 0
            for time_ns, hash_ in ranges.items[item : item + count].pairs():
                written += varint(_difference(before, time_ns)) + hash_
                before = time_ns
            written.append(reconciled)
            item += count
        previous = bound
    return bytes(written)


def _difference(before: int, after: int) -> int:
    if after < before:
        raise ValueError(
            f"timestamp {after} lies before the one in front of it, or before 0: pass bounds and"
            " items in ascending order"
        )
    return after - before
