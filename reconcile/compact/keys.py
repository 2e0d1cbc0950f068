"""The keys of one session, and short IDs under them.

    h(x) = w0 k0 + w1 k1 + w2 k2 + w3 k3   in GF(2^64), modulo x^64 + x^4 + x^3 + x + 1

where w are the little-endian words of a hash and k comes of the nonces by BLAKE2b. A short ID is
the lower 48 bits. For two sets of hashes with different XORs, chosen without the key, the
XORs of their short IDs are equal with a probability of 2^-48.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import Ints, Words
from reconcile.index import IndexView

NONCE_BYTES: Final = 16
SHORT_BYTES: Final = 6
SHORT_MASK: Final = (1 << (8 * SHORT_BYTES)) - 1
BIT_BALANCES: Final = 3 * 8 * SHORT_BYTES
"""Balances of short IDs: by each bit, and by its XOR with the bits one and two places below."""

_KEY_WORDS: Final = 4
_COLUMN: Final = f"={_KEY_WORDS + 1}Q"
_PERSON: Final = b"compact-1"
NO_WORDS: Final = np.empty(0, np.uint64)


def derive_keys(initiator: bytes, responder: bytes) -> tuple[ShortKey, tuple[int, ...]]:
    """Return the key of short IDs, and the salts of the tables in turn, of the nonces of both.

    Raises:
        ValueError: a nonce has not `NONCE_BYTES`.
    """
    if {len(initiator), len(responder)} != {NONCE_BYTES}:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes: pass whole nonces")
    words = struct.unpack("<8Q", blake2b(initiator + responder, person=_PERSON).digest())
    return ShortKey(words[:_KEY_WORDS]), words[_KEY_WORDS:]


def first_key(nonce: bytes) -> ShortKey:
    """Return the key of the first frame, before the responder's nonce is known.

    Raises:
        ValueError: the nonce has another length.
    """
    return derive_keys(nonce, bytes(NONCE_BYTES))[0]


def balance_bits(shorts: Words) -> Ints:
    """Return ``(BIT_BALANCES,)``: sums over short IDs of +1, or of -1 where a bit is set."""
    balances = np.empty(BIT_BALANCES, np.int64)
    kernel.require().tally(shorts, balances)
    return balances


class ShortKey:
    """A key under which short IDs are computed.

    Args:
        words: four of 64 bits.
        multiply: how the kernel multiplies, 0 for the best way; only tests choose another.
    """

    def __init__(self, words: tuple[int, ...], *, multiply: int = 0) -> None:
        self.column: Words = np.frombuffer(struct.pack(_COLUMN, *words, multiply), np.uint64)

    def __repr__(self) -> str:
        return "ShortKey()"

    def of_hashes(self, hashes: NDArray[np.uint8]) -> Words:
        """Return ``(n,)`` short IDs of ``(n, 32)`` hashes, or of XORs of hashes."""
        shorts = np.empty(len(hashes), np.uint64)
        kernel.require().shorten(np.ascontiguousarray(hashes), self.column, shorts)
        return shorts

    def of_xor(self, xor: Words) -> int:
        """Return the short ID of one hash, or of an XOR of hashes: ``(4,)`` words."""
        return int(self.of_hashes(xor.view(np.uint8).reshape(1, -1))[0])

    def of_places(self, rows: IndexView, low: Ints, high: Ints) -> Words:
        """Return the short IDs of the IDs in ascending intervals of places."""
        shorts = np.empty(int((high - low).sum()), np.uint64)
        kernel.require().fill(rows.handle, low, high, self.column, shorts)
        return shorts
