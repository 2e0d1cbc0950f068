"""Writing ``RangesData`` (WAKU-SYNC, "Payload encoding")."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.codec.bounds import prefix_lengths
from reconcile.codec.ranges import Payload, RangeKind, Ranges
from reconcile.ids import (
    HASH_DTYPE,
    HASH_WORDS,
    LOWEST,
    OPAQUE_HASH,
    Ints,
    SyncId,
    SyncIds,
    Words,
    from_opaque,
)
from storenode.message.limits import HASH_BYTES
from storenode.message.varint import varint

_WORD_BYTES: Final = 8
_WORD: Final = np.dtype("<u8")
"""A varint is written as the eight bytes from its first byte on: what lies behind it is written
later. Words are little-endian whatever the machine; a ninth byte is written by itself.
"""

_MAX_VARINT_BYTES: Final = 9
"""Of a value up to 2^63-1."""

_GROUPS_IN_WORD: Final = np.uint64(2**56 - 1)
_STEPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
    )
)
"""Parting neighbours: 56 bits, then 28 per four bytes, 14 per two, 7 per byte."""

_CONTINUATION: Final = np.array(
    [0, *(0x8080808080808080 & ((1 << 8 * n) - 1) for n in range(8)), 0x8080808080808080],
    np.uint64,
)
"""By length in bytes, the continuation bits of the first eight."""

_CHUNK: Final = 16_384
"""Words at a time: what is made of them meanwhile stays in the processor's cache."""


def encode(payload: Payload) -> bytes:
    """The bytes of a payload; none if it has no ranges.

    Raises:
        ValueError: a bound cannot be expressed after the bound before it, the items of a set do
            not ascend in time, or a number is negative.
    """
    ranges = payload.ranges
    if not len(ranges):
        return b""
    head = payload_head(payload.cluster, payload.shards)
    _check_shape(ranges)
    if kernel.compiled is not None:
        written = _written(kernel.compiled, head, ranges)
        if written is not None:
            return written
    return _Layout(ranges).write(head)


def payload_head(cluster: int, shards: tuple[int, ...]) -> bytes:
    """What is in front of the ranges.

    Raises:
        ValueError: a number is negative.
    """
    return b"".join(map(varint, (cluster, len(shards), *shards)))


def _written(own: kernel.Kernel, head: bytes, ranges: Ranges) -> bytes | None:
    """The encoding by compiled code; None if there is none."""
    return own.encode(
        head,
        ranges.upper.timestamps,
        ranges.upper.hashes,
        ranges.kinds,
        np.ascontiguousarray(ranges.fingerprints),
        ranges.item_counts,
        ranges.reconciled,
        ranges.items.timestamps,
        ranges.items.hashes,
    )


def _check_shape(ranges: Ranges) -> None:
    kinds = np.bincount(ranges.kinds, minlength=RangeKind.ITEM_SET + 1)
    claimed = (len(ranges.fingerprints), len(ranges.item_counts), len(ranges.items))
    held = (kinds[RangeKind.FINGERPRINT], kinds[RangeKind.ITEM_SET], ranges.item_counts.sum())
    countable = len(kinds) == RangeKind.ITEM_SET + 1 and ranges.item_counts.min(initial=0) == 0
    if not countable or claimed != held:
        raise ValueError(
            f"ranges with {held[0]} fingerprints, {held[1]} item sets and {held[2]} items come "
            f"with {claimed[0]}, {claimed[1]} and {claimed[2]}, or have an unknown type or a "
            "negative count: pass columns that fit"
        )


def _inexpressible(previous: SyncId, bound: SyncId) -> str:
    return (
        f"bound ({bound[0]}, {bound[1].hex()}) cannot be expressed after "
        f"({previous[0]}, {previous[1].hex()}): lead to it with reach()"
    )


