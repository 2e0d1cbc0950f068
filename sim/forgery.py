"""Sets of messages that the fingerprint of WAKU-SYNC cannot tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CANDIDATES: Final = 258
"""Among so many hashes some of an even number have the XOR zero: they have 257 bits with a one."""


def forged_halves(hashes: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Two disjoint sets of places, of one size, whose hashes have the same XOR.

    Gaussian elimination over GF(2); takes `CANDIDATES` hashes.
    """
    rows: dict[int, tuple[int, int]] = {}
    for place, digest in enumerate(hashes):
        # The bit above the hash counts the places.
        value, used = int.from_bytes(digest) | 1 << 256, 1 << place
        while value and (found := rows.get(value.bit_length())) is not None:
            value, used = value ^ found[0], used ^ found[1]
        if not value:
            chosen = [at for at in range(len(hashes)) if used >> at & 1]
            return chosen[::2], chosen[1::2]
        rows[value.bit_length()] = value, used
    raise AssertionError("these hashes are independent")
