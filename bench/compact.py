"""The compact mode's part of the benchmark of reconciliation.

Sessions differ in their nonces. Bytes are those of compact frames of both sides, with what
carries them: the base payload that comes first, and both nonces. The first run is a cold one, on
views that were never read before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np

from bench.reconcile_sets import Pair
from reconcile.compact.keys import NONCE_BYTES
from reconcile.compact.session import CompactResult
from reconcile.ids import SyncIds
from reconcile.index import IndexView
from tests.support.reconcile_pair import compact_pair

LEAST_CPU_S = 0.3
MOST_RUNS = 150
BASE_PAYLOAD_BYTES = 45
OVERHEAD_BYTES = BASE_PAYLOAD_BYTES + 2 * NONCE_BYTES
SEED = 11


class Run:
    """A session of two sides in this process."""

    def __init__(self, views: tuple[IndexView, IndexView], nonces: tuple[bytes, bytes]) -> None:
        start = time.process_time()
        joined = compact_pair(*views, nonces=nonces)
        joined.run()
        self.cpu_s = time.process_time() - start
        self.frames, self.outcomes = joined.frames, joined.outcomes
        self.tables = joined.sides[0].tables

    @property
    def frame_bytes(self) -> int:
        """The bytes of all frames of both sides."""
        return sum(map(len, self.frames[0] + self.frames[1]))

    @property
    def fell_back(self) -> bool:
        """True if there is no result."""
        return not all(isinstance(outcome, CompactResult) for outcome in self.outcomes)

    def check(self, sets: Pair) -> None:
        """Fail unless each side has found just what differs."""
        ways = ((sets.only_ours, sets.only_theirs), (sets.only_theirs, sets.only_ours))
        for outcome, (to_send, to_receive) in zip(self.outcomes, ways, strict=True):
            assert isinstance(outcome, CompactResult)
            assert outcome.to_send == to_send, "a compact session found other IDs to send"
            assert outcome.to_receive.complete(to_receive.hashes), "or to receive"


def views_of(sets: Pair) -> tuple[IndexView, IndexView]:
    """Return views that were never read."""

    def copied(ids: SyncIds) -> IndexView:
        return IndexView.of(SyncIds(ids.timestamps.copy(), ids.hashes.copy()))

    return copied(sets.ours), copied(sets.theirs)


def enough(taken: Sequence[float], runs: int) -> bool:
    """Return True if the runs suffice: the least of few short ones is chance."""
    return len(taken) >= runs and (sum(taken) >= LEAST_CPU_S or len(taken) >= MOST_RUNS)


def compact_cost(sets: Pair, runs: int) -> dict[str, float]:
    """Return the figures of sessions with different nonces; every run with a result is checked.

    Processor seconds and bytes are those of both sides, frames the most of the runs. One run in
    about 1,000 has a second table; a fallback is a run without a result.
    """
    generator = np.random.default_rng(SEED)
    views = views_of(sets)
    done: list[Run] = []
    while not enough([run.cpu_s for run in done], runs):
        nonces = generator.bytes(NONCE_BYTES), generator.bytes(NONCE_BYTES)
        done.append(Run(views, nonces))
    for run in done:
        if not run.fell_back:
            run.check(sets)
    taken = [run.cpu_s for run in done]
    sent = [OVERHEAD_BYTES + run.frame_bytes for run in done]
    return {
        "compact_cpu_ms": 1e3 * min(taken),
        "compact_cpu_ms_median": 1e3 * statistics.median(taken),
        "compact_cpu_ms_cold": 1e3 * taken[0],
        "compact_bytes": statistics.fmean(sent),
        "compact_bytes_most": max(sent),
        "compact_frames_out": max(len(run.frames[0]) for run in done),
        "compact_frames_in": max(len(run.frames[1]) for run in done),
        "compact_tables": sum(run.tables for run in done),
        "compact_fallbacks": sum(run.fell_back for run in done),
    }
