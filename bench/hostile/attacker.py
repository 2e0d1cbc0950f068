"""Runs one attack, in a process of its own: ``python -m bench.hostile.attacker``.

Reads the target, the name, the count and the seed as one line of JSON from standard input, and
prints what the attack saw.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from importlib import import_module
from pkgutil import iter_modules

from bench.hostile import attacks
from bench.hostile.target import ATTACKS, Attack, Target


def found() -> dict[str, Attack]:
    """All attacks, by name."""
    for each in iter_modules(attacks.__path__):
        import_module(f"{attacks.__name__}.{each.name}")
    return ATTACKS


def main() -> None:
    """Attack."""
    given = json.loads(sys.stdin.readline())
    rng = random.Random(given["seed"])
    target = Target(**given["target"])

    async def attack() -> str:
        return await found()[given["name"]].work(target, rng, given["count"])

    print(asyncio.run(attack()))


if __name__ == "__main__":
    main()
