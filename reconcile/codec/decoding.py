"""The decoder of ``RangesData`` (WAKU-SYNC, "Payload encoding").

Compiled code reads well-formed payloads. Without it, and to name what is malformed, a payload is
read one record after the other; `docs/decisions/README.md` has figures.
"""

from array import array
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.codec.ranges import Payload, RangeKind, Ranges
from reconcile.errors import MalformedPayloadError, PayloadLimitError
from reconcile.ids import HASH_DTYPE, HASH_WORDS, LOWEST, SyncId, SyncIds
from reconcile.limits import DEFAULT_CODEC_LIMITS, CodecLimits
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

_EMPTY_FORMS: Final = (b"", b"\0")
_NO_HASH: Final = bytes(HASH_BYTES)
_Column: TypeAlias = "bytes | bytearray | array[int]"
_MIN_ITEM_BYTES: Final = 1 + HASH_BYTES
_SHIFTS: Final = tuple(range(7, 63, 7))
"""The shifts of a varint's bytes after the first; a value up to 2^63-1 has at most nine."""


def decode(data: bytes, limits: CodecLimits = DEFAULT_CODEC_LIMITS) -> Payload:
    """Decode a payload.

    Raises:
        MalformedPayloadError: the bytes are not what the specification says.
        PayloadLimitError: the payload is larger, or has more of something, than allowed.
    """
    if len(data) > limits.max_payload_bytes:
        raise PayloadLimitError("max_payload_bytes", limits.max_payload_bytes, len(data))
    if data in _EMPTY_FORMS:
        return Payload(0, (), Ranges.empty())
    cluster, at = read_varint(data, 0)
    shards, at = _read_shards(data, at, limits)
    return Payload(cluster, shards, parse_ranges(data, at, limits))


