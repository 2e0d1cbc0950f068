"""Attack a node, and print the cost and what an honest client sees; see docs/security.md.

Each attack has a node of its own on an embedded Postgres, with default options and those of the
attack. Everything uses addresses of this machine, is bounded, and stops by itself. The exit
code is 1 if a node has died, or an honest client got something else than it is owed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from chaos.attacks.catalog import ATTACKS
from chaos.attacks.run import Outcome, run_attack


def main(arguments: Sequence[str]) -> int:
    """Run the attacks that are named, or all, and print a line for each."""
    given = _parser().parse_args(arguments)
    is_right = True
    for name in given.attack or sorted(ATTACKS):
        count = given.count or (ATTACKS[name].short if given.short else ATTACKS[name].count)
        outcome = asyncio.run(run_attack(name, count, given.seed))
        print(json.dumps(asdict(outcome)) if given.json else _line(outcome), flush=True)
        is_right = is_right and outcome.alive and not outcome.violations
    return int(not is_right)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, prog="make hostile")
    names = sorted(ATTACKS)
    parser.add_argument("--attack", action="append", choices=names, help="one of them; repeatable")
    parser.add_argument("--count", type=int, help="how many calls, connections or requests")
    parser.add_argument("--short", action="store_true", help="as in the tests")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="one object for each attack")
    return parser


def _line(outcome: Outcome) -> str:
    failed = ", ".join(f"{count} {what}" for what, count in outcome.failures.items()) or "none"
    return (
        f"{outcome.name} ({outcome.count}): {'' if outcome.alive else 'the node DIED; '}"
        f"memory +{outcome.growth_mib:.0f} MiB, processor {outcome.processor_s:.1f} s; honest: "
        f"slowest {outcome.slowest_s:.2f} s, {outcome.calls} calls, failures: {failed}; "
        f"{'; '.join((outcome.saw, *outcome.violations))}"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
