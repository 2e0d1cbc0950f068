"""Runs benchmarks one after the other, each in a process of its own.

``python -m bench`` runs all with their own sizes; names run those; ``--messages`` is passed on.
``--record`` writes the measurements, with machine, commit and date, to ``bench/results/NAME.json``,
from which ``python -m bench.charts`` draws the charts of ``docs/benchmarks.md``.
``gateway``, ``readers`` and ``pipeline`` have options of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from bench.readers import main as readers

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
BENCHMARKS: Final = (
    "publish",
    "single",
    "disk",
    "scan",
    "hashes",
    "causal_history",
    "reconcile",
    "sync",
    "gossip",
    "slow_flush",
    "sds",
    "lines",
    "nats",
    "groups",
    "idle",
    "pipeline",
)


def main() -> int:
    """Run; the exit code is 1 if any of them failed."""
    others: dict[str, Callable[[list[str]], int]] = {
        "gateway": partial(with_own_options, "gateway"),
        "pipeline": partial(with_own_options, "pipeline"),
        "readers": readers,
    }
    if sys.argv[1:2] and sys.argv[1] in others:
        return others[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--messages", type=int, help="size of the data; default: each its own")
    parser.add_argument("--record", action="store_true", help="write bench/results/NAME.json")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in BENCHMARKS]:
        parser.error(f"no benchmark is called {unknown[0]!r}: choose from {', '.join(BENCHMARKS)}")
    size = [] if given.messages is None else ["--messages", str(given.messages)]
    codes = [run(name, size, record=given.record) for name in given.names or BENCHMARKS]
    return int(any(codes))


def with_own_options(name: str, options: list[str]) -> int:
    """Run a benchmark that has options of its own, and `--record`."""
    own = [each for each in options if each != "--record"]
    return run(name, own, record=len(own) < len(options))


def run(name: str, size: list[str], *, record: bool) -> int:
    """Run a benchmark, print its lines, write them with ``record``, and return its exit code."""
    lines = list[dict[str, object]]()
    command = [sys.executable, "-m", f"bench.{name}", *size]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if line.startswith("{"):
                lines.append(json.loads(line))
    if record and process.returncode == 0:
        path = RESULTS / f"{name}.json"
        path.write_text(json.dumps(described(lines), indent=1) + "\n", encoding="utf-8")
    return process.returncode


def described(lines: list[dict[str, object]]) -> dict[str, object]:
    """Return measurements with what they were measured on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "measurements": lines,
    }


def processor() -> str:
    """Return the model of the processor, as far as the system names it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    raise SystemExit(main())
