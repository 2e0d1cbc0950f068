"""Pairs of ID sets to reconcile: what is shared, what differs, and how it is spread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reconcile.ids import SyncIds, ordered

START_NS: Final = 1_700_000_000_000_000_000
HOUR_NS: Final = 3_600_000_000_000
MINUTE_NS: Final = 60_000_000_000
SECOND_NS: Final = 1_000_000_000
BURSTS: Final = 1_000
BURST_NS: Final = 2_000_000
SEED: Final = 5
_MINUTES: Final = {"minute": 30, "last minute": 59}
"""The minute of the hour that has all differences."""
_COMPACT_BARS: Final = {
    100: (0.10, 0.08),
    1_000: (0.10, 0.04),
    10_000: (0.15, 0.04),
    100_000: (0.25, 0.04),
}
"""Bars of processor time and bytes, by the largest number of differences."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and the bars that it should keep to.

    Attributes:
        name: as printed.
        shared: IDs on both sides.
        differing: IDs on one side only.
        spread: uniform, ours, theirs, minute, last minute, gap, bursts, seconds or nanosecond.
        cpu_bar: processor time against the crate's, at most; None: only printed.
        bytes_bar: payload bytes against the crate's, at most.
        messages_bar: messages each way, at most.
        compact_bars: whether bytes and processor time of the compact mode have bars too.
    """

    name: str
    shared: int
    differing: int
    spread: str = "uniform"
    cpu_bar: float | None = None
    bytes_bar: float | None = None
    messages_bar: int = 4
    compact_bars: bool = True

    @property
    def bars_of_compact(self) -> tuple[float | None, float | None]:
        """Processor time and bytes of the compact mode against the crate's, at most."""
        if not self.compact_bars or not self.differing:
            return None, None
        return next(bars for most, bars in _COMPACT_BARS.items() if self.differing <= most)


CASES: Final = (
    Case("d=0", 1_000_000, 0, cpu_bar=0.05, bytes_bar=0.5, messages_bar=1),
    Case("d=1", 1_000_000, 1),
    Case("d=10", 1_000_000, 10, cpu_bar=0.3, bytes_bar=1.2),
    Case("d=100", 1_000_000, 100, cpu_bar=0.3, bytes_bar=0.6),
    Case("d=1,000", 1_000_000, 1_000, cpu_bar=0.3, bytes_bar=0.6),
    Case("d=10,000", 1_000_000, 10_000, cpu_bar=0.4, bytes_bar=0.4),
    Case("d=100,000", 1_000_000, 100_000, cpu_bar=0.85, bytes_bar=0.6),
    Case("d=100 ours", 1_000_000, 100, "ours"),
    Case("d=100 theirs", 1_000_000, 100, "theirs"),
    Case("d=1,000 ours", 1_000_000, 1_000, "ours"),
    Case("d=1,000 theirs", 1_000_000, 1_000, "theirs"),
    Case("d=100,000 ours", 1_000_000, 100_000, "ours"),
    Case("d=100,000 theirs", 1_000_000, 100_000, "theirs"),
    Case("300,000 + 100,000 ours", 300_000, 100_000, "ours", 0.95, 1.1, compact_bars=False),
    Case("300,000 + 100,000 theirs", 300_000, 100_000, "theirs", 0.95, 1.1, compact_bars=False),
    Case("d=1,000 in a minute", 1_000_000, 1_000, "minute", 0.4, 0.75),
    Case("d=100 in the last minute", 1_000_000, 100, "last minute"),
    Case("d=1,000 in the last minute", 1_000_000, 1_000, "last minute"),
    Case("d=1,000 in a gap", 1_000_000, 1_000, "gap", 0.3, 1.3, 5, compact_bars=False),
    Case("bursts, d=100", 1_000_000, 100, "bursts", messages_bar=5),
    Case("bursts, d=1,000", 1_000_000, 1_000, "bursts", messages_bar=5),
    Case("seconds, d=100", 1_000_000, 100, "seconds", messages_bar=5),
    Case("seconds, d=1,000", 1_000_000, 1_000, "seconds", messages_bar=5),
    Case("one nanosecond, d=100", 200_000, 100, "nanosecond", messages_bar=5, compact_bars=False),
    Case("n=10,000,000, d=1,000", 10_000_000, 1_000, "uniform", 0.1, 1.3, 5, compact_bars=False),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of sets, ascending, and which IDs differ.

    Attributes:
        ours: the initiator's.
        theirs: the responder's.
        only_ours: what the responder lacks.
        only_theirs: what the initiator lacks.
    """

    ours: SyncIds
    theirs: SyncIds
    only_ours: SyncIds
    only_theirs: SyncIds


def pair(case: Case, scale: float = 1.0, seed: int = SEED) -> Pair:
    """Return the sets of a case; both numbers are multiplied by the scale."""
    generator = np.random.default_rng(seed)
    shared = uniform(generator, int(case.shared * scale))
    differing = uniform(generator, int(case.differing * scale))
    ours = generator.permutation(len(differing)) < (len(differing) + 1) // 2
    if case.spread in {"ours", "theirs", "gap"}:
        ours[:] = case.spread == "ours"
    differing = SyncIds(moved(case.spread, differing.timestamps, generator, seed), differing.hashes)
    shared = SyncIds(moved(case.spread, shared.timestamps, None, seed), shared.hashes)
    if case.spread == "gap":
        differing, shared = cut_out(shared, len(differing))
    only_ours, only_theirs = ordered(differing[ours]), ordered(differing[~ours])
    return Pair(
        ordered(SyncIds.join([shared, only_ours])),
        ordered(SyncIds.join([shared, only_theirs])),
        only_ours,
        only_theirs,
    )


def uniform(generator: np.random.Generator, count: int) -> SyncIds:
    """Return ascending timestamps over one hour with random hashes."""
    timestamps = np.sort(generator.integers(0, HOUR_NS, count)) + START_NS
    return SyncIds(timestamps, generator.integers(0, 256, (count, 32), np.uint8))


def moved(
    spread: str, timestamps: NDArray[np.int64], generator: np.random.Generator | None, layout: int
) -> NDArray[np.int64]:
    """Return other timestamps for some spreads; with a generator those of what differs.

    ``layout``: a seed that says where bursts are.
    """
    if spread in _MINUTES and generator is not None:
        begin_ns = START_NS + _MINUTES[spread] * MINUTE_NS
        return begin_ns + generator.integers(0, MINUTE_NS, len(timestamps))
    if spread == "bursts":
        starts = np.sort(np.random.default_rng(layout).integers(0, HOUR_NS, BURSTS)) + START_NS
        since_ns = timestamps - START_NS
        return starts[since_ns * BURSTS // HOUR_NS] + since_ns % BURST_NS
    if spread == "seconds":
        return timestamps // SECOND_NS * SECOND_NS
    if spread == "nanosecond":
        return np.full(len(timestamps), START_NS)
    return timestamps


def cut_out(ids: SyncIds, count: int) -> tuple[SyncIds, SyncIds]:
    """Return ``count`` IDs from the middle, and the others."""
    begin = (len(ids) - count) // 2
    inside = np.zeros(len(ids), np.bool_)
    inside[begin : begin + count] = True
    return ids[inside], ids[~inside]
