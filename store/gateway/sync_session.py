"""A side of a reconciliation with nwaku, as a pure state machine.

The sides alternate, one payload each. A range whose fingerprints differ is answered by an item set
where it has few IDs, else by fingerprints of its parts; an item set is answered by the receiver's
own, and that one by a Skip. A side that has only Skips left sends an empty payload.

All bounds are whole nanoseconds. nwaku drops a range of fewer nanoseconds than it makes parts if
it has many IDs there, so a fingerprint of such a range is never sent, and is answered by an item
set of any size. Only IDs between the bounds of the session are compared; outside, the answer is
Skip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from store.gateway.sync_codec import NO_RANGES, Id, ItemSet, Range, SyncPayload, encode_payload
from storenode.message.limits import HASH_BYTES

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
