"""Simulated groups of SDS participants: how long they take to be equal, and what that costs.

No baseline: the figures are of virtual time and of messages, the same on every machine. Each case
is the median of several seeds, with their faults; ``--messages`` has no meaning here.
"""

from __future__ import annotations

import random
from statistics import median
from typing import Final

from bench.support import options, report
from sim.groups.run import simulate_group

SEEDS: Final = {3: 50, 50: 10, 1_000: 2}
"""Participants of a group -> how many runs."""


def measure(size: int, *, with_store: bool) -> None:
    """Run the seeds of one case and print its line."""
    runs = [
        simulate_group(seed, random.Random(seed), size, with_store=with_store)
        for seed in range(SEEDS[size])
    ]
    report(
        benchmark="groups",
        participants=size,
        with_store=with_store,
        runs=len(runs),
        messages=median(run.messages for run in runs),
        seconds_until_equal=median(run.settling_ns / 1e9 for run in runs),
        longest_seconds=max(run.settling_ns / 1e9 for run in runs),
        broadcasts_per_message=median(
            sum(run.broadcasts.values()) / max(run.messages, 1) for run in runs
        ),
        heard_per_participant_and_message=median(
            run.heard / size / max(run.messages, 1) for run in runs
        ),
        lost=sum(run.lost for run in runs),
    )


def main() -> None:
    """Run all cases."""
    options(__doc__ or "")
    for size in SEEDS:
        for with_store in (False, True):
            measure(size, with_store=with_store)


if __name__ == "__main__":
    main()
