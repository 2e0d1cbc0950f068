"""Keyed sums and aliases, against code that a reader can see is right."""

from __future__ import annotations

import random
import struct
from functools import reduce
from operator import xor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile import kernel
from reconcile.folds import Folds
from reconcile.ids import END, LOWEST, SyncId, SyncIds
from reconcile.index import Index, IndexView
from reconcile.keyed import (
    Aliased,
    PairKey,
    aliases_of,
    digest_of,
    siphash,
    sum_of,
)
from sim.messages import CANDIDATES, forged_halves

MASK = 2**64 - 1
KEY = bytes(range(16))
NAMES = ("a", "store-a", "b", "store-b")
PAIR = PairKey.derive((bytes(16), bytes(range(16))), NAMES)

ids_of = st.lists(
    st.tuples(st.integers(0, 40), st.binary(min_size=32, max_size=32)), unique=True, max_size=80
).map(sorted)


def rotated(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & MASK


def naive_siphash(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 with 128 bits of output, as its paper and its reference code have it."""
    k0, k1 = struct.unpack("<QQ", key)
    a, b = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE
    c, d = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal a, b, c, d
        for _ in range(count):
            a, c = (a + b) & MASK, (c + d) & MASK
            b, d = rotated(b, 13) ^ a, rotated(d, 16) ^ c
            a = rotated(a, 32)
            c, a = (c + b) & MASK, (a + d) & MASK
            b, d = rotated(b, 17) ^ c, rotated(d, 21) ^ a
            c = rotated(c, 32)

    whole = len(message) // 8 * 8
    words = [word for (word,) in struct.iter_unpack("<Q", message[:whole])]
    last = int.from_bytes(message[whole:], "little") | (len(message) & 255) << 56
    for word in (*words, last):
        d ^= word
        rounds(2)
        a ^= word
    c ^= 0xEE
    rounds(4)
    first = a ^ b ^ c ^ d
    b ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", first, a ^ b ^ c ^ d)


def naive_sum(key: bytes, ids: list[SyncId]) -> bytes:
    outputs = (int.from_bytes(naive_siphash(key, digest)) for _, digest in ids)
    return reduce(xor, outputs, 0).to_bytes(16)


@pytest.mark.parametrize(
    ("message", "output"),
    [
        (b"", "a3817f04ba25a8e66df67214c7550293"),
        (b"\0", "da87c1d86b99af44347659119b22fc45"),
        (bytes(range(32)), "7c3956ca5eeafc3e363e9d556546eb68"),
    ],
)
def test_the_oracle_gives_the_published_outputs(message: bytes, output: str) -> None:
    assert naive_siphash(KEY, message).hex() == output


@given(st.binary(min_size=16, max_size=16), ids_of)
def test_many_hashes_at_once_are_as_one_by_one(key: bytes, ids: list[SyncId]) -> None:
    made = siphash(key, SyncIds.of(ids).hashes).T.tobytes()
    assert made == b"".join(naive_siphash(key, digest) for _, digest in ids)


@given(st.binary(min_size=16, max_size=16), ids_of, st.integers(0, 41), st.integers(0, 41))
def test_the_sum_of_a_range_of_a_view(key: bytes, ids: list[SyncId], one: int, other: int) -> None:
    lower, upper = sorted([(one, bytes(32)), (other, bytes(32))])
    index = Index(min_chunk_ids=8)
    for each in ids:
        index.insert(SyncIds.of([each]))
    inside = [each for each in ids if lower <= each < upper]
    found = Folds(key).sum_of(index.view(), lower, upper)
    assert (found.count, found.folded.tobytes()) == (len(inside), naive_sum(key, inside))
    with kernel.python_only():
        plain = Folds(key).sum_of(index.view(), lower, upper)
    assert (plain.count, plain.folded.tobytes()) == (len(inside), naive_sum(key, inside))


def test_sums_across_blocks_and_vectors() -> None:
    random = np.random.default_rng(5)
    for count in (*range(1, 20), 63, 64, 65, 1_000, 9_000):
        hashes = random.integers(0, 256, (count, 32), np.uint8)
        ids = SyncIds(np.arange(count), hashes)
        found = Folds(KEY).sum_of(IndexView.of(ids), LOWEST, END)
        assert found.folded.tobytes() == naive_sum(KEY, ids.pairs()), count
        assert np.array_equal(sum_of(ids, KEY).folded, found.folded), count


def test_intervals_that_are_none_are_refused() -> None:
    assert kernel.compiled is not None
    view = IndexView.of(SyncIds.of([(1, bytes(32))]))
    out, key = np.zeros(2, np.uint64), np.zeros(16, np.uint8)
    for interval in ([0, 2], [1, 0], [-1, 1], [0], [0, 1, 1]):
        with pytest.raises(ValueError, match="fold"):
            kernel.compiled.fold(view.rows.handle, np.array(interval), key, out)
    with pytest.raises(ValueError, match="whole rows"):
        kernel.compiled.fold(view.rows.handle, np.array([0, 1]), key[:15], out)


def test_a_digest_is_of_the_set_its_count_its_bounds_and_the_key() -> None:
    ids = SyncIds.of([(5, random.Random(20261127).randbytes(32))])
    total = sum_of(ids, PAIR.fold)
    one = digest_of(PAIR, total, LOWEST, END)
    others = [
        digest_of(PAIR, sum_of(SyncIds.empty(), PAIR.fold), LOWEST, END),
        digest_of(PAIR, total + sum_of(SyncIds.empty()[:0], PAIR.fold), (1, bytes(32)), END),
        digest_of(PAIR, total, LOWEST, (9, bytes(32))),
        digest_of(PairKey.derive((bytes(16), bytes(16)), NAMES), total, LOWEST, END),
    ]
    assert len({one, *others}) == 5
    twice = total + total
    assert not twice.folded.any()
    assert digest_of(PAIR, twice, LOWEST, END) != others[0], "the count tells them apart"


def test_a_key_is_of_both_nonces_and_of_all_names() -> None:
    nonces = bytes(16), bytes(range(16))
    keys = [
        PairKey.derive(nonces, NAMES),
        PairKey.derive((nonces[1], nonces[0]), NAMES),
        PairKey.derive((nonces[0], bytes(15) + b"\1"), NAMES),
        *(
            PairKey.derive(nonces, (*NAMES[:at], NAMES[at] + "x", *NAMES[at + 1 :]))
            for at in range(4)
        ),
        PairKey.derive(nonces, ("as", "tore-a", "b", "store-b")),
    ]
    assert len({key.fold for key in keys}) == len(keys)
    parts = {keys[0].fold, keys[0].digest, *keys[0].aliases}
    assert len(parts) == 4
    assert not any(part.hex() in repr(keys[0]) or repr(part) in repr(keys[0]) for part in parts)


def test_forged_sets_have_one_fingerprint_and_two_digests() -> None:
    dice = random.Random(20261127)
    hashes = [dice.randbytes(32) for _ in range(CANDIDATES)]
    halves = [
        SyncIds.of(sorted((place, hashes[place]) for place in half))
        for half in forged_halves(hashes)
    ]
    views = [IndexView.of(half) for half in halves]
    (count, print_), (other_count, other_print) = (view.fingerprint(LOWEST, END) for view in views)
    assert count == other_count > 50
    assert np.array_equal(print_, other_print)
    sums = [Folds(PAIR.fold).sum_of(view, LOWEST, END) for view in views]
    assert digest_of(PAIR, sums[0], LOWEST, END) != digest_of(PAIR, sums[1], LOWEST, END)
    aliased = [IndexView.of(aliases_of(half, PAIR)).fingerprint(LOWEST, END)[1] for half in halves]
    assert not np.array_equal(aliased[0], aliased[1])


@given(ids_of, st.data())
def test_aliases_lead_back(ids: list[SyncId], data: st.DataObject) -> None:
    aliased = Aliased(SyncIds.of(ids), PAIR)
    naive = {
        (timestamp, b"".join(naive_siphash(half, digest) for half in PAIR.aliases)): (
            timestamp,
            digest,
        )
        for timestamp, digest in ids
    }
    held = aliased.view.rows.between(0, len(aliased.view))
    assert held.pairs() == sorted(naive)
    some = sorted(data.draw(st.sets(st.sampled_from(sorted(naive))))) if ids else []
    wanted = sorted(naive[alias] for alias in some)
    found = SyncIds.of(some)
    assert aliased.originals(found).pairs() == wanted
    hashes = b"".join(naive[alias][1] for alias in some)
    told, exact = Aliased(SyncIds.empty(), PAIR).revealed(found, hashes)
    assert (told.pairs(), exact) == (wanted, True)


def test_hashes_of_other_aliases_are_told_apart() -> None:
    ids = [(1, b"\1" * 32), (2, b"\2" * 32)]
    aliases = aliases_of(SyncIds.of(ids), PAIR)
    aliased = Aliased(SyncIds.empty(), PAIR)
    for hashes, expected in (
        (b"", []),
        (b"\1" * 32, ids[:1]),
        (b"\1" * 64, ids[:1]),
        (b"\1" * 32 + b"\3" * 32, ids[:1]),
        (b"\1" * 32 + b"\2" * 32 + b"\3" * 32, ids),
    ):
        found, exact = aliased.revealed(aliases, hashes)
        assert (found.pairs(), exact) == (expected, False)
