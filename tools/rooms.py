"""Rooms of the repository: which source belongs to which, as `size_budget.toml` names them.

A room is a set of path prefixes. The longest prefix that matches a file decides, so `store/cli` and
`store/cli/pipeline` can be in different rooms. A file in no room is an error of every check.
`write_or_check` writes or compares files that a script generates.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
BUDGET: Final = Path("tools/size_budget.toml")

GENERATED: Final = ("storenode/wire/", "tests/vectors/")
"""Generated code and recorded bytes, which have no room."""
SUFFIXES: Final = frozenset({".py", ".c", ".h"})


class CheckError(Exception):
    """A check that cannot run; the message is one sentence for the person who runs it."""


@dataclass(frozen=True)
class Room:
    """A part of the repository with ceilings that only fall.

    Attributes:
        name: the room's name, its key in the budget.
        paths: path prefixes of its files, relative to the root.
        target: lines that the room is meant to have, or None if it has no target.
        ceilings: the highest allowed figure for ``lines``, ``files`` and ``classes``.
    """

    name: str
    paths: tuple[str, ...]
    target: int | None
    ceilings: dict[str, int]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        CheckError: the file is missing or malformed.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckError(f"{path}: the file is missing; restore it with `git checkout`") from None
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CheckError(f"{path}: {error}") from error


def read_rooms(root: Path = ROOT) -> list[Room]:
    """Read the rooms from the budget.

    Raises:
        CheckError: the budget is missing, malformed or lacks a figure.
    """
    path = root / BUDGET
    rooms = []
    for name, table in read_toml(path).get("room", {}).items():
        try:
            ceilings = {key: int(table[key]) for key in ("lines", "files", "classes")}
            rooms.append(Room(name, tuple(table["paths"]), table.get("target"), ceilings))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckError(f"{path}: room {name!r} is malformed: {error!r}") from error
    if not rooms:
        raise CheckError(f"{path}: the file names no room")
    return rooms


def list_sources(root: Path = ROOT) -> list[str]:
    """Return the paths of all sources that git tracks or would add, sorted.

    Raises:
        CheckError: git cannot list the files.
    """
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"git ls-files failed in {root}: {done.stderr.strip()}")
    names = sorted(set(done.stdout.split("\0")) - {""})
    return [
        name
        for name in names
        if Path(name).suffix in SUFFIXES
        and not name.startswith(GENERATED)
        and (root / name).is_file()
    ]


def assign_rooms(rooms: list[Room], sources: list[str]) -> dict[str, list[str]]:
    """Return the sources of each room, by the name of the room.

    Raises:
        CheckError: a source belongs to no room, or two rooms claim the same prefix.
    """
    prefixes: dict[str, str] = {}
    for room in rooms:
        for path in room.paths:
            if path in prefixes:
                raise CheckError(f"{BUDGET}: {path} is in {prefixes[path]} and in {room.name}")
            prefixes[path] = room.name
    longest_first = sorted(prefixes, key=len, reverse=True)
    assigned: dict[str, list[str]] = {room.name: [] for room in rooms}
    for source in sources:
        prefix = next((each for each in longest_first if source.startswith(each)), None)
        if prefix is None:
            raise CheckError(f"{source} belongs to no room: add its folder to {BUDGET}")
        assigned[prefixes[prefix]].append(source)
    return assigned


def lower_ceilings(text: str, measured: Mapping[str, Mapping[str, int]]) -> str:
    """Return the TOML text of ceilings with each lowered to what was measured, if that is less.

    Args:
        text: tables ``[NAME]`` or ``[room."NAME"]`` with lines ``FIGURE = NUMBER``.
        measured: the figures of each table, by its name; others stay as they are.
    """
    lines, name = [], ""
    for line in text.splitlines():
        if header := re.fullmatch(r'\[(?:room\.)?"?([^"\]]+)"?\]', line):
            name = header[1]
        found = re.fullmatch(r"(\w+) = (\d+)", line)
        if found and found[1] in measured.get(name, {}):
            lines.append(f"{found[1]} = {min(int(found[2]), measured[name][found[1]])}")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def write_or_check(texts: Mapping[Path, str | None], script: str) -> int:
    """Write generated files, or only compare them where the command has ``--check``.

    Args:
        texts: the text of each file; None: there is none.
        script: what generates them, by its path in the repository.

    Returns:
        The exit code, 1 if a file that was compared is not current.
    """
    stale = {path: text for path, text in texts.items() if _read(path) != text}
    if "--check" not in sys.argv[1:]:
        for path, text in stale.items():
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
        return 0
    for path in sorted(stale):
        print(f"{path.relative_to(ROOT)} is not current: run {script} and commit what it writes")
    return int(bool(stale))


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None
