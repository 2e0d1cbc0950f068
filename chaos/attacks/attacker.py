"""Run one attack, in a process of its own: ``python -m chaos.attacks.attacker``.

Reads the target, the name, the count and the seed as one line of JSON from standard input, and
prints what the attack observed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from importlib import import_module
from pkgutil import iter_modules

from chaos import attacks
from chaos.attacks.registry import ATTACKS, Attack, Target


def load_attacks() -> dict[str, Attack]:
    """Import the modules of this package, and return all attacks by name."""
    for each in iter_modules(attacks.__path__):
        if not each.name.startswith("__"):
            import_module(f"{attacks.__name__}.{each.name}")
    return ATTACKS


def main() -> None:
    """Run the attack."""
    given = json.loads(sys.stdin.readline())
    rng = random.Random(given["seed"])
    target = Target(**given["target"])

    async def attack() -> str:
        return await load_attacks()[given["name"]].work(target, rng, given["count"])

    print(asyncio.run(attack()))


if __name__ == "__main__":
    main()
