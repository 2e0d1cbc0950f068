"""Prints the part of a lock file that pip's report of an installation names.

    locked.py requirements.lock report.json

The report is that of `pip install --dry-run --report`. What it names and the lock does not ends the
program: it would be installed without a hash. The project itself, a local file, is left out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

PROJECT = "storenode"


def blocks(lock: str) -> dict[str, str]:
    """The lines of each package, by its name in the form of PEP 503."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock):
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==", block)
        if match is not None:
            found[normal(match.group(1))] = block.rstrip()
    return found


def normal(name: str) -> str:
    """A package's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Print what is asked for; 1 if the lock lacks some of it."""
    lock, report = (Path(argument).read_text("utf-8") for argument in sys.argv[1:])
    locked = blocks(lock)
    names = {normal(each["metadata"]["name"]) for each in json.loads(report)["install"]}
    names.discard(PROJECT)
    missing = sorted(names - locked.keys())
    if missing:
        sys.stderr.write(
            f"requirements.lock does not name {', '.join(missing)}: run `make lock`.\n"
        )
        return 1
    sys.stdout.write("\n".join(locked[name] for name in sorted(names)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
