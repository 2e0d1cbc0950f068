"""Mutations of bytes that ignore their meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

VARINTS: Final = (
    *(b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x10", b"\x80\x00"),
    *(b"\xff\xff\xff\xff\x7f", b"\xff" * 8 + b"\x7f", b"\xff" * 12, b"\x80\x01", b"\x00", b"\x7f"),
)
"""Varints that are small, large, the largest, too large, or longer than needed."""

MAX_REPEATED_BYTES: Final = 200_000

Mutation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
"""A function that changes bytes, given other samples."""


def pick_position(data: bytes, rng: random.Random) -> int:
    """Return a random position in bytes, or their end."""
    return rng.randrange(len(data) + 1)


def flip(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    """Change some bits."""
    changed = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _end(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    return data[: pick_position(data, rng)]


def _cut(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    first = pick_position(data, rng)
    return data[:first] + data[first + rng.randrange(40) :]


def _repeat(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    first, last = sorted((pick_position(data, rng), pick_position(data, rng)))
    times = min(rng.choice((2, 3, 100)), 1 + MAX_REPEATED_BYTES // (last - first + 1))
    return data[:first] + data[first:last] * times + data[last:]


def _splice(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else b""
    return data[: pick_position(data, rng)] + other[pick_position(other, rng) :]


def _claim(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    first = pick_position(data, rng)
    return data[:first] + rng.choice(VARINTS) + data[first + rng.randrange(3) :]


def _noise(data: bytes, rng: random.Random, _others: Sequence[bytes]) -> bytes:
    first = pick_position(data, rng)
    return data[:first] + rng.randbytes(rng.choice((1, 4, 200))) + data[first:]


MUTATIONS: Final[tuple[Mutation, ...]] = (flip, _end, _cut, _repeat, _splice, _claim, _noise)
