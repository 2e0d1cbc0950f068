"""Simulated groups of SDS participants: how long they take to be equal, and what that costs.

No baseline: the figures are of virtual time and of messages, the same on every machine. Each case
is the median of several seeds, with their faults. Options of the channel are drawn from the seed;
then come groups with fixed options beside two stores, so that sizes compare: the same conversation,
a fifth of what participants broadcast to each other lost. ``python -m bench groups --sizes 10
10000`` measures those alone, of these sizes. ``--messages`` has no meaning here.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import psutil

from bench.support import report
from sim.groups.scenario import FIXED_TALK_NS
from sim.limits import MAX_GROUP
from sim.run import simulate
from sim.stage import Summary
from storenode.sds.events import BroadcastReason

SEEDS: Final = {3: 50, 50: 10, 1_000: 2}
"""Participants of a group -> how many runs."""

SIZES: Final = (10, 100, 1_000)
"""The sizes of groups with fixed options; 10,000 takes minutes, and is measured on request."""

MOST_RUNS: Final = 9
"""The largest number of runs of one size; slow ones get fewer."""

READS: Final = ("Scan", "Query", "GetSdsMessages", "GetCausalHistory")
NS_PER_HOUR: Final = 3_600 * 10**9


def measure(size: int, *, with_store: bool) -> None:
    """Run the seeds of one case and print its line."""
    kind = "group-with-store" if with_store else "group"
    runs = [simulate(kind, seed, size) for seed in range(SEEDS[size])]
    report(benchmark="groups", with_store=with_store, **figures(size, runs))


def measure_size(size: int) -> None:
    """Run a group with fixed options beside stores and print its line."""
    began_s = time.process_time()
    runs = [
        simulate("fixed-group", seed, size) for seed in range(min(MOST_RUNS, max(1_000 // size, 1)))
    ]
    report(
        benchmark="groups by size",
        **figures(size, runs),
        bytes_per_participant_and_hour=median(
            run.counts["received bytes"] / size / hours_of(run) for run in runs
        ),
        published_per_message=median(
            run.counts["messages published"] / run.counts["messages"] for run in runs
        ),
        **{
            f"{method}_per_participant": median(run.counts.get(method, 0) / size for run in runs)
            for method in READS
        },
        cpu_s_per_run=(time.process_time() - began_s) / len(runs),
        resident_mb=psutil.Process().memory_info().rss / 1e6,
    )


def figures(size: int, runs: Sequence[Summary]) -> dict[str, object]:
    """Summarize the runs of a group size."""
    return {
        "participants": size,
        "runs": len(runs),
        "messages": median(run.counts["messages"] for run in runs),
        "seconds_until_equal": median(run.settling_ns / 1e9 for run in runs),
        "longest_seconds": max(run.settling_ns / 1e9 for run in runs),
        "broadcasts_per_message": median(
            sum(run.counts.get(reason.value, 0) for reason in BroadcastReason)
            / max(run.counts["messages"], 1)
            for run in runs
        ),
        "heard_per_participant_and_message": median(
            run.counts["received"] / size / max(run.counts["messages"], 1) for run in runs
        ),
        "lost": sum(run.counts["lost"] for run in runs),
    }


def hours_of(run: Summary) -> float:
    """Return the hours from the start of the conversation until all logs were equal."""
    return (FIXED_TALK_NS + run.settling_ns) / NS_PER_HOUR


def group_size(text: str) -> int:
    """Parse a number of participants."""
    size = int(text)
    if not 2 <= size <= MAX_GROUP:
        raise argparse.ArgumentTypeError(f"a group has 2 to {MAX_GROUP} participants")
    return size


def main() -> None:
    """Run all cases, or the sizes that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--sizes", type=group_size, nargs="+", metavar="SIZE", help="only groups of these sizes"
    )
    given = parser.parse_args()
    for size in SEEDS if given.sizes is None else ():
        for with_store in (False, True):
            measure(size, with_store=with_store)
    for size in given.sizes or SIZES:
        measure_size(size)
