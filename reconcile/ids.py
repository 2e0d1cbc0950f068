"""SyncIDs as arrays.

A SyncID is a timestamp in nanoseconds and a message hash, ordered by timestamp, then by hash
(WAKU-SYNC, "SyncID"). A bound of a range is a SyncID too: inclusive below, exclusive above.

Hashes travel as bytes, ``(n, 32)``, and as XOR operands, ``(n, 4)`` native 64-bit words; one is
a view of the other's memory. As opaque 32-byte elements, ``(n,)``, they are moved fastest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES, MAX_TIMESTAMP_NS

ELEMENT_BYTES: Final = 8 + HASH_BYTES + CONTENT_DIGEST_BYTES
"""The size of what a lattice sum adds for each message."""

SyncId: TypeAlias = tuple[int, bytes]
"""A SyncID: timestamp in nanoseconds, 32 bytes of hash."""

HASH_DTYPE: Final = np.uint8
HASH_WORDS: Final = HASH_BYTES // 8
OPAQUE_HASH: Final = np.dtype(f"V{HASH_BYTES}")
_ORDERED_WORD: Final = np.dtype(">u8")

LOWEST: Final[SyncId] = (0, bytes(HASH_BYTES))
"""The lower bound of the first range of every payload."""

END: Final[SyncId] = (MAX_TIMESTAMP_NS, b"\xff" * HASH_BYTES)
"""The greatest bound that can be sent."""

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Selection: TypeAlias = slice | NDArray[np.integer[Any]] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SyncIds:
    """The columns of SyncIDs, or of bounds.

    Attributes:
        timestamps: ``(n,)``, nanoseconds, C-contiguous.
        hashes: ``(n, 32)`` bytes, C-contiguous.
        digests: ``(n, 16)`` bytes, C-contiguous: the content digest of each message; None: unknown.
            Neither the order nor equality looks at them.
    """

    timestamps: NDArray[np.int64]
    hashes: NDArray[np.uint8]
    digests: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.timestamps)

    def __getitem__(self, selection: Selection) -> "SyncIds":
        """Select a slice (views where the step is 1), an index array or a mask."""
        if isinstance(selection, slice):
            if selection.step not in {None, 1}:
                return self[np.arange(len(self))[selection]]
            digests = None if self.digests is None else self.digests[selection]
            return SyncIds(self.timestamps[selection], self.hashes[selection], digests)
        if selection.dtype.kind == "b":
            selection = selection.nonzero()[0]
        return self.take(selection)

    def take(self, places: NDArray[Any]) -> "SyncIds":
        """Return the IDs at some places, copied."""
        digests = None if self.digests is None else self.digests.take(places, 0)
        return SyncIds(self.timestamps.take(places), self.hashes.take(places, 0), digests)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SyncIds):
            return NotImplemented
        return np.array_equal(self.timestamps, other.timestamps) and np.array_equal(
            self.hashes, other.hashes
        )

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[SyncId]:
        return iter(self.pairs())

    @property
    def words(self) -> NDArray[np.uint64]:
        """The hashes as ``(n, 4)`` native words: a view."""
        return self.hashes.view(np.uint64)

    @property
    def opaque(self) -> NDArray[np.void]:
        """The hashes as ``(n,)`` elements of 32 bytes: a view."""
        return self.hashes.view(OPAQUE_HASH).reshape(-1)

    def at(self, index: int) -> SyncId:
        """Return one ID."""
        return int(self.timestamps[index]), self.hashes[index].tobytes()

    def pairs(self) -> list[SyncId]:
        """Return all IDs as pairs."""
        flat = self.hashes.tobytes()
        hashes = [flat[at : at + HASH_BYTES] for at in range(0, len(flat), HASH_BYTES)]
        return list(zip(self.timestamps.tolist(), hashes, strict=True))

    @classmethod
    def empty(cls) -> "SyncIds":
        """Return no IDs."""
        return _NONE

    @classmethod
    def at_times(cls, timestamps: NDArray[np.int64]) -> "SyncIds":
        """Return bounds at the beginnings of nanoseconds, where hashes are zeros."""
        return cls(timestamps, np.zeros((len(timestamps), HASH_BYTES), HASH_DTYPE))

    @classmethod
    def of(cls, pairs: Iterable[SyncId]) -> "SyncIds":
        """Return the columns of pairs, in this order.

        Raises:
            ValueError: a hash has not 32 bytes.
        """
        listed = list(pairs)
        if any(len(hash_) != HASH_BYTES for _, hash_ in listed):
            raise ValueError(f"a hash of a SyncID has {HASH_BYTES} bytes: pass whole hashes")
        timestamps = np.fromiter((timestamp for timestamp, _ in listed), np.int64, len(listed))
        flat = np.frombuffer(bytearray().join(hash_ for _, hash_ in listed), HASH_DTYPE)
        return cls(timestamps, flat.reshape(-1, HASH_BYTES))

    @classmethod
    def join(cls, parts: Sequence["SyncIds"]) -> "SyncIds":
        """Join columns, one after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        timestamps = np.concatenate([part.timestamps for part in parts])
        digests = None
        if any(part.digests is not None for part in parts):
            digests = np.concatenate([part.known_digests for part in parts])
        return cls(timestamps, np.concatenate([part.hashes for part in parts]), digests)

    @property
    def known_digests(self) -> NDArray[np.uint8]:
        """``(n, 16)``: the content digests, zeros where they are unknown."""
        if self.digests is None:
            return np.zeros((len(self), CONTENT_DIGEST_BYTES), HASH_DTYPE)
        return self.digests

    @property
    def elements(self) -> NDArray[np.uint8]:
        """``(n, 56)``: timestamp (big-endian), hash, content digest, as lattice sums add them."""
        found = np.empty((len(self), ELEMENT_BYTES), HASH_DTYPE)
        found[:, :8] = self.timestamps.astype(">i8").view(HASH_DTYPE).reshape(-1, 8)
        found[:, 8 : 8 + HASH_BYTES] = self.hashes
        found[:, 8 + HASH_BYTES :] = self.known_digests
        return found

    @classmethod
    def of_elements(cls, elements: bytes) -> "SyncIds":
        """Return the IDs and content digests that some bytes of `elements` have, in their order.

        Raises:
            ValueError: the bytes end inside of an element.
        """
        rows = np.frombuffer(bytearray(elements), HASH_DTYPE).reshape(-1, ELEMENT_BYTES)
        times = np.ascontiguousarray(rows[:, :8]).view(">i8").ravel().astype(np.int64)
        hashes = np.ascontiguousarray(rows[:, 8 : 8 + HASH_BYTES])
        return cls(times, hashes, np.ascontiguousarray(rows[:, 8 + HASH_BYTES :]))

    def check(self) -> None:
        """Verify types, shapes and that the IDs ascend strictly.

        Raises:
            AssertionError: something of it does not hold.
        """
        assert self.timestamps.dtype == np.int64
        assert self.hashes.dtype == HASH_DTYPE
        assert self.hashes.shape == (len(self.timestamps), HASH_BYTES)
        assert self.hashes.flags.c_contiguous
        assert bool(np.all(self.timestamps >= 0))
        assert bool(np.all(less(self[:-1], self[1:])))


