"""Runs benchmarks one after the other, each in a process of its own.

    python -m bench [NAME...] [--messages N] [--record]
    python -m bench NAME [--record] [OPTIONS]

Without names all run. ``--messages`` is the size of the data, by default each benchmark's own; one
that is named alone takes its other options as well, which ``python -m bench NAME --help`` lists.
``--record`` writes the measurements, with machine, commit and date, to ``bench/results/NAME.json``,
from which ``python -m bench.charts`` draws the charts of ``docs/benchmarks.md``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "results"
BENCHMARKS: Final = (
    *("publish", "single", "scan", "hashes", "causal_history", "reconcile", "sync"),
    *("sessions", "gossip", "sds", "nats", "groups", "idle", "readers", "pipeline"),
)


def main() -> int:
    """Run; the exit code is 1 if any of them failed."""
    arguments = sys.argv[1:]
    names = list(takewhile(BENCHMARKS.__contains__, arguments))
    options = [each for each in arguments[len(names) :] if each != "--record"]
    is_recorded = "--record" in arguments
    if len(names) != 1 and options and options[0] != "--messages":
        print(f"{__doc__}\nBenchmarks: {', '.join(BENCHMARKS)}")
        if options[0] in ("-h", "--help"):
            return 0
        sys.exit(f"python -m bench: {options[0]!r} is no benchmark: choose one of those above")
    codes = [run(each, options, record=is_recorded) for each in names or BENCHMARKS]
    return int(any(codes))


def run(name: str, options: Sequence[str], *, record: bool) -> int:
    """Run a benchmark, print its lines, write them with ``record``, and return its exit code."""
    lines = list[dict[str, object]]()
    module = "pipeline.__main__" if name == "pipeline" else name
    program = (
        f"import sys; sys.argv[0] = 'python -m bench {name}'; "
        f"from bench.{module} import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
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
