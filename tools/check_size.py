"""Checks the lines, files and public classes of each room against ceilings that only fall.

    python tools/check_size.py [--update] [--report]

`size_budget.toml` has the ceilings beside the target of each room. Lines are physical lines with
docstrings and blank lines, of Python and C; a public class is one at the top of a module whose name
has no leading underscore. ``--update`` lowers each ceiling to today's figure and never raises one,
``--report`` prints the figures of each room beside its target.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.rooms import (
    BUDGET,
    ROOT,
    CheckError,
    Room,
    assign_rooms,
    list_sources,
    lower_ceilings,
    read_rooms,
)

FIGURES: Final = ("lines", "files", "classes")
MAX_FILE_LINES: Final = 1_000


def measure_file(path: Path) -> tuple[int, int]:
    """Return the lines and the public classes of a source.

    Raises:
        CheckError: the file cannot be read or parsed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text) if path.suffix == ".py" else ast.Module([], [])
    except (OSError, UnicodeDecodeError, SyntaxError) as error:
        raise CheckError(f"{path}: {error}") from error
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    return text.count("\n"), len(classes)


def measure_rooms(root: Path, rooms: list[Room]) -> dict[str, dict[str, int]]:
    """Return lines, files and public classes by room.

    Raises:
        CheckError: a source cannot be read, or belongs to no room.
    """
    measured = {}
    for name, sources in assign_rooms(rooms, list_sources(root)).items():
        pairs = [measure_file(root / source) for source in sources]
        lines, classes = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
        measured[name] = {"lines": lines, "files": len(pairs), "classes": classes}
    return measured


def find_excesses(rooms: list[Room], measured: dict[str, dict[str, int]]) -> list[str]:
    """Return a sentence for each figure above its ceiling."""
    return [
        f"{room.name}: {measured[room.name][figure]:,} {figure}, the ceiling is "
        f"{room.ceilings[figure]:,}: remove what is superfluous in {', '.join(room.paths)}"
        for room in rooms
        for figure in FIGURES
        if measured[room.name][figure] > room.ceilings[figure]
    ]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check or lower the ceilings; return the exit code."""
    parser = argparse.ArgumentParser(prog="tools/check_size.py", description=__doc__)
    parser.add_argument(
        "--update", action="store_true", help="lower the ceilings to today's figures"
    )
    parser.add_argument("--report", action="store_true", help="print the figures of each room")
    options = parser.parse_args(arguments)
    try:
        rooms = read_rooms(root)
        measured = measure_rooms(root, rooms)
    except CheckError as error:
        print(f"size: {error}", file=sys.stderr)
        return 2
    if options.update:
        path = root / BUDGET
        path.write_text(lower_ceilings(path.read_text("utf-8"), measured), encoding="utf-8")
    if options.report:
        for room in rooms:
            figures = "".join(f"{measured[room.name][name]:>8,} {name}" for name in FIGURES)
            print(f"{room.name:<20}{figures}, target {room.target or '-'}")
    excesses = find_excesses(rooms, measured) + [
        f"{source}: more than {MAX_FILE_LINES:,} lines: split it by subject"
        for source in list_sources(root)
        if (root / source).read_bytes().count(b"\n") > MAX_FILE_LINES
    ]
    for excess in excesses:
        print(f"size: {excess}", file=sys.stderr)
    total = sum(figures["lines"] for figures in measured.values())
    if not excesses:
        print(f"size: {total:,} lines in {len(rooms)} rooms, none above its ceiling")
    return 1 if excesses else 0


if __name__ == "__main__":
    raise SystemExit(main())
