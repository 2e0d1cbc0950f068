"""Keyed digests: what they add to a reconciliation, with the kernel and without.

Two sides in one process, joined in memory, with the drivers that ship. Times are processor times of
both sides together, the best of some runs; bytes are those of all frames. The baseline is the
same session concluded by XOR.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from bench.support import options, report
from reconcile import kernel
from reconcile.folds import Folds
from reconcile.ids import END, LOWEST, SyncIds, ordered
from reconcile.index import IndexView
from sim.messages import CANDIDATES, forged_halves
from store.sync.session.agreement import new_pairs
from tests.support.verifying_pair import EVERYTHING, Side, reconcile

HOUR_NS = 3_600 * 10**9
DIFFERENCES = (0, 1_000)
ROUNDS = 5
KEY = bytes(range(16))


def made(count: int, seed: int) -> SyncIds:
    """IDs at random times of one hour."""
    generator = np.random.default_rng(seed)
    hashes = generator.integers(0, 256, (count, 32), np.uint8)
    return ordered(SyncIds(generator.integers(0, HOUR_NS, count), hashes))


def processor_ms(work: Callable[[], object]) -> float:
    """The best of some runs."""
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        taken.append(1e3 * (time.process_time() - start))
    return min(taken)


def session(views: list[IndexView], *, keyed: bool) -> tuple[float, float, list[Side]]:
    """Processor time of the first session of two peers and of later ones, and their sides."""
    sides: list[Side] = []
    pairs = [new_pairs() for _ in views]

    def run() -> None:
        sides[:] = [
            Side(view=view, keyed=keyed, pairs=own) for view, own in zip(views, pairs, strict=True)
        ]
        asyncio.run(reconcile(sides[0], sides[1], EVERYTHING))

    start = time.process_time()
    run()
    first_ms = 1e3 * (time.process_time() - start)
    return first_ms, processor_ms(run), sides


def frame_bytes(sides: list[Side]) -> int:
    """Bytes of all frames of a session."""
    return sum(len(frame.encode()) for side in sides for frame in side.sent)


def sums(view: IndexView) -> None:
    """The sum alone: one line."""

    def work() -> None:
        Folds(KEY).sum_of(view, LOWEST, END)

    compiled_ms = processor_ms(work)
    with kernel.python_only():
        arrays_ms = processor_ms(work)
    report(benchmark="keyed_sum", ids=len(view), kernel_ms=compiled_ms, arrays_ms=arrays_ms)


def sessions(shared: SyncIds) -> None:
    """Sessions by XOR and by key: one line for each number of differences."""
    for differences in DIFFERENCES:
        extra = made(differences, 2)
        parts = extra[::2], extra[1::2]
        views = [IndexView.of(SyncIds.join([shared, part])) for part in parts]
        _, xor_ms, xor_sides = session(views, keyed=False)
        first_ms, keyed_ms, keyed_sides = session(views, keyed=True)
        assert all(side.error is None for side in (*xor_sides, *keyed_sides))
        report(
            benchmark="keyed_session",
            ids=len(shared),
            differences=differences,
            xor_ms=xor_ms,
            keyed_ms=keyed_ms,
            first_keyed_ms=first_ms,
            xor_bytes=frame_bytes(xor_sides),
            keyed_bytes=frame_bytes(keyed_sides),
        )


def search(shared: SyncIds) -> None:
    """A forged set that is found: one line."""
    candidates = made(CANDIDATES, 3)
    halves = forged_halves([digest for _, digest in candidates])
    parts = [candidates[np.array(half)] for half in halves]
    views = [IndexView.of(SyncIds.join([shared, part])) for part in parts]
    _, taken_ms, sides = session(views, keyed=True)
    found = [0 if side.result is None else len(side.result.to_send) for side in sides]
    assert found == [len(half) for half in halves]
    report(
        benchmark="keyed_search",
        ids=len(shared),
        differences=sum(found),
        keyed_ms=taken_ms,
        keyed_bytes=frame_bytes(sides),
    )


def main() -> None:
    """Measure; four lines."""
    shared = made(options(__doc__ or "", messages=1_000_000).messages, 1)
    sums(IndexView.of(shared))
    sessions(shared)
    search(shared)


if __name__ == "__main__":
    main()
