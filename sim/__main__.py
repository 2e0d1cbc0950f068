"""Command that repeats runs: ``python -m sim --seed 7 --trace``."""

from __future__ import annotations

import argparse
import random
import sys

from sim.limits import MAX_GROUP
from sim.run import (
    SimulationFailure,
    simulate,
    simulate_gossip,
    simulate_group,
    simulate_relay,
    simulate_sync,
    simulate_year,
)
from sim.scenario import MAX_NODES, MIN_NODES


def main() -> int:
    """Run the seeds that are asked for; return 1 if one of them fails."""
    options = _options()
    failed = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            summary = _run(options, seed)
        except SimulationFailure as failure:
            print(failure)
            failed += 1
        else:
            print(f"seed {seed}: {summary}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one by one [1]")
    parser.add_argument(
        "--nodes", type=int, choices=range(MIN_NODES, MAX_NODES + 1), help="how many nodes"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--gossip",
        choices=("alone", "beside"),
        help="runs of gossip, alone or beside reconciliation",
    )
    kinds.add_argument(
        "--groups", type=int, metavar="SIZE", help="runs of SDS groups of so many participants"
    )
    kinds.add_argument("--year", action="store_true", help="a year in coarse steps, with upgrades")
    kinds.add_argument("--relay", action="store_true", help="runs of gossipsub routers")
    kinds.add_argument("--sync", action="store_true", help="reconciliation of gateways with nwaku")
    parser.add_argument("--with-store", action="store_true", help="groups have store nodes")
    parser.add_argument(
        "--fixed", action="store_true", help="groups have the same options at each size and seed"
    )
    parser.add_argument("--no-pushes", action="store_true", help="routers lose eager pushes")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    options = parser.parse_args()
    if options.groups is not None and not 2 <= options.groups <= MAX_GROUP:
        parser.error(f"a group has 2 to {MAX_GROUP} participants")
    if options.groups is None and (options.with_store or options.fixed):
        parser.error("--with-store and --fixed are about groups: give --groups SIZE too")
    others = options.groups is not None or options.year or options.relay or options.sync
    if others and options.nodes is not None:
        parser.error("--nodes is about runs of nodes: leave out --groups, --year, --relay, --sync")
    return options


def _run(options: argparse.Namespace, seed: int) -> object:
    sink = print if options.trace else None
    rng = random.Random(seed)
    if options.groups is not None:
        return simulate_group(
            seed,
            rng,
            options.groups,
            with_store=options.with_store,
            fixed=options.fixed,
            sink=sink,
        )
    if options.relay:
        return simulate_relay(seed, rng, pushes=not options.no_pushes, sink=sink)
    if options.sync:
        return simulate_sync(seed, rng, sink=sink)
    if options.year:
        return simulate_year(seed, rng, sink=sink)
    if options.gossip is None:
        return simulate(seed, rng, nodes=options.nodes, sink=sink)
    beside = options.gossip == "beside"
    return simulate_gossip(seed, rng, beside=beside, nodes=options.nodes, sink=sink)


if __name__ == "__main__":
    sys.exit(main())
