"""Checks names and docstrings against the rules of CONTRIBUTING.md, with ceilings that only fall.

    python tools/check_style.py [--list [PATH ...]] [--update]

- A function's docstring begins with a verb in the imperative; one of a property, class or module
  with an article or a noun (a module's may begin with a verb); none merely repeats the name.
- A module is named after what it contains, in a noun of the domain or the verb of its command.
- Some words are refused in names, such as ``tally``, where a standard term exists.
- One class name is defined once in store, storenode and reconcile together.

- No folder is exempt from ruff's rules of docstrings and names.

`style.toml` has the words. `style_ratchet.toml` has the number of violations of each file; a file
that is not named there has none. ``--update`` lowers these numbers and never raises one.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.rooms import ROOT, CheckError, assign_rooms, list_sources, read_rooms, read_toml

WORDS: Final = Path("tools/style.toml")
RATCHET: Final = Path("tools/style_ratchet.toml")
GUIDE: Final = 'CONTRIBUTING.md, "Names and docstrings"'

PRODUCT: Final = ("store/", "storenode/", "reconcile/")
"""Rooms in which a class name is defined once, all together."""
_PROPERTIES: Final = frozenset({"property", "cached_property", "setter", "getter", "deleter"})
_ARTICLES: Final = frozenset({"a", "an", "the", "true"})


@dataclass(frozen=True, order=True)
class Violation:
    """A rule that a line of a file breaks."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Words:
    """The words that the rules accept and refuse."""

    verbs: frozenset[str]
    not_nouns: frozenset[str]
    phrases: re.Pattern[str]
    modules: frozenset[str]
    terms: frozenset[str]
    identifiers: dict[str, str]


def read_words(root: Path = ROOT) -> Words:
    """Read the words of the rules.

    Raises:
        CheckError: the file is missing, malformed or lacks a list.
    """
    table = read_toml(root / WORDS)
    try:
        lists = {
            name: frozenset(table[name].split())
            for name in ("verbs", "not_nouns", "modules", "terms")
        }
        phrases = re.compile("|".join(table["phrases"]), re.IGNORECASE)
        return Words(**lists, phrases=phrases, identifiers=dict(table["identifiers"]))
    except (KeyError, AttributeError, TypeError, re.error) as error:
        raise CheckError(f"{root / WORDS}: {error!r}") from error


def split_name(name: str) -> list[str]:
    """Return the lower-case words of an identifier in snake case or camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


class StyleChecker:
    """A checker of one module's names and docstrings."""

    def __init__(self, path: str, tree: ast.Module, words: Words) -> None:
        self._path = path
        self._tree = tree
        self._words = words

    def check(self) -> Iterator[Violation]:
        """Yield the violations of the module."""
        yield from self._check_path()
        yield from self._check_docstring(self._tree, "module", Path(self._path).stem)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._check_docstring(node, _function_kind(node), node.name)
            elif isinstance(node, ast.ClassDef):
                yield from self._check_docstring(node, "class", node.name)
            for name, line in _defined_names(node):
                yield from self._check_identifier(name, line)

    def _violation(self, line: int, message: str) -> Violation:
        return Violation(self._path, line, message)

    def _check_path(self) -> Iterator[Violation]:
        stem = Path(self._path).stem
        if stem.startswith("__") or self._path.startswith("migrations/versions/"):
            return
        name = stem.removeprefix("test_")
        last = name.rpartition("_")[2]
        forbidden = {name, last} & self._words.modules
        if last.endswith(("ing", "ed")) and not {name, last} & self._words.terms:
            forbidden.add(last)
        if forbidden and not stem.startswith("test_"):
            word = min(forbidden)
            yield self._violation(
                1, f"module name {stem!r}: {word!r} does not name the content; see {GUIDE}"
            )

    def _check_docstring(
        self,
        node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
        kind: str,
        name: str,
    ) -> Iterator[Violation]:
        text = ast.get_docstring(node)
        if not text:
            return
        line = node.body[0].lineno
        first = re.split(r"[\s,.:;]", text.lstrip("`"), maxsplit=1)[0].rstrip("`")
        if kind == "function" and first.lower() not in self._words.verbs:
            yield self._violation(
                line, f"docstring of {name!r} begins with {first!r}, not with a verb such as Return"
            )
        elif kind != "function" and first.lower() in self._words.not_nouns:
            yield self._violation(
                line, f"docstring of {kind} {name!r} begins with {first!r}, not with a noun"
            )
        if kind in {"function", "class"} and _repeats_name(text, name):
            yield self._violation(line, f"docstring of {name!r} repeats the name: delete it")
        if found := self._words.phrases.search(text):
            yield self._violation(line, f"docstring of {name!r} has {found[0]!r}; see {GUIDE}")

    def _check_identifier(self, name: str, line: int) -> Iterator[Violation]:
        for word in split_name(name):
            if word in self._words.identifiers:
                better = self._words.identifiers[word]
                yield self._violation(line, f"name {name!r}: write {better} instead of {word!r}")


