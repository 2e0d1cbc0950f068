"""Lattice sums against BLAKE3 and additions as plain as they can be written."""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np
import pytest

from reconcile import kernel
from reconcile.ids import ELEMENT_BYTES, SyncIds, ordered
from reconcile.index import Index
from reconcile.lattice import ELEMENTS, STATE_BYTES, LatticeSum
from tests.unit.reconcile.answers import on_both

MASK = 0xFFFFFFFF
START = (
    *(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A),
    *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19),
)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
COLUMNS = [(column, column + 4, column + 8, column + 12) for column in range(4)]
DIAGONALS = [
    (first, 4 + (first + 1) % 4, 8 + (first + 2) % 4, 12 + (first + 3) % 4) for first in range(4)
]


def rotated(value: int, bits: int) -> int:
    return (value >> bits | value << (32 - bits)) & MASK


def block(content: bytes, counter: int) -> bytes:
    """Block ``counter`` of BLAKE3's output for an input of one block (its section 2.2)."""
    padded = content.ljust(64, b"\0")
    words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, 64, 4)]
    state = [*START, *START[:4], counter, 0, len(content), 1 | 2 | 8]
    for _ in range(7):
        for number, (a, b, c, d) in enumerate(COLUMNS + DIAGONALS):
            for word, bits in ((words[2 * number], (16, 12)), (words[2 * number + 1], (8, 7))):
                state[a] = (state[a] + state[b] + word) & MASK
                state[d] = rotated(state[d] ^ state[a], bits[0])
                state[c] = (state[c] + state[d]) & MASK
                state[b] = rotated(state[b] ^ state[c], bits[1])
        words = [words[place] for place in ORDER]
    low = [state[place] ^ state[place + 8] for place in range(8)]
    high = [state[place + 8] ^ START[place] for place in range(8)]
    return b"".join(word.to_bytes(4, "little") for word in low + high)


def naive(hashes: list[bytes]) -> list[int]:
    sums = [0] * ELEMENTS
    for digest in hashes:
        output = b"".join(block(digest, counter) for counter in range(STATE_BYTES // 64))
        for place in range(ELEMENTS):
            element = int.from_bytes(output[2 * place : 2 * place + 2], "little")
            sums[place] = (sums[place] + element) % 2**16
    return sums


def some(count: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(ELEMENT_BYTES) for _ in range(count)]


def test_the_plain_expansion_is_that_of_blake3() -> None:
    # The digest of nothing in BLAKE3's own examples, and its output for the bytes 0 to 31.
    assert block(b"", 0)[:32].hex() == (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    )
    content = bytes(range(32))
    assert block(content, 0)[:16].hex() == "e528e95798037df410543d9f31e396ec"
    assert block(content, 31)[-16:].hex() == "0d826d7ae4b985cd3d88c3577cbc28a2"


@pytest.mark.parametrize("count", [0, 1, 2, 33, 40])
def test_sums_are_those_of_the_plain_expansion(count: int) -> None:
    hashes = some(count)
    right = naive(hashes)
    for found in on_both(lambda: LatticeSum.of(b"".join(hashes))):
        assert found.count == count
        assert found.state.tolist() == right


def test_sums_are_added_and_taken_away() -> None:
    hashes = some(50)
    whole, part = LatticeSum.of(b"".join(hashes)), LatticeSum.of(b"".join(hashes[:20]))
    rest = LatticeSum.of(b"".join(hashes[20:]))
    assert part + rest == rest + part == whole
    assert whole - part == rest != part
    assert whole - whole == LatticeSum()
    assert LatticeSum.stored(whole.count, whole.state_bytes()) == whole
    shuffled = random.Random(2).sample(hashes, len(hashes))
    assert LatticeSum.of(b"".join(shuffled)).digest() == whole.digest()


def test_a_digest_is_of_elements_and_count() -> None:
    total = LatticeSum.of(b"".join(some(3)))
    content = b"".join(value.to_bytes(2, "little") for value in naive(some(3)))
    assert total.digest() == blake2b(content + bytes([3]) + bytes(7), digest_size=32).digest()
    assert LatticeSum(4, total.state).digest() != total.digest()
    assert total != LatticeSum(4, total.state)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="2048 bytes, not 2047"):
        LatticeSum.stored(1, bytes(STATE_BYTES - 1))
    with pytest.raises(ValueError, match="reshape"):
        LatticeSum.of(bytes(57))
    if kernel.compiled is not None:
        for elements, state in ((57, STATE_BYTES), (56, STATE_BYTES - 2), (56, 2 * STATE_BYTES)):
            with pytest.raises(ValueError, match="column"):
                kernel.compiled.lattice(np.zeros(elements, np.uint8), np.zeros(state, np.uint8))


def test_an_index_has_the_sums_of_any_range_however_it_came_to_be() -> None:
    rng = np.random.default_rng(1)
    index, expected = Index(min_chunk_ids=5_000), SyncIds.empty()
    for turn in range(24):
        count, low = int(rng.choice([1, 60, 6_000])), turn * 10**6 if turn % 3 else 0
        some_ids = SyncIds(
            rng.integers(low, (turn + 1) * 10**6, count),
            rng.integers(0, 256, (count, 32), np.uint8),
            rng.integers(0, 256, (count, 16), np.uint8),
        )
        index.insert(some_ids)
        expected = ordered(SyncIds.join([expected, some_ids]))
        if turn % 5 == 4:
            bound = expected.at(len(expected) // 20)
            index.prune(bound)
            expected = expected[len(expected) // 20 :]
        index.check()
        rows = index.view()
        low, high = sorted(rng.integers(0, len(expected) + 1, 2).tolist())
        for first, last in ((0, len(expected)), (low, high), (low, low)):
            assert rows.lattice(first, last) == LatticeSum.of(expected[first:last].elements)
        assert rows.unsummed(0, len(expected)) < 4_096 * (2 * len(rows.chunks) + 1)
