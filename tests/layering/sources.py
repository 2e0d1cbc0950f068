"""Reads the project's sources: its modules, what they import and what they call."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.layering.rooms import MAY_IMPORT

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted({room.split(".")[0] for room in MAY_IMPORT})


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name, whether it is a package, and its syntax tree."""

    name: str
    is_package: bool
    tree: ast.Module

    @classmethod
    def parse(cls, name: str, source: str, *, is_package: bool = False) -> "Module":
        return cls(name, is_package, ast.parse(source, name))

    @property
    def room(self) -> str | None:
        return room_of(self.name)


def room_of(dotted: str) -> str | None:
    """The room with the longest name that `dotted` lies in; None outside the project."""
    parts = dotted.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in MAY_IMPORT), None)


def modules() -> Iterator[Module]:
    """Every module of the project's packages."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            source = path.read_text(encoding="utf-8")
            yield Module.parse(name, source, is_package=is_package)


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted target of every import, also inside functions and conditions."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = absolute_base(module, node)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def absolute_base(module: Module, node: ast.ImportFrom) -> str:
    """The absolute name of what `from ... import` imports from."""
    if node.level == 0:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*kept, node.module] if node.module else kept)


def calls_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and name of every call: `open(path)` is `open`, `datetime.now()` is `.now`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id
            elif isinstance(node.func, ast.Attribute):
                yield node.lineno, f".{node.func.attr}"