_NONE: Final = SyncIds(np.empty(0, np.int64), np.empty((0, HASH_BYTES), HASH_DTYPE))


def from_opaque(hashes: NDArray[np.void]) -> NDArray[np.uint8]:
    """Return ``(n,)`` contiguous 32-byte elements as ``(n, 32)`` bytes: a view."""
    return hashes.view(HASH_DTYPE).reshape(-1, HASH_BYTES)


def rows_differ(
    left: NDArray[np.uint64], right: NDArray[np.uint64] | Literal[0]
) -> NDArray[np.bool_]:
    """Return ``(n,)``: do rows of ``(n, 4)`` words differ, or differ from zero.

    It is several times faster than by axis.
    """
    return np.asarray((left != right).view(np.uint32).reshape(-1) != 0)


def differ(left: SyncIds, right: SyncIds) -> NDArray[np.bool_]:
    """Return ``(n,)``: is ``left[i]`` another ID than ``right[i]``."""
    apart: NDArray[np.bool_] = left.timestamps != right.timestamps
    return apart | rows_differ(left.words, right.words)


def total(numbers: NDArray[np.int64]) -> int:
    """Return the sum of numbers; faster than their method where they are few."""
    return int(np.add.reduce(numbers))


def less(left: SyncIds, right: SyncIds) -> NDArray[np.bool_]:
    """Return ``(n,)``: is ``left[i]`` strictly before ``right[i]``."""
    result = left.timestamps < right.timestamps
    ties = (left.timestamps == right.timestamps).nonzero()[0]
    if len(ties):
        result[ties] = hashes_less(from_opaque(left.opaque[ties]), from_opaque(right.opaque[ties]))
    return result


