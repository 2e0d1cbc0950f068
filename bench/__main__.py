"""Runs benchmarks one after the other, each in a process of its own.

``python -m bench`` runs all with their own sizes; names run those; ``--messages`` is passed on.
``python -m bench soak``, ``hostile``, ``gateway``, ``scale``, ``readers``, ``machines`` and
``pipeline`` have options of their own: see the modules `bench.soak` and so on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from bench.gateway import main as gateway
from bench.hostile.__main__ import main as hostile
from bench.machines import main as machines
from bench.readers import main as readers
from bench.scale import main as scale
from bench.soak.__main__ import main as soak

BENCHMARKS = (
    "publish",
    "single",
    "slow_flush",
    "idle",
    "disk",
    "scan",
    "hashes",
    "causal_history",
    "http",
    "reconcile",
    "sync",
    "gossip",
    "gossip_sim",
    "sds",
    "nodes",
    "lines",
    "beside",
    "channels",
    "catchup",
    "groups",
    "pipeline",
)


def main() -> int:
    """Run; the exit code is 1 if any of them failed."""
    others = {
        "gateway": gateway,
        "hostile": hostile,
        "machines": machines,
        "pipeline": lambda options: _module("pipeline", options),
        "readers": readers,
        "scale": scale,
        "soak": soak,
    }
    if sys.argv[1:2] and sys.argv[1] in others:
        return others[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--messages", type=int, help="size of the data; default: each its own")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark is called {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")
    size = [] if given.messages is None else ["--messages", str(given.messages)]
    codes = [_module(name, size) for name in given.names or BENCHMARKS]
    return int(any(codes))


def _module(name: str, options: list[str]) -> int:
    """Run a benchmark in a process of its own; return its exit code."""
    command = [sys.executable, "-m", f"bench.{name}", *options]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
