"""Prints the state of the repository in one table: rooms, ways and the time of the tests.

    python tools/report.py

Test times are those of the last whole `make test`; the ways are measured now, on two real nodes.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ways import FIGURES, measure, read_ceilings
from tests.support.processor_time import RESULT, folder_of, read_folder_ceilings
from tools.check_size import measure_rooms
from tools.rooms import ROOT, CheckError, read_rooms

TIME_CEILINGS = ROOT / "tools" / "test_time.toml"


def print_rooms() -> None:
    """Print lines, files and public classes of each room.

    Raises:
        CheckError: a file that a check needs is missing or malformed.
    """
    rooms = read_rooms()
    measured = measure_rooms(ROOT, rooms)
    print(f"{'room':<20}{'lines':>9}{'target':>9}{'files':>7}{'classes':>9}")
    for room in rooms:
        figures = measured[room.name]
        target = f"{room.target:,}" if room.target else "-"
        print(
            f"{room.name:<20}{figures['lines']:>9,}{target:>9}{figures['files']:>7,}"
            f"{figures['classes']:>9,}"
        )
    lines, files, classes = (
        sum(figures[name] for figures in measured.values())
        for name in ("lines", "files", "classes")
    )
    print(f"{'all':<20}{lines:>9,}{'':>9}{files:>7,}{classes:>9,}\n")


def print_ways() -> None:
    """Print what each call enters on a live node, beside its ceiling."""
    ceilings = read_ceilings()
    print(f"{'way':<20}", *(f"{name:>16}" for name in FIGURES))
    for way in measure(ROOT):
        figures = way.figures()
        cells = (f"{figures[name]} of {ceilings[way.name][name]}" for name in FIGURES)
        print(f"{way.name:<20}", *(f"{cell:>16}" for cell in cells))
    print()


def print_test_times() -> None:
    """Print the processor seconds of each folder of tests, beside its ceiling."""
    _, ceilings = read_folder_ceilings(TIME_CEILINGS)
    folders: defaultdict[str, float] = defaultdict(float)
    if (ROOT / RESULT).is_file():
        for path, seconds in json.loads((ROOT / RESULT).read_text("utf-8"))["files"].items():
            folders[folder_of(path)] += seconds
    print(f"{'tests':<24}{'seconds':>9}{'ceiling':>9}")
    for folder, ceiling_s in ceilings.items():
        seconds = f"{folders[folder]:,.0f}" if folder in folders else "-"
        print(f"{folder:<24}{seconds:>9}{ceiling_s:>9,.0f}")
    print(f"{'all':<24}{sum(folders.values()):>9,.0f}{sum(ceilings.values()):>9,.0f}")


def main() -> int:
    """Print the tables; return the exit code."""
    try:
        print_rooms()
    except CheckError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print_ways()
    print_test_times()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
