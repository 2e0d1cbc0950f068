"""Sums of sets of messages that cannot be forged, and that need no key: LtHash16-1024 over BLAKE3.

An element is a message's timestamp, hash and content digest (`SyncIds.elements`): the hash alone
does not determine the content. Each element is expanded to 1,024 numbers of 16 bits, and the sum of
a set is that of its expansions, number by number, modulo 2^16. Two different sets of equal sums are
a short solution of a random lattice problem (Bellare and Micciancio, "A New Paradigm for
Collision-Free Hashing"; Lewi, Kim, Maykov, Weis, "Securing Update Propagation with Homomorphic
Hashing", who estimate more than 200 bits for these numbers). The XOR of hashes has no such
property: linear algebra forges it.

The expansion is the extendable output of BLAKE3 over the 56 bytes of an element, 2,048 bytes, read
as little-endian numbers. An element that is added 2^16 times cancels: these are sums of sets, in
which each element is once, and the count goes into the digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile import kernel
from reconcile.ids import ELEMENT_BYTES

ELEMENTS: Final = 1_024
STATE_BYTES: Final = 2 * ELEMENTS
DIGEST_BYTES: Final = 32

_MOST_COMPILED: Final = 2_000_000
_MOST_BY_ARRAYS: Final = 50_000
_ELEMENT: Final = np.dtype("<u2")
_WORD: Final = np.dtype("<u4")
_BLOCKS: Final = 32
_BLOCK_WORDS: Final = 16
_ELEMENT_WORDS: Final = ELEMENT_BYTES // 4
_AT_ONCE: Final = 256
"""Elements that are expanded by arrays at a time: their intermediate values stay in the cache."""

_START: Final = np.array(
    [
        *(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A),
        *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19),
    ],
    np.uint32,
)
_FLAGS: Final = 11
"""BLAKE3's CHUNK_START, CHUNK_END and ROOT: the input is one block."""

_PERMUTATION: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_ROUNDS: Final = 7
_MIXED: Final = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)

State = NDArray[np.uint16]
Words = NDArray[np.uint32]


def most_summed() -> int:
    """Return how many elements a question may have expanded: about a second of processor time."""
    return _MOST_BY_ARRAYS if kernel.compiled is None else _MOST_COMPILED


def _zero() -> State:
    return np.zeros(ELEMENTS, _ELEMENT)


@dataclass(frozen=True, slots=True, eq=False)
class LatticeSum:
    """The sum of a set of messages.

    Attributes:
        count: how many.
        state: ``(1024,)`` little-endian 16-bit elements, never changed.
    """

    count: int = 0
    state: State = field(default_factory=_zero, repr=False)

    @classmethod
    def of(cls, elements: bytes | NDArray[np.uint8]) -> LatticeSum:
        """Return the sum of elements of 56 bytes each, one after the other, each there once."""
        rows = np.frombuffer(elements, np.uint8).reshape(-1, ELEMENT_BYTES)
        state = _zero()
        if kernel.compiled is None or not kernel.compiled.lattice(rows, state):
            for at in range(0, len(rows), _AT_ONCE):
                state += _expanded(rows[at : at + _AT_ONCE]).sum(axis=0, dtype=_ELEMENT)
        return cls(len(rows), state)

    @classmethod
    def total(cls, parts: Sequence[LatticeSum]) -> LatticeSum:
        """Return the sum of the union of disjoint sets."""
        state = _zero()
        for part in parts:
            state += part.state
        return cls(sum(part.count for part in parts), state)

    @classmethod
    def stored(cls, count: int, state: bytes) -> LatticeSum:
        """Return the sum whose `state_bytes` were kept.

        Raises:
            ValueError: it has another length.
        """
        if len(state) != STATE_BYTES:
            raise ValueError(f"a lattice sum has {STATE_BYTES} bytes, not {len(state)}")
        return cls(count, np.frombuffer(state, _ELEMENT))

    def __add__(self, other: LatticeSum) -> LatticeSum:
        """Return the sum of the union of two disjoint sets."""
        return LatticeSum(self.count + other.count, self.state + other.state)

    def __sub__(self, other: LatticeSum) -> LatticeSum:
        """Return the sum without a subset."""
        return LatticeSum(self.count - other.count, self.state - other.state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatticeSum):
            return NotImplemented
        return self.count == other.count and bool((self.state == other.state).all())

    __hash__ = None  # type: ignore[assignment]

    def state_bytes(self) -> bytes:
        """Return the state: `STATE_BYTES`."""
        return self.state.tobytes()

    def digest(self) -> bytes:
        """Return what two stores compare: BLAKE2b-256 of the state and the count, 64 bits."""
        content = self.state_bytes() + self.count.to_bytes(8, "little")
        return blake2b(content, digest_size=DIGEST_BYTES).digest()


def _expanded(rows: NDArray[np.uint8]) -> State:
    """Return the expansions ``(n, 1024)`` of elements ``(n, 56)``, by arrays."""
    message = [
        rows.view(_WORD)[:, word, np.newaxis].astype(np.uint32) if word < _ELEMENT_WORDS else None
        for word in range(_BLOCK_WORDS)
    ]
    shape = len(rows), _BLOCKS
    values = [np.full(shape, word, np.uint32) for word in (*_START, *_START[:4])]
    values.append(np.tile(np.arange(_BLOCKS, dtype=np.uint32), (len(rows), 1)))
    values += [np.full(shape, number, np.uint32) for number in (0, ELEMENT_BYTES, _FLAGS)]
    for _ in range(_ROUNDS):
        for number, (a, b, c, d) in enumerate(_MIXED):
            for at, (down, up) in enumerate(((16, 12), (8, 7))):
                _half(values, (a, b, c, d), message[2 * number + at], down, up)
        message = [message[word] for word in _PERMUTATION]
    low = [one ^ other for one, other in zip(values[:8], values[8:], strict=True)]
    high = [one ^ word for one, word in zip(values[8:], _START, strict=True)]
    words = np.stack([*low, *high], axis=-1).astype(_WORD)
    return words.reshape(len(rows), -1).view(_ELEMENT)


def _half(
    values: list[Words], at: tuple[int, int, int, int], word: Words | None, down: int, up: int
) -> None:
    """Apply half of BLAKE3's mixing function; a word of the message that is None is zero."""
    a, b, c, d = (values[place] for place in at)
    a += b
    if word is not None:
        a += word
    d ^= a
    _rotate(d, down)
    c += d
    b ^= c
    _rotate(b, up)


def _rotate(values: Words, bits: int) -> None:
    """Rotate to the right, in place."""
    wrapped = values << np.uint32(32 - bits)
    values >>= np.uint32(bits)
    values |= wrapped
