"""Reads the project's sources: its modules, what they import and what they call."""

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.layering.rooms import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted({room.split(".")[0] for room in MAY_IMPORT})


@dataclass(frozen=True)
class Module:
    """A source file: its dotted name, and with their lines what it imports and what it calls.

    ``imports``: full dotted targets, also inside functions and conditions; ``calls``: `open(path)`
    is `open`, `datetime.now()` is `.now`.
    """

    name: str
    imports: Sequence[tuple[int, str]]
    calls: Sequence[tuple[int, str]]

    @classmethod
    def parse(cls, name: str, source: str, *, is_package: bool = False) -> "Module":
        nodes = list(ast.walk(ast.parse(source, name)))
        package = name if is_package else name.rpartition(".")[0]
        return cls(name, list(_imports(nodes, package)), list(_calls(nodes)))

    @property
    def room(self) -> str | None:
        return room_of(self.name)


@cache
def room_of(dotted: str) -> str | None:
    """Return the room with the longest name that `dotted` lies in; None outside the project."""
    parts = dotted.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in MAY_IMPORT), None)


@cache
def modules() -> Sequence[Module]:
    """Return every module of the project's packages."""
    return list(_modules())


def _modules() -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            source = path.read_text(encoding="utf-8")
            yield Module.parse(name, source, is_package=is_package)


def written_files() -> Iterator[Path]:
    """Yield every file that is written by hand: not what is hidden, built or generated."""
    made = {ROOT / "build", ROOT / "storenode" / "wire"}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [each for each in folders if each[0] != "." and Path(folder, each) not in made]
        yield from (Path(folder, name) for name in names if name[0] != ".")


def _imports(nodes: Sequence[ast.AST], package: str) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_base(node, package)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _absolute_base(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of what `from ... import` imports from."""
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, node.module] if node.module else kept)


def _calls(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.lineno, f".{node.func.attr}"
