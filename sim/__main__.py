"""Command that repeats runs: ``python -m sim nodes --seed 7 --trace``."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from sim.limits import MAX_GROUP
from sim.run import KINDS, SimulationError, simulate
from sim.scenario import MAX_NODES, MIN_NODES

_SIZES: Final = {
    **dict.fromkeys(("nodes", "conflicts", "gossip", "gossip-and-sync"), (MIN_NODES, MAX_NODES)),
    **dict.fromkeys(("group", "group-with-store", "restored-group", "fixed-group"), (2, MAX_GROUP)),
    "year": (20, 3_650),
}
"""The least and the largest size of each kind of run."""


def main() -> int:
    """Run the seeds that are asked for; return 1 if one of them fails."""
    options = _options()
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            sink = print if options.trace else None
            summary = simulate(options.kind, seed, options.size, sink=sink)
        except SimulationError as failure:
            print(failure)
            failed += 1
        else:
            print(f"seed {seed}: {summary}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="nodes", help="what to run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one by one [1]")
    parser.add_argument("--size", type=int, help="how many nodes, participants or days")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    options = parser.parse_args()
    if options.size is not None:
        least, most = _SIZES.get(options.kind, (0, 0))
        if not least <= options.size <= most:
            parser.error(f"--size: {options.kind} has {least} to {most}")
    return options


if __name__ == "__main__":
    sys.exit(main())
