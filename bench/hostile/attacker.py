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
from types import ModuleType

from bench.hostile import attacks
from bench.hostile.target import Target


def found() -> dict[str, ModuleType]:
    """All attacks, by the name of their module."""
    modules = {
        each.name: import_module(f"{attacks.__name__}.{each.name}")
        for each in iter_modules(attacks.__path__)
    }
    return {name: module for name, module in modules.items() if hasattr(module, "attack")}


def main() -> None:
    """Attack."""
    given = json.loads(sys.stdin.readline())
    rng = random.Random(given["seed"])
    attack = import_module(f"{attacks.__name__}.{given['name']}").attack
    print(asyncio.run(attack(Target(**given["target"]), rng, given["count"])))


if __name__ == "__main__":
    main()