def _read_shards(data: bytes, at: int, limits: CodecLimits) -> tuple[tuple[int, ...], int]:
    count, at = read_varint(data, at)
    if count > len(data) - at:
        raise MalformedPayloadError(at, f"A list of shards claims {count}, more than can follow")
    if count > limits.max_shards:
        raise PayloadLimitError("max_shards", limits.max_shards, count)
    shards = []
    for _ in range(count):
        shard, at = read_varint(data, at)
        shards.append(shard)
    return tuple(shards), at


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a minimal varint of at most 63 bits at ``at``; return it and where it ends.

    Raises:
        MalformedPayloadError: it is cut off, longer than needed or too large.
    """
    try:
        value = data[at]
        if value < 0x80:
            return value, at + 1
        value -= 0x80
        for place, shift in enumerate(_SHIFTS, at + 1):
            byte = data[place]
            if byte < 0x80:
                if byte:
                    return value | byte << shift, place + 1
                raise MalformedPayloadError(at, "A varint is longer than it must be")
            value |= byte - 0x80 << shift
    except IndexError:
        raise MalformedPayloadError(at, "A varint is cut off") from None
    raise MalformedPayloadError(at, "A varint is past 2^63-1")


def parse_ranges(data: bytes, at: int, limits: CodecLimits) -> Ranges:
    """Parse the ranges of a payload from offset ``at`` to its end.

    Raises:
        MalformedPayloadError: the bytes are not what the specification says.
        PayloadLimitError: there are more ranges or items than allowed.
    """
    columns = None
    if kernel.compiled is not None:
        columns = kernel.compiled.parse(data, at, limits.max_ranges, limits.max_elements)
    if columns is None:
        columns = _Parser(data, at, limits).columns()
    times, hashes, kinds, prints, counts, reconciled, item_times, item_hashes = columns
    upper = SyncIds.at_times(np.frombuffer(times, np.int64))
    if hashes:
        upper = SyncIds(upper.timestamps, _hashes(hashes))
    return Ranges(
        upper,
        np.frombuffer(kinds, np.uint8),
        np.frombuffer(prints, np.uint64).reshape(-1, HASH_WORDS),
        np.frombuffer(counts, np.int64),
        np.frombuffer(reconciled, np.bool_),
        SyncIds(np.frombuffer(item_times, np.int64), _hashes(item_hashes)),
    )


def _hashes(column: _Column) -> NDArray[np.uint8]:
    return np.frombuffer(column, HASH_DTYPE).reshape(-1, HASH_BYTES)


class _Parser:
    """A reader of one record after the other, into columns of numbers and hashes."""

    def __init__(self, data: bytes, at: int, limits: CodecLimits) -> None:
        self._data = data
        self._at = at
        self._limits = limits
        self._bounds = array("q")
        self._prefix_rows = array("q")
        self._prefixes = bytearray()
        self._kinds = bytearray()
        self._fingerprints = bytearray()
        self._counts = array("q")
        self._reconciled = bytearray()
        self._item_times = array("q")
        self._item_hashes = bytearray()

    def columns(self) -> tuple[_Column, ...]:
        """Read all records up to the payload's end; return the columns of the kernel's parser."""
        self._read_records()
        bound_hashes = b""
        if self._prefix_rows:
            hashes = np.zeros((len(self._bounds), HASH_BYTES), HASH_DTYPE)
            hashes[np.frombuffer(self._prefix_rows, np.int64)] = _hashes(self._prefixes)
            bound_hashes = hashes.tobytes()
        return (
            self._bounds,
            bound_hashes,
            self._kinds,
            self._fingerprints,
            self._counts,
            self._reconciled,
            self._item_times,
            self._item_hashes,
        )

    def _read_records(self) -> None:
        data, at, size = self._data, self._at, len(self._data)
        kinds, bounds, most = self._kinds, self._bounds, self._limits.max_ranges
        upper: SyncId = LOWEST
        while at < size:
            if len(kinds) == most:
                raise PayloadLimitError("max_ranges", most, most + 1)
            lower = upper
            delta, type_at = read_varint(data, at)
            if delta:
                upper = lower[0] + delta, _NO_HASH
                if upper[0] > MAX_TIMESTAMP_NS:
                    raise MalformedPayloadError(at, "A bound's timestamp is past 2^63-1")
            else:
                upper, type_at = self._read_prefix(type_at, lower)
            if type_at >= size:
                raise MalformedPayloadError(type_at, "A range ends before its type")
            kind, at = data[type_at], type_at + 1
            fingerprint, count, reconciled = _NO_HASH, 0, 0
            if kind == RangeKind.FINGERPRINT:
                at += HASH_BYTES
                if at > size:
                    raise MalformedPayloadError(type_at + 1, "A fingerprint is cut off")
                fingerprint = data[type_at + 1 : at]
            elif kind == RangeKind.ITEM_SET:
                at, count, reconciled = self._read_item_set(at, lower, upper)
            elif kind != RangeKind.SKIP:
                raise MalformedPayloadError(type_at, f"Type {kind} of a range is unknown")
            kinds.append(kind)
            bounds.append(upper[0])
            self._fingerprints += fingerprint
            self._counts.append(count)
            self._reconciled.append(reconciled)

    def _read_prefix(self, at: int, lower: SyncId) -> tuple[SyncId, int]:
        """Read a bound at the same time as ``lower``; return it and where its prefix ends."""
        length = self._data[at] if at < len(self._data) else 0
        if not 1 <= length <= HASH_BYTES:
            raise MalformedPayloadError(at, f"The prefix of a bound's hash has {length} bytes")
        prefix = self._data[at + 1 : at + 1 + length]
        if len(prefix) < length:
            raise MalformedPayloadError(at, "The prefix of a bound's hash is cut off")
        hash_ = prefix.ljust(HASH_BYTES, b"\0")
        if hash_ <= lower[1]:
            raise MalformedPayloadError(at, "A bound is not greater than the bound before it")
        self._prefix_rows.append(len(self._kinds))
        self._prefixes += hash_
        return (lower[0], hash_), at + 1 + length

    def _read_item_set(self, at: int, lower: SyncId, upper: SyncId) -> tuple[int, int, int]:
        data, most = self._data, self._limits.max_elements
        count, first = read_varint(data, at)
        if count and count * _MIN_ITEM_BYTES >= len(data) - first:
            raise MalformedPayloadError(
                at, f"An item set claims {count} items, more than can follow"
            )
        total = len(self._item_times) + count
        if total > most:
            raise PayloadLimitError("max_elements", most, total)
        at = self._read_items(first, count, lower, upper) if count else first
        if at >= len(data):
            raise MalformedPayloadError(at, "An item set ends before its reconciled byte")
        if data[at] > 1:
            raise MalformedPayloadError(at, f"The reconciled byte of an item set is {data[at]}")
        return at + 1, count, data[at]

    def _read_items(self, at: int, count: int, lower: SyncId, upper: SyncId) -> int:
        data, size = self._data, len(self._data)
        times, hashes = self._item_times, self._item_hashes
        timestamp, hash_ = 0, b""
        for number in range(count):
            begin, before = at, hash_
            delta, hash_at = read_varint(data, at)
            timestamp += delta
            if timestamp > MAX_TIMESTAMP_NS:
                raise MalformedPayloadError(begin, "An item's timestamp is past 2^63-1")
            at = hash_at + HASH_BYTES
            if at > size:
                raise MalformedPayloadError(hash_at, "An item's hash is cut off")
            hash_ = data[hash_at:at]
            if not number:
                if (timestamp, hash_) < lower:
                    raise MalformedPayloadError(begin, "An item lies below its range")
            elif not delta and hash_ <= before:
                raise MalformedPayloadError(begin, "An item is not greater than the item before it")
            times.append(timestamp)
            hashes += hash_
        if (timestamp, hash_) >= upper:
            raise MalformedPayloadError(at, "An item set ends with an item above its range")
        return at
