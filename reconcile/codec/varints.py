"""Varints of WAKU-SYNC in bulk (WAKU-SYNC, "Varint encoding": minimal LEB128).

A varint is read from, and written as, the eight bytes from its first byte on, in one 64-bit
word: the bytes after its end are somebody else's. Words are little-endian whatever the machine.
What does not fit in eight bytes has a ninth, which the caller moves by itself.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORD_BYTES: Final = 8
WORD: Final = np.dtype("<u8")
MAX_VARINT_BYTES: Final = 9
"""Of a value up to 2^63-1."""

Words = NDArray[np.uint64]

_LOW_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_ALL_BITS: Final = np.uint64(2**64 - 1)
_ONE: Final = np.uint64(1)
_EIGHT: Final = np.uint64(8)
_BITS_TO_BYTES: Final = np.uint8(3)
# Merging neighbours: 7 bits per byte, 14 per two, 28 per four, 56 per eight.
_STEPS: Final = tuple(
    (np.uint64(low), np.uint64(high), np.uint64(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
)
_GROUPS_IN_WORD: Final = np.uint64(2**56 - 1)
_CONTINUATION: Final = np.array(
    [0, *(0x8080808080808080 & ((1 << 8 * n) - 1) for n in range(8)), 0x8080808080808080],
    np.uint64,
)
"""By length in bytes, the continuation bits of the first eight."""

_CHUNK: Final = 16_384
"""Words at a time: what is made of them meanwhile stays in the processor's cache."""


def word_windows(data: bytes | NDArray[np.uint8]) -> Words:
    """``(len - 7,)``, or none: the word at every offset, unaligned; memory is shared."""
    return np.ndarray((max(len(data) - WORD_BYTES + 1, 0),), WORD, data, strides=(1,))


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes to read from, seen in three ways; memory is shared.

    Attributes:
        data: the bytes, quickest to look at one by one.
        octets: ``(n,)`` the bytes as an array.
        words: ``(n - 7,)``, or none: the word at every offset.
    """

    data: bytes
    octets: NDArray[np.uint8]
    words: Words

    @classmethod
    def of(cls, data: bytes) -> "Source":
        """A view of some bytes."""
        return cls(data, np.frombuffer(data, np.uint8), word_windows(data))


def unfinished(words: Words) -> NDArray[np.bool_]:
    """``(n,)``: does the varint go on after its eighth byte."""
    result: NDArray[np.bool_] = (words | _LOW_BITS) == _ALL_BITS
    return result


def varint_lengths(words: Words) -> NDArray[np.uint8]:
    """``(n,)`` lengths in bytes, 1 to 8; 8 also where it is unfinished."""
    # Adding one turns over the bits up to the first stop bit, and no other.
    own = words | _LOW_BITS
    own ^= own + _ONE
    lengths: NDArray[np.uint8] = np.bitwise_count(own)
    lengths >>= _BITS_TO_BYTES
    return lengths


def varint_values(words: Words) -> tuple[Words, NDArray[np.uint8], NDArray[np.bool_]]:
    """``(n,)`` values, lengths, and whether each is a minimal varint of at most eight bytes.

    The value of one that is not minimal is right all the same; of a longer one it is what its
    first eight bytes give, and its length is 8.
    """
    values = np.empty(len(words), np.uint64)
    lengths = np.empty(len(words), np.uint8)
    sound = np.empty(len(words), np.bool_)
    spare = np.empty(min(len(words), _CHUNK), np.uint64)
    for begin in range(0, len(words), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        _read(words[chunk], values[chunk], lengths[chunk], sound[chunk], spare)
    return values, lengths, sound


def _read(
    words: Words,
    own: Words,
    lengths: NDArray[np.uint8],
    sound: NDArray[np.bool_],
    spare: Words,
) -> None:
    spare = spare[: len(words)]
    np.bitwise_or(words, _LOW_BITS, out=own)
    np.not_equal(own, _ALL_BITS, out=sound)
    np.add(own, _ONE, out=spare)
    own ^= spare
    np.bitwise_count(own, out=lengths)
    lengths >>= _BITS_TO_BYTES
    np.right_shift(own, _EIGHT, out=spare)
    own &= words
    own &= _LOW_BITS
    # Seven bits a byte: less than all bits below the last byte only if that is zero.
    sound &= own >= spare
    for low, high, shift in _STEPS:
        np.bitwise_and(own, high, out=spare)
        spare >>= shift
        own &= low
        own |= spare


def varint_sizes(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """``(n,)`` lengths in bytes, 1 to 9, of non-negative values."""
    lengths = np.ones(len(values), np.uint8)
    most = int(values.max(initial=0))
    for begin in range(0, len(values), _CHUNK):
        chunk, sizes = values[begin : begin + _CHUNK], lengths[begin : begin + _CHUNK]
        for length in range(1, MAX_VARINT_BYTES):
            if most < 1 << 7 * length:
                break
            sizes += chunk >= 1 << 7 * length
    return lengths


def varint_words(values: NDArray[np.int64], lengths: NDArray[np.uint8]) -> Words:
    """``(n,)`` first eight bytes of each varint, zeros after its end."""
    words = values.astype(WORD)
    spare = np.empty(min(len(values), _CHUNK), WORD)
    for begin in range(0, len(values), _CHUNK):
        own = words[begin : begin + _CHUNK]
        _spread(own, lengths[begin : begin + _CHUNK], spare[: len(own)])
    return words


def _spread(own: Words, lengths: NDArray[np.uint8], spare: Words) -> None:
    own &= _GROUPS_IN_WORD
    for low, high, shift in reversed(_STEPS):
        np.left_shift(own, shift, out=spare)
        spare &= high
        own &= low
        own |= spare
    own |= _CONTINUATION[lengths]
