"""Bloom filters over message IDs, bit for bit those of the field's JavaScript library.

A filter has no header: all must use the same numbers of positions and of hashes. Positions come
from two signed MurmurHash3 values, ``(a + n*b) mod m``.
The bytes are 64-bit words, big-endian: position p is bit ``p mod 8`` of byte ``(p div 8) xor 7``.

Source: SDS, "Participant state"; the layout is that of the published implementations.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log
from typing import Final

import mmh3

from storenode.sds.limits import MAX_FILTER_CAPACITY

WORD_BITS: Final = 64
_LOW: Final = 0xFFFFFFFF
_MAX_FILL: Final = 0.95
"""A filter with more of its bits set proves nothing."""

Probe = tuple[tuple[int, int], ...]
"""The bits of an ID: (byte, mask) of each position."""


@dataclass(frozen=True)
class FilterShape:
    """The capacity (IDs) and error rate of a channel's filters, and what follows from them.

    Raises:
        ValueError: the capacity is not positive or too large, or the rate not inside (0, 1).
    """

    capacity: int = 10_000
    error_rate: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.capacity <= MAX_FILTER_CAPACITY:
            raise ValueError(
                f"a filter for {self.capacity} IDs cannot be: choose 1 to {MAX_FILTER_CAPACITY}"
            )
        if not 0 < self.error_rate < 1:
            raise ValueError(f"an error rate of {self.error_rate} is not between 0 and 1")

    @cached_property
    def bits_per_id(self) -> int:
        """The number of bits that one ID takes at the wanted error rate."""
        return ceil(-log(self.error_rate) / log(2) ** 2)

    @cached_property
    def hashes(self) -> int:
        """The number of positions of one ID (k)."""
        return int(log(2) * self.bits_per_id + 0.5)

    @cached_property
    def bits(self) -> int:
        """The number of positions in all (m)."""
        return self.capacity * self.bits_per_id

    @cached_property
    def size_bytes(self) -> int:
        """The length of an encoded filter."""
        return (1 + self.bits // WORD_BITS) * (WORD_BITS // 8)

    def pair(self, message_id: str) -> tuple[int, int]:
        """Return the two values that all of an ID's positions follow from."""
        first, step = mmh3.hash(message_id, 0), mmh3.hash(message_id + " b", 0)
        return abs(first) % self.bits, abs(step) % self.bits

    def positions(self, message_id: str) -> list[int]:
        """Return the positions of an ID in order; some may be equal."""
        first, step = self.pair(message_id)
        return [(first + n * step) % self.bits for n in range(self.hashes)]

    def probe(self, message_id: str) -> Probe:
        """Return the positions as bytes and masks of an encoded filter."""
        return tuple((p >> 3 ^ 7, 1 << (p & 7)) for p in self.positions(message_id))

    def reads(self, data: bytes | None) -> bool:
        """Return True if bytes can be a filter of this shape."""
        return data is not None and len(data) == self.size_bytes

    def false_positive_rate(self, data: bytes) -> float:
        """Return the probability that an encoded filter shows an ID that was not inserted."""
        filled = int.from_bytes(data).bit_count() / self.bits
        return float(min(filled, 1.0) ** self.hashes)

    def inserted(self, bits: int) -> float:
        """Return the estimated number of IDs in a filter with these bits."""
        fill = bits.bit_count() / self.bits
        return inf if fill > _MAX_FILL else -self.bits / self.hashes * log(1 - fill)


def holds(data: bytes | bytearray, probe: Probe) -> bool:
    """Return True if an encoded filter has all bits of a probe; False is never wrong."""
    for position, mask in probe:  # noqa: SIM110 - a generator would take twice as long
        if not data[position] & mask:
            return False
    return True


class RollingFilter:
    """The filter of one participant: filled up to its capacity, then replaced.

    A new filter starts with the newer half of the IDs of the old one, so that it always covers
    at least the last half of the capacity. Insertion takes constant time, but for one batch
    per half capacity. ``complete`` says that `known` covers all IDs that were ever inserted.
    """

    def __init__(self, shape: FilterShape) -> None:
        self.shape = shape
        self._bits = bytearray(shape.size_bytes)
        self._before: bytearray | None = None
        self.complete = True
        self._pairs: array[int] = array("Q")

    def __len__(self) -> int:
        """Return the number of IDs in the present filter."""
        return len(self._pairs)

    def add(self, message_id: str) -> None:
        """Insert an ID that was not inserted before; rolls over first when full."""
        if len(self._pairs) >= self.shape.capacity:
            self._roll_over()
        first, step = self.shape.pair(message_id)
        self._pairs.append(first << 32 | step)
        self._set(first, step)

    def __contains__(self, message_id: str) -> bool:
        return holds(self._bits, self.shape.probe(message_id))

    def encode(self) -> bytes:
        """Return the filter as it is sent."""
        return bytes(self._bits)

    def known(self) -> int:
        """Return the bits of this filter and of the one before it."""
        bits = int.from_bytes(self._bits)
        return bits if self._before is None else bits | int.from_bytes(self._before)

    def span(self) -> int:
        """Return how many of the newest IDs `known` covers."""
        capacity = self.shape.capacity
        before = 0 if self._before is None else capacity - capacity // 2
        return before + len(self._pairs)

    def _roll_over(self) -> None:
        keep = self.shape.capacity // 2
        self.complete = self.complete and self._before is None
        self._before = self._bits
        self._pairs = self._pairs[len(self._pairs) - keep :]
        self._fill()

    def _fill(self) -> None:
        self._bits = bytearray(self.shape.size_bytes)
        for pair in self._pairs:
            self._set(pair >> 32, pair & _LOW)

    def _set(self, position: int, step: int) -> None:
        bits, size = self._bits, self.shape.bits
        for _ in range(self.shape.hashes):
            bits[position >> 3 ^ 7] |= 1 << (position & 7)
            position += step
            if position >= size:
                position -= size


def filter_of(shape: FilterShape, message_ids: Iterable[str]) -> bytes:
    """Return the encoded filter that contains just these IDs, however many they are."""
    bits = bytearray(shape.size_bytes)
    for message_id in message_ids:
        for position, mask in shape.probe(message_id):
            bits[position] |= mask
    return bytes(bits)