def hashes_less(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return ``(n,)``: is ``left[i]`` strictly before ``right[i]`` as a string of bytes.

    Both are ``(n, 32)``, C-contiguous.
    """
    a, b = left.view(_ORDERED_WORD), right.view(_ORDERED_WORD)
    result = a[:, HASH_WORDS - 1] < b[:, HASH_WORDS - 1]
    for word in range(HASH_WORDS - 2, -1, -1):
        result = (a[:, word] < b[:, word]) | ((a[:, word] == b[:, word]) & result)
    return result


def order_of(ids: SyncIds) -> Ints:
    """Return the places of IDs in ascending order; equal ones keep theirs."""
    order = ids.timestamps.argsort(kind="stable")
    times = ids.timestamps[order]
    after = np.flatnonzero(times[1:] == times[:-1]) + 1
    if len(after):
        tied = np.zeros(len(ids), np.bool_)
        tied[after] = tied[after - 1] = True
        members = np.flatnonzero(tied)
        words = ids.hashes[order[members]].view(_ORDERED_WORD)
        keys = (*(words[:, word] for word in reversed(range(HASH_WORDS))), times[members])
        order[members] = order[members][np.lexsort(keys)]
    return np.asarray(order, np.int64)


def ordered(ids: SyncIds) -> SyncIds:
    """Return the IDs strictly ascending, each once; `ids` itself if it is that already."""
    timestamps = ids.timestamps
    after = (timestamps[1:] <= timestamps[:-1]).nonzero()[0] + 1
    if not len(after) or bool(np.all(less(ids[after - 1], ids[after]))):
        return ids
    ids = ids[order_of(ids)]
    repeated = np.zeros(len(ids), np.bool_)
    repeated[1:] = ~differ(ids[1:], ids[:-1])
    return ids[~repeated] if bool(repeated.any()) else ids


@dataclass(frozen=True, slots=True)
class Match:
    """The place of each remote ID among the local ones.

    Attributes:
        places: (r,) the number of local IDs that are smaller.
        found: (r,) whether the local ID at that place is the same.
    """

    places: Ints
    found: Bools


def match(local: SyncIds, remote: SyncIds) -> Match:
    """Find remote IDs among local ones; both ascend strictly."""
    count = len(remote)
    if not len(local) or not count:
        return Match(np.zeros(count, np.int64), np.zeros(count, np.bool_))
    mine, theirs = local.timestamps, remote.timestamps
    if (mine[1:] == mine[:-1]).any() or (theirs[1:] == theirs[:-1]).any():
        return _match_by_sorting(local, remote)
    places = mine.searchsorted(theirs, side="right")
    before = np.maximum(places - 1, 0)
    same_key = (mine.take(before) == theirs).nonzero()[0]
    candidates = before.take(same_key)
    same = ~rows_differ(local[candidates].words, remote[same_key].words)
    found = np.zeros(count, np.bool_)
    found[same_key] = same
    places[same_key] = candidates
    for at in same_key[~same]:
        places[at] += int(local.hashes[places[at]].tobytes() < remote.hashes[at].tobytes())
    return Match(places, found)


def _match_by_sorting(local: SyncIds, remote: SyncIds) -> Match:
    both = SyncIds.join([local, remote])
    order = order_of(both)
    is_remote = order >= len(local)
    found = np.zeros(len(order), np.bool_)
    found[1:] = ~differ(both[order[1:]], both[order[:-1]])
    found = found[is_remote]
    return Match(np.cumsum(~is_remote)[is_remote] - found, found)


def rank(ids: SyncIds, bound: SyncId) -> int:
    """Count the ascending IDs that are before a bound."""
    return int(match(ids, SyncIds.of([bound])).places[0])
