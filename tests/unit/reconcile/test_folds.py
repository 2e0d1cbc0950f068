"""Keyed sums that are kept while an index changes, against sums made anew."""

from __future__ import annotations

import random

import numpy as np
import pytest

from reconcile import folds as module
from reconcile import kernel
from reconcile.folds import Folds
from reconcile.ids import END, LOWEST, SyncIds
from reconcile.index import Index
from reconcile.keyed import sum_of

KEY = bytes(range(16))


def made(dice: random.Random, count: int, low: int, high: int) -> SyncIds:
    return SyncIds.of([(dice.randint(low, high), dice.randbytes(32)) for _ in range(count)])


@pytest.mark.parametrize("seed", range(30))
def test_sums_stay_true_while_an_index_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_IDS", 8)
    dice = random.Random(seed)
    kept = [Folds(KEY), Folds(KEY[::-1])]
    index = Index(min_chunk_ids=dice.choice((8, 40, 1_000)))
    index.load(made(dice, dice.choice((0, 300)), 0, 1_000))
    views = []
    for step in range(40):
        match dice.randrange(4):
            case 0:
                index.insert(made(dice, dice.randint(1, 30), 0, 1_000))
            case 1:
                index.insert(made(dice, dice.randint(1, 40), 1_000 + step, 1_000 + step))
            case 2:
                index.prune((dice.randint(0, 20 * step + 1), bytes(32)))
            case _:
                pass
        views.append(index.view())
        # Views that are older stay what they were, and may be asked again.
        view = dice.choice((views[-1], dice.choice(views)))
        ends = sorted(dice.choice((0, 10_000, dice.randint(0, 1_100))) for _ in range(2))
        lower, upper = (ends[0], bytes(32)), (ends[1], bytes(32))
        for folds in kept:
            found = folds.sum_of(view, lower, upper)
            plain = sum_of(view.rows.between(view.rank(lower), view.rank(upper)), folds.key)
            assert (found.count, found.folded.tolist()) == (plain.count, plain.folded.tolist())


def test_what_is_known_is_not_summed_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel.compiled is not None
    dice = random.Random(1)
    index = Index()
    index.load(made(dice, 50_000, 0, 10**9))
    folds = Folds(KEY)
    summed = 0
    compute = Folds._computed

    def counted(self: Folds, view: object, low: int, high: int) -> object:
        nonlocal summed
        summed += high - low
        return compute(self, view, low, high)  # type: ignore[arg-type]

    monkeypatch.setattr(Folds, "_computed", counted)
    first = folds.sum_of(index.view(), LOWEST, END)
    assert summed == 50_000
    assert np.array_equal(folds.sum_of(index.view(), LOWEST, END).folded, first.folded)
    index.insert(made(dice, 100, 10**9 + 1, 10**9 + 1))
    index.prune((10**7, bytes(32)))
    summed = 0
    folds.sum_of(index.view(), LOWEST, END)
    assert 0 < summed <= 3 * module._BLOCK_IDS


def test_a_key_is_not_shown() -> None:
    folds = Folds(KEY)
    assert len(folds.name) == module.NAME_BYTES
    assert KEY.hex() not in repr(folds)
    assert folds.name != Folds(KEY[::-1]).name
