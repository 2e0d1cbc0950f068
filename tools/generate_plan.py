"""Works out `reconcile/algorithm/plan_tables.py`: how finely to split a reconciliation.

`python tools/generate_plan.py` rewrites the module. What the tables say is described in
`reconcile.algorithm.plan`. A test compares them with what this gives.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from pathlib import Path
from textwrap import wrap
from zlib import compress

import numpy as np
from numpy.typing import NDArray

from reconcile.algorithm.plan import (
    DEPTHS,
    FAN_OUTS,
    ITEM_BYTES,
    LOWEST_RATE_STEP,
    RATE_STEPS,
    SIZE_STEPS,
    STEPS_PER_DOUBLING,
    Floats,
)

MODULE = Path(__file__).resolve().parent.parent / "reconcile" / "algorithm" / "plan_tables.py"

# Bytes, and the time that goes with a record as so many bytes more.
FINGERPRINT_BYTES = 50.0  # a bound, a type, 32 bytes
SET_BYTES = 40.0  # what a set takes besides its items
NAMED_BYTES = 75.0  # a Skip and a set of one item
DIFFERENCE_BYTES = 31.0  # one difference in the answer to a set: a half of them carry a hash
PROBE_BYTES = 0.2  # what searching an item takes, as the time that goes with so many bytes

TEXT = '''"""The tables of how finely to split: made by `tools/generate_plan.py`, never edited."""

TABLES = (
{lines}
)
"""``(depths, 3, sizes, rates)`` bytes, compressed, in base 64."""
'''


@cache
def _grid() -> tuple[Floats, Floats, Floats]:
    """Return sizes, rates, and the mean number of differences where there is at least one."""
    sizes = 2.0 ** (np.arange(SIZE_STEPS) / STEPS_PER_DOUBLING)
    rates = 2.0 ** ((np.arange(RATE_STEPS) + LOWEST_RATE_STEP) / STEPS_PER_DOUBLING)
    return sizes, rates, rates / -np.expm1(-rates)


def _look_up(table: Floats, sizes: Floats, means: Floats) -> Floats:
    """Interpolate the cost at any size and any mean number of differences."""
    _, rates, grid_means = _grid()
    log_rates = np.interp(np.log(means), np.log(grid_means), np.log2(rates))
    column = log_rates * STEPS_PER_DOUBLING - LOWEST_RATE_STEP
    row = np.clip(np.log2(np.maximum(sizes, 1)) * STEPS_PER_DOUBLING, 0, SIZE_STEPS - 1)
    i = np.minimum(row.astype(np.int64), SIZE_STEPS - 2)
    j = np.minimum(column.astype(np.int64), RATE_STEPS - 2)
    down, right = row - i, column - j
    upper = table[i, j] * (1 - right) + table[i, j + 1] * right
    lower = table[i + 1, j] * (1 - right) + table[i + 1, j + 1] * right
    return np.asarray(upper * (1 - down) + lower * down)


def tables() -> NDArray[np.uint8]:
    """Compute the tables of the plan.

    Returns:
        ``(depths, 3, sizes, rates)``: whether to probe, then the positions of fan-outs after a
        probe and without one; 0 is the item set.
    """
    sizes, rates, means = _grid()
    size, mean = sizes[:, None], np.broadcast_to(means[None, :], (SIZE_STEPS, RATE_STEPS))
    single = np.broadcast_to(rates * np.exp(-rates) / -np.expm1(-rates), mean.shape)
    several = np.maximum((mean - single) / np.maximum(1 - single, 1e-12), 2.0)
    search, in_set = PROBE_BYTES * size, ITEM_BYTES * size + SET_BYTES
    several_as_set = in_set + DIFFERENCE_BYTES * several
    ours = single / 2
    missed = 1 - ours  # a search finds nothing
    theirs = ours / missed  # and that is because the one difference is theirs
    after = in_set + DIFFERENCE_BYTES * (mean - ours) / missed
    plain = in_set + DIFFERENCE_BYTES * mean
    found = search + ours * NAMED_BYTES
    found_tables, cost, several_cost = [], np.empty(0), several_as_set
    for depth in range(DEPTHS):
        best_after, best_plain, best_several = after, plain, several_as_set
        after_choice = plain_choice = np.zeros(mean.shape, np.uint8)
        for place, parts in enumerate(FAN_OUTS if depth else (), 1):
            sent, part, fits = FINGERPRINT_BYTES * parts, size / parts, parts <= size
            lone = _look_up(cost, part + 0 * mean, np.ones(mean.shape))
            if parts == 1:
                below = several_cost
            else:
                hit = np.minimum(-parts * np.expm1(several * np.log1p(-1 / parts)), size + 1)
                below = hit * _look_up(cost, part, np.maximum(several / hit, 1.0))
                this = sent + single * lone + (1 - single) * below
                better = fits & (this < best_plain)
                best_plain = np.where(better, this, best_plain)
                plain_choice = np.where(better, np.uint8(place), plain_choice)
                best_several = np.where(fits, np.minimum(best_several, sent + below), best_several)
            named = np.minimum(PROBE_BYTES * part + NAMED_BYTES, lone)
            this = sent + theirs * named + (1 - theirs) * below
            better = fits & (this < best_after)
            best_after = np.where(better, this, best_after)
            after_choice = np.where(better, np.uint8(place), after_choice)
        probed = found + missed * best_after
        worth = (probed < best_plain).astype(np.uint8)
        found_tables.append([worth, after_choice, plain_choice])
        cost, several_cost = np.minimum(probed, best_plain), best_several
    return np.array(found_tables, np.uint8)


def main() -> None:
    """Write the module."""
    text = b64encode(compress(tables().tobytes(), 9)).decode()
    lines = "\n".join(f'    b"{line}"' for line in wrap(text, 90))
    MODULE.write_text(TEXT.format(lines=lines), encoding="utf-8")


if __name__ == "__main__":
    main()
