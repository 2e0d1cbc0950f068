"""Processor time of compact sessions with 1,000 differences among ten times as many IDs.

Sessions of both sizes take turns in one process, so that whatever else the machine does slows both.
"""

from __future__ import annotations

import statistics
from typing import Final

import numpy as np

from bench.compact import Run, views_of
from bench.reconcile_sets import CASES, SEED, pair
from bench.support import report
from reconcile.compact.keys import NONCE_BYTES

NAMES: Final = ("d=1,000", "n=10,000,000, d=1,000")
FIRST: Final = 2
"""Sessions of each size that are not counted: they compute what an index keeps."""

BAR: Final = 2.0


def compare_sizes(turns: int, scale: float) -> None:
    """Run so many sessions of each size; a line with both, and by how much they are apart."""
    cases = [next(case for case in CASES if case.name == name) for name in NAMES]
    sets = [pair(case, scale) for case in cases]
    views = [views_of(some) for some in sets]
    random = np.random.default_rng(SEED)
    runs: list[list[Run]] = [[], []]
    for _ in range(FIRST + turns):
        for number in range(len(NAMES)):
            nonces = random.bytes(NONCE_BYTES), random.bytes(NONCE_BYTES)
            run = Run(views[number], nonces)
            run.check(sets[number])
            runs[number].append(run)
    small, large = ([run.cpu_s for run in some[FIRST:]] for some in runs)
    ratio = min(large) / min(small)
    report(
        benchmark="reconcile_growth",
        turns=turns,
        small_ids=len(sets[0].ours),
        large_ids=len(sets[1].ours),
        small_cpu_ms=1e3 * min(small),
        large_cpu_ms=1e3 * min(large),
        small_bytes=runs[0][-1].frame_bytes,
        large_bytes=runs[1][-1].frame_bytes,
        cpu_ratio=ratio,
        cpu_ratio_median=statistics.median(large) / statistics.median(small),
        cpu_ratio_bar=BAR,
        kept=ratio <= BAR,
    )
