"""Reconciliation in nwaku's dialect: its payloads, and a side of a session as a state machine.

The sides alternate, one payload each. A range whose fingerprints differ is answered by an item set
where it has few IDs, else by fingerprints of its parts; an item set is answered by the receiver's
own, and that one by a Skip. A side that has only Skips left sends an empty payload.

A payload is a header with pubsub and content topics, the time at which the first range begins, and
ranges in ascending order. It differs from WAKU-SYNC: the topics stand in place of cluster and
shards, and a Skip that comes first has no type byte but is the time at which the ranges begin. A
payload of one byte or none has no ranges.

Bounds are whole nanoseconds here: nwaku reads every lower bound as one, and drops the hash of an
upper bound that is at another time than the lower one. A bound inside a nanosecond, which only
others send, is read as the beginning of that nanosecond. nwaku drops a range of fewer nanoseconds
than it makes parts if it has many IDs there, so a fingerprint of such a range is never sent, and is
answered by an item set of any size. Only IDs between the bounds of the session are compared;
outside, the answer is Skip.

Source: nwaku v0.37.1, as recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from store.gateway import limits
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
    """Decode a payload; raise ValueError if it is malformed, or has too many ranges or IDs."""
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
        if len(ranges) >= limits.MAX_SYNC_RANGES:
            raise ValueError(f"a payload has more than {limits.MAX_SYNC_RANGES:,} ranges")
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
        found = decode_varint(self._data, self._at)
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
        if self._ids > limits.MAX_SYNC_IDS:
            raise ValueError(f"a payload has more than {limits.MAX_SYNC_IDS:,} IDs")
        ids, at_ns = [], 0
        for _ in range(count):
            at_ns = self.time(at_ns)
            ids.append((at_ns, self.take(HASH_BYTES)))
        is_reconciled = self.byte()
        if is_reconciled > 1:
            raise ValueError("an item set is neither reconciled nor not")
        return ItemSet(ids, bool(is_reconciled))


PARTS: Final = 8
"""The parts of a range, and the shortest range with a fingerprint in nanoseconds, as in nwaku."""

MAX_ITEMS: Final = 100
"""The IDs of an item set in a range that could be divided, as in nwaku."""

_WORDS: Final = HASH_BYTES // 8


class MessageIds:
    """IDs of messages in ascending order, with the fingerprint of any range of time."""

    def __init__(self, timestamps: npt.NDArray[np.int64], hashes: bytes) -> None:
        """Sort IDs; ``hashes`` are joined, in the order of ``timestamps``."""
        words = np.frombuffer(hashes, ">u8").reshape(-1, _WORDS)
        order = np.lexsort((*words.T[::-1], timestamps))
        self._timestamps = timestamps[order]
        self._hashes = words[order].tobytes()
        native = np.frombuffer(self._hashes, np.uint64).reshape(-1, _WORDS)
        self._fingerprints = np.zeros((len(order) + 1, _WORDS), np.uint64)
        np.bitwise_xor.accumulate(native, axis=0, out=self._fingerprints[1:])

    def count(self, low_ns: int, high_ns: int) -> int:
        """Return the number of IDs in a range."""
        first, end = self._places(low_ns, high_ns)
        return end - first

    def fingerprint(self, low_ns: int, high_ns: int) -> bytes:
        """Return the XOR of the hashes in a range."""
        first, end = self._places(low_ns, high_ns)
        return bytes(self._fingerprints[first] ^ self._fingerprints[end])

    def items(self, low_ns: int, high_ns: int) -> list[Id]:
        """Return the IDs in a range."""
        first, end = self._places(low_ns, high_ns)
        starts = range(first * HASH_BYTES, end * HASH_BYTES, HASH_BYTES)
        hashes = [self._hashes[start : start + HASH_BYTES] for start in starts]
        return list(zip(self._timestamps[first:end].tolist(), hashes, strict=True))

    def _places(self, low_ns: int, high_ns: int) -> tuple[int, int]:
        first, end = np.searchsorted(self._timestamps, (low_ns, high_ns)).tolist()
        return first, end


class SyncSession:
    """A side of one session, which compares IDs from ``low_ns`` up to ``high_ns``.

    ``to_send`` are the IDs that the other side lacks, and ``missing`` counts those that it listed
    and this side lacks, both complete when `receive` has returned None or the empty payload.
    """

    def __init__(
        self, ids: MessageIds, low_ns: int, high_ns: int, pubsub_topics: Sequence[str]
    ) -> None:
        self.to_send: set[Id] = set()  # also where a liar asks again and again
        self.missing = 0
        self.has_ended = False
        self.high_ns = high_ns
        self._ids = ids
        self._low_ns = low_ns
        self._pubsub_topics = pubsub_topics

    def begin(self) -> bytes:
        """Return the first frame of the side that begins."""
        whole = self._fingerprint(self._low_ns, self.high_ns)
        if whole.upper_ns - whole.lower_ns < PARTS:
            whole = self._item_set(self._low_ns, self.high_ns)
        return self._encode([whole])

    def receive(self, payload: SyncPayload) -> bytes | None:
        """Return the frame that answers; None if the other side has ended the session."""
        if all(each.content is None for each in payload.ranges):
            self.has_ended = True
            return None
        answers: list[Range] = []
        for each in payload.ranges:
            for answer in self._answer(each):
                if answers and answer.content is None is answers[-1].content:
                    answers[-1] = Range(answers[-1].lower_ns, answer.upper_ns, None)
                elif answer.lower_ns < answer.upper_ns:
                    answers.append(answer)
        encoded = self._encode(answers)
        self.has_ended = encoded == NO_RANGES
        return encoded

    def _encode(self, ranges: Sequence[Range]) -> bytes:
        if all(each.content is None for each in ranges):
            return NO_RANGES
        return encode_payload(SyncPayload(self._pubsub_topics, (), ranges))

    def _answer(self, asked: Range) -> Iterator[Range]:
        """Yield the answer to a range, with Skips where it lies outside of the session."""
        low_ns = min(max(asked.lower_ns, self._low_ns), asked.upper_ns)
        high_ns = max(min(asked.upper_ns, self.high_ns), low_ns)
        yield Range(asked.lower_ns, low_ns, None)
        if isinstance(asked.content, ItemSet):
            yield self._answer_items(low_ns, high_ns, asked.content)
        elif asked.content is None or self._ids.fingerprint(low_ns, high_ns) == asked.content:
            yield Range(low_ns, high_ns, None)
        else:
            yield from self._show(low_ns, high_ns)
        yield Range(high_ns, asked.upper_ns, None)

    def _show(self, low_ns: int, high_ns: int) -> Iterator[Range]:
        """Yield an item set, or fingerprints of parts."""
        if high_ns - low_ns < PARTS or self._ids.count(low_ns, high_ns) <= MAX_ITEMS:
            yield self._item_set(low_ns, high_ns)
            return
        size_ns, rest = divmod(high_ns - low_ns, PARTS)
        for number in range(PARTS):
            end_ns = low_ns + size_ns + (number < rest)
            if end_ns - low_ns < PARTS or self._ids.count(low_ns, end_ns) <= MAX_ITEMS:
                yield self._item_set(low_ns, end_ns)
            else:
                yield self._fingerprint(low_ns, end_ns)
            low_ns = end_ns

    def _fingerprint(self, low_ns: int, high_ns: int) -> Range:
        return Range(low_ns, high_ns, self._ids.fingerprint(low_ns, high_ns))

    def _item_set(self, low_ns: int, high_ns: int) -> Range:
        # Of a range without an ID the other side need not list its own: it transfers all of them.
        items = self._ids.items(low_ns, high_ns)
        return Range(low_ns, high_ns, ItemSet(items, reconciled=not items))

    def _answer_items(self, low_ns: int, high_ns: int, theirs: ItemSet) -> Range:
        # nwaku also lists an ID at the upper bound whose hash is zero.
        own = self._ids.items(low_ns, high_ns)
        listed = {each for each in theirs.ids if low_ns <= each[0] < high_ns}
        lacking = [each for each in own if each not in listed]
        self.to_send.update(lacking)
        unknown = len(listed) - (len(own) - len(lacking))
        self.missing += unknown
        if theirs.reconciled or not (lacking or unknown):
            return Range(low_ns, high_ns, None)
        return Range(low_ns, high_ns, ItemSet(own, reconciled=True))