def _function_kind(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    names = {
        getattr(decorator, "id", getattr(decorator, "attr", None))
        for decorator in node.decorator_list
    }
    return "property" if names & _PROPERTIES else "function"


def _repeats_name(text: str, name: str) -> bool:
    """Return True if a docstring of one line has no word that is not in the name."""
    if "\n" in text:
        return False
    stems = [word[:4] for word in split_name(name)]
    words = [word.lower() for word in re.findall(r"[A-Za-z]+", text)]
    return all(word in _ARTICLES or word[:4] in stems for word in words)


def _defined_names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a node of the syntax tree defines, with their lines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name, node.lineno
    elif isinstance(node, ast.arg):
        yield node.arg, node.lineno
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id, node.lineno
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr, node.lineno


def find_duplicate_classes(trees: dict[str, ast.Module]) -> Iterator[Violation]:
    """Yield each definition of a public class whose name another product module defines too."""
    definitions: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, tree in trees.items():
        if path.startswith(PRODUCT):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                    definitions[node.name].append((path, node.lineno))
    for name, places in definitions.items():
        for path, line in places:
            others = ", ".join(sorted({other for other, _ in places} - {path}))
            if others:
                yield Violation(path, line, f"class {name!r} is also defined in {others}")


def find_violations(root: Path, sources: list[str], words: Words) -> list[Violation]:
    """Return all violations of the Python sources, in the order of the files.

    Raises:
        CheckError: a source cannot be read or parsed.
    """
    trees = {}
    for source in sources:
        if source.endswith(".py"):
            try:
                trees[source] = ast.parse((root / source).read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, SyntaxError) as error:
                raise CheckError(f"{source}: {error}") from error
    found = list(find_duplicate_classes(trees))
    for path, tree in trees.items():
        found += StyleChecker(path, tree, words).check()
    return sorted(found)


def find_exemptions(root: Path) -> list[str]:
    """Return a sentence for each folder that pyproject.toml exempts from rules of ruff for now.

    Raises:
        CheckError: the file is missing or malformed.
    """
    lint = read_toml(root / "pyproject.toml").get("tool", {}).get("ruff", {}).get("lint", {})
    return [
        f"pyproject.toml: {pattern} is exempt from {', '.join(rules)}: mend the docstrings or names"
        for pattern, rules in lint.get("extend-per-file-ignores", {}).items()
    ]


def read_ratchet(root: Path = ROOT) -> dict[str, int]:
    """Read the ceilings of the files.

    Raises:
        CheckError: the ratchet is missing or malformed.
    """
    path = root / RATCHET
    ceilings: dict[str, int] = {}
    for room, table in read_toml(path).get("room", {}).items():
        files = table.get("files", {})
        if not all(type(count) is int and count > 0 for count in files.values()):
            raise CheckError(f"{path}: room {room!r}: a number of violations is a positive integer")
        if table.get("violations") != sum(files.values()):
            raise CheckError(f"{path}: room {room!r}: violations is not the sum of its files")
        ceilings.update(files)
    return ceilings


def format_ratchet(rooms: dict[str, list[str]], ceilings: dict[str, int]) -> str:
    """Return the text of the ratchet, with a table for each room that has violations."""
    lines = [
        "# Violations of each file; a file that is not named has none. The numbers only fall:",
        "# `python tools/check_style.py --update` lowers them.",
    ]
    for room, sources in rooms.items():
        counts = {source: ceilings[source] for source in sources if ceilings.get(source)}
        if counts:
            lines += ["", f'[room."{room}"]', f"violations = {sum(counts.values())}"]
            lines += ["", f'[room."{room}".files]']
            lines += [f'"{source}" = {count}' for source, count in counts.items()]
    return "\n".join(lines) + "\n"


def count_by_room(root: Path = ROOT) -> dict[str, int]:
    """Return the number of violations of each room.

    Raises:
        CheckError: a file that the check needs is missing or malformed.
    """
    sources = list_sources(root)
    counts = Counter(each.path for each in find_violations(root, sources, read_words(root)))
    rooms = assign_rooms(read_rooms(root), sources)
    return {room: sum(counts[path] for path in paths) for room, paths in rooms.items()}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check, list or lower; return the exit code."""
    parser = argparse.ArgumentParser(prog="tools/check_style.py", description=__doc__)
    parser.add_argument("--update", action="store_true", help="lower the ceilings")
    parser.add_argument(
        "--list", nargs="*", metavar="PATH", help="print all violations below paths"
    )
    options = parser.parse_args(arguments)
    try:
        sources = list_sources(root)
        rooms = assign_rooms(read_rooms(root), sources)
        found = find_violations(root, sources, read_words(root))
        ceilings = read_ratchet(root)
        faults = find_exemptions(root)
    except CheckError as error:
        print(f"style: {error}", file=sys.stderr)
        return 2
    if options.list is not None:
        prefixes = tuple(options.list or [""])
        print(*(each for each in found if each.path.startswith(prefixes)), sep="\n")
        return 0
    counts = Counter(each.path for each in found)
    if options.update:
        ceilings = {path: min(counts[path], most) for path, most in ceilings.items()}
        (root / RATCHET).write_text(format_ratchet(rooms, ceilings), encoding="utf-8")
    worse = [path for path in sorted(counts) if counts[path] > ceilings.get(path, 0)]
    for path in worse:
        print(
            f"style: {path} has {counts[path]} violations, {ceilings.get(path, 0)} are allowed:",
            file=sys.stderr,
        )
        for violation in found:
            if violation.path == path:
                print(f"  {violation}", file=sys.stderr)
    for fault in faults:
        print(f"style: {fault}", file=sys.stderr)
    if not worse and not faults:
        print(f"style: {len(found):,} violations, no file has more than it is allowed")
    return 1 if worse or faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
