"""The keys of one session, and short IDs under them.

    h(x) = w0 k0 + w1 k1 + w2 k2 + w3 k3   in GF(2^64), modulo x^64 + x^4 + x^3 + x + 1

where w are the little-endian words of a hash and k comes of the nonces by BLAKE2b. A short ID is
the lower 48 bits. For two sets of hashes with different XORs, chosen without the key, the
XORs of their short IDs are equal with a probability of 2^-48.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import Ints, Words
from reconcile.index.rows import Rows
from storenode.message.limits import HASH_BYTES

NONCE_BYTES: Final = 16
SHORT_BYTES: Final = 6
SHORT_MASK: Final = (1 << (8 * SHORT_BYTES)) - 1
_TURNS: Final = 3
TALLIED: Final = _TURNS * 8 * SHORT_BYTES
"""Balances of short IDs, by their bits and by two of these."""

_KEY_WORDS: Final = 4
_COLUMN: Final = f"={_KEY_WORDS + 1}Q"
_PERSON: Final = b"compact-1"
_POLYNOMIAL: Final = 0x1B
_WORD: Final = (1 << 64) - 1
NO_WORDS: Final = np.empty(0, np.uint64)
_AT_ONCE: Final = 4_096
"""Hashes whose intermediate values fit a processor's cache."""


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """What both sides derive from the nonces of both.

    Attributes:
        short: of short IDs.
        salts: of the tables, one after the other.
    """

    short: ShortKey
    salts: tuple[int, ...] = field(repr=False)

    @classmethod
    def derive(cls, initiator: bytes, responder: bytes) -> SessionKeys:
        """From two nonces of ``NONCE_BYTES``.

        Raises:
            ValueError: a nonce has another length.
        """
        if {len(initiator), len(responder)} != {NONCE_BYTES}:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes: pass whole nonces")
        made = blake2b(initiator + responder, person=_PERSON).digest()
        words = struct.unpack("<8Q", made)
        return cls(ShortKey(words[:_KEY_WORDS]), words[_KEY_WORDS:])


def first_key(nonce: bytes) -> ShortKey:
    """For the first frame, before the responder's nonce is known.

    Raises:
        ValueError: the nonce has another length.
    """
    return SessionKeys.derive(nonce, bytes(NONCE_BYTES)).short


def tally(shorts: Words) -> Ints:
    """``(TALLIED,)``: the sum over short IDs of +1, or of -1 where a bit is set, of each bit.

    Then the same of each bit XOR the one that is one place below it, around, two places, and so on.
    """
    balances = np.empty((_TURNS, 8 * SHORT_BYTES), np.int64)
    if kernel.compiled is not None:
        kernel.compiled.tally(shorts, balances.reshape(-1))
        return balances.reshape(-1)
    for turn, found in enumerate(balances):
        turned = shorts
        if turn:
            turned = shorts ^ shorts << np.uint64(turn) ^ shorts >> np.uint64(len(found) - turn)
        octets = turned.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :SHORT_BYTES]
        ones = np.unpackbits(octets, axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
        found[:] = len(shorts) - 2 * ones
    return balances.reshape(-1)


class Multiply(IntEnum):
    """With what compiled code multiplies; all of them find the same."""

    BEST = 0
    TABLES = 1
    CLMUL = 2
    PAIRS = 3


class ShortKey:
    """Computes short IDs.

    Args:
        words: four of 64 bits.
        multiply: with what; only tests choose, for processors that have less.
    """

    def __init__(self, words: tuple[int, ...], *, multiply: Multiply = Multiply.BEST) -> None:
        self._words = words
        self.column: Words = np.frombuffer(struct.pack(_COLUMN, *words, multiply), np.uint64)

    def __repr__(self) -> str:
        return "ShortKey()"

    def of_hashes(self, hashes: NDArray[np.uint8]) -> Words:
        """``(n,)`` short IDs of ``(n, 32)`` hashes, or of XORs of hashes."""
        if kernel.compiled is not None:
            shorts = np.empty(len(hashes), np.uint64)
            kernel.compiled.shorten(np.ascontiguousarray(hashes), self.column, shorts)
            return shorts
        found = np.zeros(len(hashes), np.uint64)
        for at in range(0, len(hashes), _AT_ONCE):
            some = slice(at, at + _AT_ONCE)
            for byte in range(HASH_BYTES):
                found[some] ^= self._tables[byte].take(hashes[some, byte])
        found &= np.uint64(SHORT_MASK)
        return found

    def of_xor(self, xor: Words) -> int:
        """The short ID of one hash, or of an XOR of hashes: ``(4,)`` words."""
        return int(self.of_hashes(xor.view(np.uint8).reshape(1, -1))[0])

    def of_places(self, rows: Rows, low: Ints, high: Ints) -> Words:
        """Short IDs of the IDs in ascending intervals of places."""
        count = int((high - low).sum())
        if kernel.compiled is not None:
            shorts = np.empty(count, np.uint64)
            kernel.compiled.fill(rows.handle, low, high, self.column, NO_WORDS, NO_WORDS, shorts)
            return shorts
        ends = (high - low).cumsum()
        places = np.arange(count) + np.repeat(low - ends + (high - low), high - low)
        return self.of_hashes(rows.hashes(places)) if count else NO_WORDS

    @cached_property
    def _tables(self) -> Words:
        """``(32, 256)``: the product of every byte at every place."""
        tables = np.zeros((HASH_BYTES, 256), np.uint64)
        for byte in range(HASH_BYTES):
            power = self._words[byte // 8]
            for _ in range(8 * (byte % 8)):
                power = _times_x(power)
            for bit in range(8):
                size = 1 << bit
                tables[byte, size : 2 * size] = tables[byte, :size] ^ np.uint64(power)
                power = _times_x(power)
        return tables


def _times_x(value: int) -> int:
    return (value << 1 & _WORD) ^ (_POLYNOMIAL if value >> 63 else 0)