class _Layout:
    """Where everything in the encoding of some ranges comes to lie.

    Attributes:
        sizes: ``(m,)`` bytes of each range.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._sets = np.flatnonzero(ranges.kinds == RangeKind.ITEM_SET)
        self._fingerprints = np.flatnonzero(ranges.kinds == RangeKind.FINGERPRINT)
        self._bounds = _Bounds(ranges.upper)
        self._items = _Items(ranges)
        self.sizes = self._bounds.sizes + 1
        self.sizes[self._fingerprints] += HASH_BYTES
        self.sizes[self._sets] += self._items.sizes

    def write(self, head: bytes) -> bytes:
        """The encoding behind a head.

        A varint is written as a whole word, and whatever lies behind it is written later.
        """
        size = len(head) + int(self.sizes.sum())
        octets = np.empty(size + _WORD_BYTES, HASH_DTYPE)
        octets[: len(head)] = np.frombuffer(head, HASH_DTYPE)
        starts = len(head) + np.cumsum(self.sizes) - self.sizes
        self._bounds.write(octets, starts)
        types_at = starts + self._bounds.sizes
        octets[types_at] = self._ranges.kinds
        self._items.write(octets, types_at[self._sets] + 1)
        fingerprints = np.ascontiguousarray(self._ranges.fingerprints).view(OPAQUE_HASH)
        hash_windows(octets)[types_at[self._fingerprints] + 1] = fingerprints[:, 0]
        return octets[:size].tobytes()


class _Bounds:
    """The upper bounds, as differences.

    Attributes:
        sizes: ``(m,)`` bytes of each.
    """

    def __init__(self, upper: SyncIds) -> None:
        self._upper = upper
        self._deltas = _differences(upper.timestamps)
        self._lengths = varint_sizes(self._deltas)
        self._ties = np.flatnonzero(self._deltas == 0)
        hashed = np.flatnonzero(upper.words) // HASH_WORDS
        self._refuse(hashed[self._deltas[hashed] != 0])
        before = np.zeros((len(self._ties), HASH_BYTES), HASH_DTYPE)
        later = self._ties[self._ties > 0]
        before[len(before) - len(later) :] = from_opaque(upper.opaque[later - 1])
        self._hashes = from_opaque(upper.opaque[self._ties])
        self._prefixes = prefix_lengths(before, self._hashes)
        self._refuse(self._ties[self._prefixes == 0])
        self.sizes = self._lengths.astype(np.int64)
        self.sizes[self._ties] += 1 + self._prefixes

    def _refuse(self, rows: Ints) -> None:
        if len(rows):
            row = int(rows[0])
            previous = self._upper.at(row - 1) if row else LOWEST
            raise ValueError(_inexpressible(previous, self._upper.at(row)))

    def write(self, octets: NDArray[np.uint8], starts: Ints) -> None:
        """Write each bound where its range starts."""
        write_varints(octets, starts, self._deltas, self._lengths)
        if len(self._ties):
            octets[starts[self._ties] + 1] = self._prefixes
            rows = np.repeat(np.arange(len(self._ties)), self._prefixes)
            ends = np.cumsum(self._prefixes)
            columns = np.arange(len(rows)) - (ends - self._prefixes)[rows]
            places = (starts[self._ties] + 2)[rows] + columns
            octets[places] = self._hashes[rows, columns]


class _Items:
    """The contents of item sets.

    Attributes:
        sizes: ``(s,)`` bytes of each.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ids = ranges.items
        self._counts = ranges.item_counts
        self._reconciled = ranges.reconciled
        self._count_lengths = varint_sizes(self._counts)
        offsets = ranges.item_offsets
        firsts = offsets[:-1][self._counts > 0]
        self._deltas = _differences(ranges.items.timestamps, firsts)
        self._lengths = varint_sizes(self._deltas)
        # Where each item begins, counted from the first item of all.
        self._rows = np.zeros(len(self._ids) + 1, np.int64)
        np.cumsum(self._lengths + np.int64(HASH_BYTES), out=self._rows[1:])
        self._begins = self._rows[offsets[:-1]]
        self._bytes = self._rows[offsets[1:]] - self._begins
        self.sizes = self._count_lengths + self._bytes + 1

    def write(self, octets: NDArray[np.uint8], counts_at: Ints) -> None:
        """Write each set, from its count on."""
        counts = varint_words(self._counts, self._count_lengths).view(HASH_DTYPE)
        for place in range(int(self._count_lengths.max(initial=0))):
            rows = np.flatnonzero(self._count_lengths > place)
            octets[counts_at[rows] + place] = counts[rows * _WORD_BYTES + place]
        items_at = counts_at + self._count_lengths
        places = np.repeat(items_at - self._begins, self._counts)
        places += self._rows[:-1]
        write_varints(octets, places, self._deltas, self._lengths)
        places += self._lengths
        hash_windows(octets)[places] = self._ids.opaque
        octets[items_at + self._bytes] = self._reconciled


