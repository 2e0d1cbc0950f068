"""Fingerprints of sets under a key that only the two sides of a session know.

The fingerprint of WAKU-SYNC is the XOR of hashes: who may publish finds sets of messages with the
same XOR by solving linear equations. Here each hash goes through a pseudorandom function before
the XOR:

    F(S) = XOR of SipHash-2-4-128(fold key, hash) over S
    digest = BLAKE2b-128(digest key, F || count || bounds)

For two different sets that were chosen without the key, the digests are equal with a probability
of 2^-128, plus what can be gained against SipHash. Digests do not show F, of which 129 would do to
solve the equations again.

Where digests differ although the XORs agreed, the sides reconcile once more with *aliases*: each
hash is replaced by 256 bits of the pseudorandom function, whose XOR cannot be aimed at.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import HASH_DTYPE, Bools, Ints, SyncId, SyncIds, Words, ordered
from reconcile.index import IndexView
from reconcile.lattice import LatticeSum
from storenode.message.limits import HASH_BYTES

NONCE_BYTES: Final = 16
SUM_WORDS: Final = 2
DIGEST_BYTES: Final = 16

_KEY_BYTES: Final = 16
_PERSON: Final = b"storenode-pair"
_LATTICE: Final = b"storenode-sums"
_LITTLE: Final = np.dtype("<u8")
_AT_ONCE: Final = 8_192
"""Hashes whose intermediate values fit a processor's cache."""

_BEGIN: Final = (
    0x736F6D6570736575,
    0x646F72616E646F6D ^ 0xEE,
    0x6C7967656E657261,
    0x7465646279746573,
)
_LAST: Final = np.uint64(HASH_BYTES << 56)


@dataclass(frozen=True, slots=True)
class PairKey:
    """The keys of one session; never shown, logged or stored.

    Attributes:
        fold: 16 bytes, for the sum of a set.
        digest: 16 bytes, for what is sent of it.
        aliases: twice 16 bytes, for the two halves of an alias.
    """

    fold: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    aliases: tuple[bytes, bytes] = field(repr=False)

    @classmethod
    def derive(cls, nonces: tuple[bytes, bytes], names: tuple[str, ...]) -> PairKey:
        """From the nonces, the initiator's first, and the names of both sides in a fixed order."""
        hashed = blake2b(digest_size=4 * _KEY_BYTES, person=_PERSON)
        for part in (*nonces, *(name.encode() for name in names)):
            hashed.update(struct.pack("<I", len(part)) + part)
        made = hashed.digest()
        first, second, third, fourth = (
            made[at : at + _KEY_BYTES] for at in range(0, len(made), _KEY_BYTES)
        )
        return cls(first, second, (third, fourth))


@dataclass(frozen=True, slots=True)
class Sum:
    """A set as its digest has it.

    Attributes:
        count: of its IDs.
        folded: ``(2,)``, the XOR of the outputs; secret.
    """

    count: int
    folded: Words = field(repr=False)

    def __add__(self, other: Sum) -> Sum:
        """The sum of the union of two disjoint sets."""
        return Sum(self.count + other.count, self.folded ^ other.folded)


def sum_of(ids: SyncIds, key: bytes) -> Sum:
    """The sum of some IDs, each of which must be there once."""
    folded = np.zeros(SUM_WORDS, _LITTLE)
    for at in range(0, len(ids), _AT_ONCE):
        folded ^= np.bitwise_xor.reduce(siphash(key, ids.hashes[at : at + _AT_ONCE]), axis=1)
    return Sum(len(ids), folded)


def digest_of(key: PairKey, total: Sum, lower: SyncId, upper: SyncId) -> bytes:
    """What a side sends of a set between two bounds: `DIGEST_BYTES`."""
    hashed = blake2b(total.folded.tobytes(), digest_size=DIGEST_BYTES, key=key.digest)
    hashed.update(struct.pack("<Q", total.count))
    for timestamp, digest in (lower, upper):
        hashed.update(struct.pack("<Q", timestamp) + digest)
    return hashed.digest()


def lattice_digest_of(
    key: PairKey, total: LatticeSum, span: tuple[int, int], size: int = DIGEST_BYTES
) -> bytes:
    """What a side sends of the lattice sum of a half-open range of time, in nanoseconds."""
    hashed = blake2b(total.state_bytes(), digest_size=size, key=key.digest, person=_LATTICE)
    hashed.update(struct.pack("<QQQ", total.count, *span))
    return hashed.digest()


