"""Payloads of reconciliation as nwaku encodes them.

A payload is a header with pubsub and content topics, the time at which the first range begins, and
ranges in ascending order. Bounds are whole nanoseconds here: nwaku reads every lower bound as one,
and drops the hash of an upper bound that is at another time than the lower one. A bound inside a
nanosecond, which only others send, is read as the beginning of that nanosecond.

The layout differs from WAKU-SYNC: the topics stand in place of cluster and shards, and a Skip that
comes first has no type byte but is the time at which the ranges begin. A payload of one byte or
none has no ranges.

Source: nwaku v0.37.1, as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from store.gateway.limits import MAX_SYNC_IDS, MAX_SYNC_RANGES
from store.gateway.wire import decode_varint, delimited
from storenode.message.limits import HASH_BYTES, MAX_TIMESTAMP_NS
from storenode.message.varint import varint

MAX_TOPICS: Final = 1_024
NO_RANGES: Final = b"\0"
"""The payload that ends a session."""

NO_COMMON_TOPIC: Final = b""
"""The payload of a side that serves none of the topics."""

Id = tuple[int, bytes]
"""A timestamp in nanoseconds and a message hash."""

_SKIP, _FINGERPRINT, _ITEM_SET = range(3)
"""Types of ranges."""


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The IDs of the sender in a range; ``reconciled``: it has seen those of the receiver."""

    ids: Sequence[Id]
    reconciled: bool


@dataclass(frozen=True, slots=True)
class Range:
    """A range of time, ``upper_ns`` exclusive.

    ``content`` is a fingerprint, an item set, or None for a Skip.
    """

    lower_ns: int
    upper_ns: int
    content: bytes | ItemSet | None


@dataclass(frozen=True, slots=True)
class SyncPayload:
    """A decoded payload; empty topics: all."""

    pubsub_topics: Sequence[str]
    content_topics: Sequence[str]
    ranges: Sequence[Range]


def encode_payload(payload: SyncPayload) -> bytes:
    """Encode a payload; ranges must follow each other without gaps, and none may be empty."""
    ranges = list(payload.ranges)
    while ranges and ranges[0].content is None:
        del ranges[0]
    if not ranges:
        return NO_RANGES
    parts = []
    for topics in (payload.pubsub_topics, payload.content_topics):
        parts.append(varint(len(topics)))
        parts += [delimited(topic.encode()) for topic in topics]
    at_ns = ranges[0].lower_ns
    parts.append(varint(at_ns))
    for each in ranges:
        assert each.lower_ns == at_ns < each.upper_ns <= MAX_TIMESTAMP_NS, each
        parts.append(varint(each.upper_ns - at_ns))
        at_ns = each.upper_ns
        match each.content:
            case None:
                parts.append(bytes((_SKIP,)))
            case ItemSet():
                parts.append(bytes((_ITEM_SET,)) + _encode_items(each.content))
            case fingerprint:
                parts.append(bytes((_FINGERPRINT,)) + fingerprint)
    return b"".join(parts)


def _encode_items(items: ItemSet) -> bytes:
    parts, before_ns = [varint(len(items.ids))], 0
    for at_ns, digest in items.ids:
        parts.append(varint(at_ns - before_ns) + digest)
        before_ns = at_ns
    parts.append(bytes((items.reconciled,)))
    return b"".join(parts)


def decode_payload(data: bytes) -> SyncPayload:
    """Decode a payload.

    Raises:
        ValueError: It is malformed, or has too many ranges or IDs.
    """
    if len(data) <= len(NO_RANGES):
        return SyncPayload((), (), ())
    reader = _PayloadReader(data)
    pubsub_topics, content_topics = reader.topics(), reader.topics()
    at_ns = lower_ns = reader.time(0)
    ranges: list[Range] = []
    if lower_ns:
        ranges.append(Range(0, lower_ns, None))
    # A single byte at the end is no range.
    while reader.unread_bytes > 1:
        at_ns = reader.time(lower_ns)
        if at_ns == lower_ns:
            reader.skip_hash_prefix()
        content = reader.content()
        if len(ranges) >= MAX_SYNC_RANGES:
            raise ValueError(f"a payload has more than {MAX_SYNC_RANGES:,} ranges")
        ranges.append(Range(lower_ns, at_ns, content))
        lower_ns = at_ns
    return SyncPayload(pubsub_topics, content_topics, ranges)


class _PayloadReader:
    """The bytes of a payload, read from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._ids = 0

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self._data) - self._at

    def take(self, size_bytes: int) -> bytes:
        """Read bytes."""
        if size_bytes > self.unread_bytes:
            raise ValueError("a payload is cut off")
        start, self._at = self._at, self._at + size_bytes
        return self._data[start : self._at]

    def byte(self) -> int:
        """Read one byte."""
        return self.take(1)[0]

    def number(self) -> int:
        """Read a varint."""
        try:
            found = decode_varint(self._data, self._at)
        except ValueError as error:
            raise ValueError(f"a payload is malformed: {error}") from error
        if found is None:
            raise ValueError("a payload is cut off")
        value, self._at = found
        return value

    def time(self, before_ns: int) -> int:
        """Read the difference to an earlier time, and return the time."""
        at_ns = before_ns + self.number()
        if at_ns > MAX_TIMESTAMP_NS:
            raise ValueError(f"a payload has the time {at_ns}, which is too large")
        return at_ns

    def skip_hash_prefix(self) -> None:
        """Read the beginning of the hash of a bound inside a nanosecond."""
        size_bytes = self.byte()
        if size_bytes > HASH_BYTES:
            raise ValueError(f"a payload has a bound with {size_bytes} bytes of hash")
        self.take(size_bytes)

    def topics(self) -> list[str]:
        """Read topics."""
        count = self.number()
        if count > MAX_TOPICS:
            raise ValueError(f"a payload has more than {MAX_TOPICS:,} topics")
        # A topic that is not UTF-8 is equal to none.
        return [self.take(self.number()).decode(errors="replace") for _ in range(count)]

    def content(self) -> bytes | ItemSet | None:
        """Read the type and the content of a range."""
        kind = self.byte()
        if kind == _SKIP:
            return None
        if kind == _FINGERPRINT:
            return self.take(HASH_BYTES)
        if kind != _ITEM_SET:
            raise ValueError(f"a payload has a range of the unknown type {kind}")
        count = self.number()
        self._ids += count
        if self._ids > MAX_SYNC_IDS:
            raise ValueError(f"a payload has more than {MAX_SYNC_IDS:,} IDs")
        ids, at_ns = [], 0
        for _ in range(count):
            at_ns = self.time(at_ns)
            ids.append((at_ns, self.take(HASH_BYTES)))
        is_reconciled = self.byte()
        if is_reconciled > 1:
            raise ValueError("an item set is neither reconciled nor not")
        return ItemSet(ids, bool(is_reconciled))