def hash_windows(octets: NDArray[np.uint8]) -> NDArray[np.void]:
    """The 32 bytes at every offset, unaligned; memory is shared."""
    size = max(len(octets) - HASH_BYTES + 1, 0)
    return np.ndarray((size,), OPAQUE_HASH, octets, strides=(1,))


def write_varints(
    octets: NDArray[np.uint8],
    places: Ints,
    values: NDArray[np.int64],
    lengths: NDArray[np.uint8],
) -> None:
    """Write varints, and something meaningless into the rest of the eight bytes from each on.

    Places ascend. Assignment goes in their order, so that no varint is spoiled by another.
    """
    words = np.ndarray((max(len(octets) - _WORD_BYTES + 1, 0),), _WORD, octets, strides=(1,))
    words[places] = varint_words(values, lengths)
    longest = np.flatnonzero(lengths == _MAX_VARINT_BYTES)
    octets[places[longest] + _WORD_BYTES] = values[longest] >> (7 * _WORD_BYTES)


def _differences(times: NDArray[np.int64], restarts: Ints | None = None) -> NDArray[np.int64]:
    """Each less the one before it; the first, and those at ``restarts``, in full.

    Raises:
        ValueError: one is negative.
    """
    deltas = times.copy()
    deltas[1:] -= times[:-1]
    if restarts is not None:
        deltas[restarts] = times[restarts]
    if np.any(deltas < 0):
        raise ValueError(
            f"timestamp {times[int(deltas.argmin())]} lies before the one in front of it, or "
            "before 0: pass bounds and items in ascending order"
        )
    return deltas


def varint_sizes(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """``(n,)`` lengths in bytes, 1 to 9, of non-negative values."""
    lengths = np.ones(len(values), np.uint8)
    most = int(values.max(initial=0))
    for begin in range(0, len(values), _CHUNK):
        chunk, sizes = values[begin : begin + _CHUNK], lengths[begin : begin + _CHUNK]
        for length in range(1, _MAX_VARINT_BYTES):
            if most < 1 << 7 * length:
                break
            sizes += chunk >= 1 << 7 * length
    return lengths


def varint_words(values: NDArray[np.int64], lengths: NDArray[np.uint8]) -> Words:
    """``(n,)`` first eight bytes of each varint, zeros after its end."""
    words = values.astype(_WORD)
    spare = np.empty(min(len(values), _CHUNK), _WORD)
    for begin in range(0, len(values), _CHUNK):
        own = words[begin : begin + _CHUNK]
        _spread(own, lengths[begin : begin + _CHUNK], spare[: len(own)])
    return words


def _spread(own: Words, lengths: NDArray[np.uint8], spare: Words) -> None:
    own &= _GROUPS_IN_WORD
    for low, high, shift in _STEPS:
        np.left_shift(own, shift, out=spare)
        spare &= high
        own &= low
        own |= spare
    own |= _CONTINUATION[lengths]