def siphash(key: bytes, hashes: NDArray[np.uint8]) -> Words:
    """SipHash-2-4 with 128 bits of output of ``(n, 32)`` bytes: ``(2, n)`` little-endian words."""
    words = np.ascontiguousarray(hashes).view(_LITTLE).T
    k = np.frombuffer(key, _LITTLE)
    v = [np.full(words.shape[1], np.uint64(begin) ^ k[i & 1]) for i, begin in enumerate(_BEGIN)]
    for message in (*words, _LAST):
        v[3] ^= message
        _rounds(v, 2)
        v[0] ^= message
    out = np.empty((SUM_WORDS, words.shape[1]), _LITTLE)
    for row, (changed, by) in enumerate(((2, 0xEE), (1, 0xDD))):
        v[changed] ^= np.uint64(by)
        _rounds(v, 4)
        out[row] = v[0] ^ v[1] ^ v[2] ^ v[3]
    return out


def _rounds(v: list[Words], count: int) -> None:
    a, b, c, d = v
    for _ in range(count):
        a += b
        c += d
        _rotate(b, 13)
        b ^= a
        _rotate(d, 16)
        d ^= c
        _rotate(a, 32)
        c += b
        a += d
        _rotate(b, 17)
        b ^= c
        _rotate(d, 21)
        d ^= a
        _rotate(c, 32)


def _rotate(words: Words, by: int) -> None:
    low = words >> np.uint64(64 - by)
    words <<= np.uint64(by)
    words |= low


# Aliases


def aliases_of(ids: SyncIds, key: PairKey) -> SyncIds:
    """The same IDs, row by row, with aliases instead of hashes."""
    aliases = np.empty((len(ids), HASH_BYTES), HASH_DTYPE)
    words = aliases.view(_LITTLE)
    for at in range(0, len(ids), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        for half, own in enumerate(key.aliases):
            words[some, 2 * half : 2 * half + 2] = siphash(own, ids.hashes[some]).T
    return SyncIds(ids.timestamps, aliases)


class Aliased:
    """Some IDs under their aliases.

    Attributes:
        view: of the aliases.
    """

    def __init__(self, ids: SyncIds, key: PairKey) -> None:
        self._ids = ids
        self._key = key
        aliases = aliases_of(ids, key)
        self._sorted = _Sorted(aliases)
        self.view = IndexView.of(aliases)

    def originals(self, aliases: SyncIds) -> SyncIds:
        """The IDs behind some aliases of the view, ascending."""
        places, hit = self._sorted.find(aliases)
        assert hit.all(), "an alias is none of this view"
        return ordered(self._ids.take(places))

    def revealed(self, aliases: SyncIds, hashes: bytes) -> tuple[SyncIds, bool]:
        """The peer's IDs behind some aliases, which it says have these hashes.

        Also whether each alias has one and there is no other; what fits is returned in any case.
        """
        rows = np.frombuffer(bytearray(hashes), HASH_DTYPE).reshape(-1, HASH_BYTES)
        made = aliases_of(SyncIds(np.zeros(len(rows), np.int64), rows), self._key)
        places, hit = _Sorted(aliases).find(made)
        ids = ordered(SyncIds(aliases.timestamps[places[hit]], rows[hit]))
        return ids, bool(hit.all()) and len(ids) == len(rows) == len(aliases)


class _Sorted:
    """Aliases, to be found by their first words: these are as good as random."""

    def __init__(self, aliases: SyncIds) -> None:
        self._order = np.argsort(aliases.words[:, 0])
        self._words = aliases.words[self._order]

    def find(self, aliases: SyncIds) -> tuple[Ints, Bools]:
        """Of each alias its row among these, unspecified where there is none; and if there is."""
        if not len(self._order):
            return np.zeros(len(aliases), np.int64), np.zeros(len(aliases), np.bool_)
        places = np.searchsorted(self._words[:, 0], aliases.words[:, 0])
        places = np.minimum(places, len(self._order) - 1)
        hit = (self._words[places] == aliases.words).all(axis=1)
        return self._order[places], hit
