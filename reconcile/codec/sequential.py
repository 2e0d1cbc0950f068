"""Reading ``RangesData`` one record after the other (WAKU-SYNC, "Payload encoding")."""

from typing import Final

from reconcile.codec.draft import Draft
from reconcile.codec.largeset import read_items
from reconcile.codec.ranges import RangeKind
from reconcile.codec.varints import MAX_VARINT_BYTES, Source
from reconcile.errors import LimitExceeded, MalformedPayload
from reconcile.ids import LOWEST, SyncId
from reconcile.limits import CodecLimits
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS

_NO_HASH: Final = bytes(HASH_BYTES)
_MIN_ITEM_BYTES: Final = 1 + HASH_BYTES

_SHIFTS: Final = tuple(range(7, 7 * MAX_VARINT_BYTES, 7))
"""Of the bits of a varint's bytes after the first."""

_LARGE_SET: Final = 64
"""Items from which on arrays are faster."""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A minimal varint of at most 63 bits at ``at``, and where it ends.

    Raises:
        MalformedPayload: it is cut off, longer than needed or too large.
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
                raise MalformedPayload(at, "A varint is longer than it must be")
            value |= byte - 0x80 << shift
    except IndexError:
        raise MalformedPayload(at, "A varint is cut off") from None
    raise MalformedPayload(at, "A varint is past 2^63-1")


class SequentialParser:
    """Reads records from a place in a payload on, checking each one.

    With a ``source``, larger item sets are read by arrays, and the order of their items and
    that these lie inside their range is left to ``reconcile.codec.verify``.

    Attributes:
        at: offset of the next record.
        previous: the upper bound of the record before it.
    """

    def __init__(
        self, data: bytes, at: int, limits: CodecLimits, draft: Draft, source: Source | None = None
    ) -> None:
        self.at = at
        self.previous: SyncId = LOWEST
        self._data = data
        self._limits = limits
        self._draft = draft
        self._source = source

    def resume(self, at: int) -> None:
        """Go on at another offset, after what others added to the draft."""
        self.at = at
        self.previous = self._draft.last_bound(self._data)

    def run(self, records: int) -> None:
        """Read up to so many records.

        Raises:
            MalformedPayload: the bytes are not what the specification says.
            LimitExceeded: there are more ranges or items than allowed.
        """
        data, draft, at, size = self._data, self._draft, self.at, len(self._data)
        most, whole = self._limits.max_ranges, size - HASH_BYTES
        done = len(draft.kinds)
        last = done + records
        while at < size and done < last:
            if done == most:
                raise LimitExceeded("max_ranges", most, most + 1)
            done += 1
            lower = self.previous
            delta, type_at = data[at], at + 1
            if delta >= 0x80:
                delta, type_at = read_varint(data, at)
            if delta:
                timestamp = lower[0] + delta
                if timestamp > MAX_TIMESTAMP_NS:
                    raise MalformedPayload(at, "A bound's timestamp is past 2^63-1")
                self.previous = timestamp, _NO_HASH
            else:
                type_at = self._read_prefix(type_at)
            if type_at < whole and data[type_at] == RangeKind.FINGERPRINT:
                draft.fingerprints_at.append(type_at + 1)
                draft.kinds.append(RangeKind.FINGERPRINT)
                at = type_at + 1 + HASH_BYTES
            else:
                at = self._read_content(type_at, lower)
            draft.bounds.append(self.previous[0])
        self.at = at

    def _read_content(self, type_at: int, lower: SyncId) -> int:
        data, draft = self._data, self._draft
        if type_at >= len(data):
            raise MalformedPayload(type_at, "A range ends before its type")
        kind = data[type_at]
        end = type_at + 1
        if kind == RangeKind.FINGERPRINT:
            draft.fingerprints_at.append(end)
            end += HASH_BYTES
            if end > len(data):
                raise MalformedPayload(type_at + 1, "A fingerprint is cut off")
        elif kind == RangeKind.ITEM_SET:
            end = self._read_item_set(end, lower)
        elif kind != RangeKind.SKIP:
            raise MalformedPayload(type_at, f"Type {kind} of a range is unknown")
        draft.kinds.append(kind)
        return end

    def _read_prefix(self, at: int) -> int:
        length = self._data[at] if at < len(self._data) else 0
        if not 1 <= length <= HASH_BYTES:
            raise MalformedPayload(at, f"The prefix of a bound's hash has {length} bytes")
        prefix = self._data[at + 1 : at + 1 + length]
        if len(prefix) < length:
            raise MalformedPayload(at, "The prefix of a bound's hash is cut off")
        hash_ = prefix.ljust(HASH_BYTES, b"\0")
        if hash_ <= self.previous[1]:
            raise MalformedPayload(at, "A bound is not greater than the bound before it")
        self._draft.prefix_rows.append(len(self._draft.kinds))
        self._draft.prefixes_at.append(at + 1)
        self._draft.prefix_lengths.append(length)
        self.previous = self.previous[0], hash_
        return at + 1 + length

    def _read_item_set(self, at: int, lower: SyncId) -> int:
        data, draft, limits = self._data, self._draft, self._limits
        count, first = read_varint(data, at)
        if count and count * _MIN_ITEM_BYTES >= len(data) - first:
            raise MalformedPayload(at, f"An item set claims {count} items, more than can follow")
        if len(draft.items) + count > limits.max_elements:
            raise LimitExceeded("max_elements", limits.max_elements, len(draft.items) + count)
        at = self._read_items(first, count, lower) if count else first
        if at >= len(data):
            raise MalformedPayload(at, "An item set ends before its reconciled byte")
        if data[at] > 1:
            raise MalformedPayload(at, f"The reconciled byte of an item set is {data[at]}")
        draft.item_counts.append(count)
        draft.reconciled.append(data[at])
        return at + 1

    def _read_items(self, at: int, count: int, lower: SyncId) -> int:
        if self._source is not None and count >= _LARGE_SET:
            first, after = read_varint(self._data, at)
            items = read_items(self._source, first, after, count)
            if items is not None:
                self._draft.add_items(*items)
                return int(items[1][-1]) + HASH_BYTES
        return self._read_items_singly(at, count, lower)

    def _read_items_singly(self, at: int, count: int, lower: SyncId) -> int:
        data, draft = self._data, self._draft
        timestamp, hash_at = 0, at
        for number in range(count):
            previous_at = hash_at
            delta, hash_at = read_varint(data, at)
            timestamp += delta
            if timestamp > MAX_TIMESTAMP_NS:
                raise MalformedPayload(at, "An item's timestamp is past 2^63-1")
            begin, at = at, hash_at + HASH_BYTES
            if at > len(data):
                raise MalformedPayload(hash_at, "An item's hash is cut off")
            if number == 0:
                if (timestamp, data[hash_at:at]) < lower:
                    raise MalformedPayload(begin, "An item lies below its range")
            elif not delta and data[hash_at:at] <= data[previous_at : previous_at + HASH_BYTES]:
                raise MalformedPayload(begin, "An item is not greater than the item before it")
            draft.items.append(timestamp)
            draft.hashes_at.append(hash_at)
        if (timestamp, data[hash_at:at]) >= self.previous:
            raise MalformedPayload(at, "An item set ends with an item above its range")
        return at
