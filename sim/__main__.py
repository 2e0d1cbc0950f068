"""Repeats runs by hand: ``python -m sim --seed 7 --trace``."""

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
    simulate_year,
)
from sim.scenario import MAX_NODES, MIN_NODES


def main() -> int:
    """Run the seeds that are asked for; 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed [0]")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one by one [1]")
    parser.add_argument(
        "--nodes", type=int, choices=range(MIN_NODES, MAX_NODES + 1), help="how many nodes"
    )
    parser.add_argument(
        "--gossip",
        choices=("alone", "beside"),
        help="runs of gossip, alone or beside reconciliation",
    )
    parser.add_argument(
        "--groups", type=int, metavar="SIZE", help="runs of SDS groups of so many participants"
    )
    parser.add_argument("--with-store", action="store_true", help="groups have store nodes")
    parser.add_argument(
        "--fixed", action="store_true", help="groups have the same options at each size and seed"
    )
    parser.add_argument(
        "--year", action="store_true", help="runs of a year in coarse steps, with upgrades"
    )
    parser.add_argument("--relay", action="store_true", help="runs of gossipsub routers")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    given = parser.parse_args()
    if given.groups is not None and not 2 <= given.groups <= MAX_GROUP:
        parser.error(f"a group has 2 to {MAX_GROUP} participants")
    if given.groups is None and (given.with_store or given.fixed):
        parser.error("--with-store and --fixed are about groups: give --groups SIZE too")
    if given.groups is not None and (given.gossip is not None or given.nodes is not None):
        parser.error("--groups has neither gossip nor a number of nodes")
    if given.year and (given.groups, given.gossip, given.nodes) != (None, None, None):
        parser.error("--year has neither groups nor gossip nor a number of nodes")
    if given.relay and (given.year, given.groups, given.gossip, given.nodes) != (
        False,
        None,
        None,
        None,
    ):
        parser.error("--relay has neither a year nor groups nor gossip nor a number of nodes")
    failed = 0
    for seed in range(given.seed, given.seed + given.count):
        try:
            summary = _run(given, seed)
        except SimulationFailure as failure:
            print(failure)
            failed += 1
        else:
            print(f"seed {seed}: {summary}")
    return 1 if failed else 0


def _run(given: argparse.Namespace, seed: int) -> object:
    sink = print if given.trace else None
    dice = random.Random(seed)
    if given.groups is not None:
        return simulate_group(
            seed,
            dice,
            given.groups,
            with_store=given.with_store,
            fixed=given.fixed,
            sink=sink,
        )
    if given.relay:
        return simulate_relay(seed, dice, sink=sink)
    if given.year:
        return simulate_year(seed, dice, sink=sink)
    if given.gossip is None:
        return simulate(seed, dice, nodes=given.nodes, sink=sink)
    beside = given.gossip == "beside"
    return simulate_gossip(seed, dice, beside=beside, nodes=given.nodes, sink=sink)


if __name__ == "__main__":
    sys.exit(main())
