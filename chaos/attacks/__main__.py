"""Attack a node, and print the cost and what an honest client sees; see docs/security.md.

Each attack has a node of its own on an embedded Postgres, with default options and those of the
attack. Everything uses addresses of this machine, is bounded, and stops by itself. The exit
code is 1 if a node has died, 2 if its memory cannot be bounded.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos.attacks.attacker import load_attacks
from chaos.attacks.memory_limit import LimitError, memory_limit
from chaos.attacks.run import MIB, Outcome, run_attack


def main(arguments: Sequence[str]) -> int:
    """Run the attacks that are named, or all, and print a line for each."""
    attacks = load_attacks()
    given = _parser(sorted(attacks)).parse_args(arguments)
    counts = {
        name: given.count or (attacks[name].short if given.short else attacks[name].count)
        for name in given.attack or sorted(attacks)
    }
    rounds = [counts] if given.together else [{name: counts[name]} for name in counts]
    died = False
    try:
        for each in rounds:
            outcome, most_bytes = _round(each, given)
            total = "" if most_bytes is None else f"; all its processes {most_bytes / MIB:,.0f} MiB"
            print(outcome.as_json() if given.json else _line(outcome) + total, flush=True)
            died = died or not outcome.alive
    except LimitError as error:
        print(error, file=sys.stderr)
        return 2
    return int(died)


def _round(attacks: dict[str, int], given: argparse.Namespace) -> tuple[Outcome, int | None]:
    if given.memory is None:
        return asyncio.run(run_attack(attacks, given.seed, given.python)), None
    with memory_limit(given.memory * MIB) as group:
        outcome = asyncio.run(run_attack(attacks, given.seed, given.python, group.program))
        return outcome, group.most_bytes


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, prog="make hostile")
    parser.add_argument("--attack", action="append", choices=names, help="one of them; repeatable")
    parser.add_argument("--count", type=int, help="how many calls, connections or requests")
    parser.add_argument("--short", action="store_true", help="as in the tests")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--python", type=Path, help="interpreter of another checkout, whose node is attacked"
    )
    parser.add_argument("--together", action="store_true", help="all at once, on one node")
    parser.add_argument(
        "--memory",
        type=int,
        metavar="MIB",
        help="of the node and its Postgres together, as in a container (Linux, as root)",
    )
    parser.add_argument("--json", action="store_true", help="one object for each attack")
    return parser


def _line(outcome: Outcome) -> str:
    failed = ", ".join(f"{count} {what}" for what, count in outcome.failures.items()) or "none"
    return (
        f"{outcome.name} ({outcome.count}): {'' if outcome.alive else 'the node DIED; '}"
        f"memory +{outcome.growth_mib:.0f} MiB ({', '.join(map(str, outcome.memory_mib[::3]))}),"
        f" processor {outcome.processor_s:.1f} s; honest: "
        f"slowest {outcome.slowest_s:.2f} s, {outcome.calls} calls, failures: {failed}; "
        f"{outcome.saw}"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
