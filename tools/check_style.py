"""Checks names and docstrings against the rules of CONTRIBUTING.md.

    python tools/check_style.py [--list [PATH ...]]

- A function's docstring begins with a verb in the imperative; one of a property, class or module
  with an article or a noun (a module's may begin with a verb); none merely repeats the name.
- A module is named after what it contains, in a noun of the domain or the verb of its command.
- Some words are refused in names, such as ``tally``, where a standard term exists.
- One class name is defined once in store, storenode and reconcile together; SDS participants
  have a namespace of their own.

- No folder is exempt from ruff's rules of docstrings and names.

`style.toml` has the words.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.rooms import ROOT, CheckError, list_sources, read_toml

WORDS: Final = Path("tools/style.toml")
GUIDE: Final = 'CONTRIBUTING.md, "Names and docstrings"'

SDS: Final = "storenode/sds/"
PRODUCT: Final = ("store/", "storenode/", "reconcile/")
"""Rooms in which a class name is defined once: all together, but those of `SDS` apart."""
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
    definitions: defaultdict[tuple[bool, str], list[tuple[str, int]]] = defaultdict(list)
    for path, tree in trees.items():
        if path.startswith(PRODUCT):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                    definitions[path.startswith(SDS), node.name].append((path, node.lineno))
    for (_, name), places in definitions.items():
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


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Check or list; return the exit code."""
    parser = argparse.ArgumentParser(prog="tools/check_style.py", description=__doc__)
    parser.add_argument(
        "--list", nargs="*", metavar="PATH", help="print all violations below paths"
    )
    options = parser.parse_args(arguments)
    try:
        sources = list_sources(root)
        found = find_violations(root, sources, read_words(root))
        faults = find_exemptions(root)
    except CheckError as error:
        print(f"style: {error}", file=sys.stderr)
        return 2
    if options.list is not None:
        prefixes = tuple(options.list or [""])
        print(*(each for each in found if each.path.startswith(prefixes)), sep="\n")
        return 0
    for fault in (*found, *faults):
        print(f"style: {fault}", file=sys.stderr)
    if not found and not faults:
        print(f"style: {len(sources):,} files follow the rules")
    return 1 if found or faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
