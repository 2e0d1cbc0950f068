"""Repeats runs by hand: ``python -m sim --seed 7 --trace``."""

from __future__ import annotations

import argparse
import random
import sys

from sim.run import SimulationFailure, simulate
from sim.scenario import MAX_NODES, MIN_NODES


def main() -> int:
    """Run the seeds that are asked for; 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one by one [1]")
    parser.add_argument(
        "--nodes", type=int, choices=range(MIN_NODES, MAX_NODES + 1), help="how many nodes"
    )
    parser.add_argument("--trace", action="store_true", help="print what happens")
    given = parser.parse_args()
    failed = 0
    for seed in range(given.seed, given.seed + given.count):
        try:
            summary = simulate(
                seed,
                random.Random(seed),
                nodes=given.nodes,
                sink=print if given.trace else None,
            )
        except SimulationFailure as failure:
            print(failure)
            failed += 1
        else:
            print(f"seed {seed}: {summary}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
