"""Checks names and docstrings against the rules of CONTRIBUTING.md.

    python tools/check_style.py [--list [PATH ...]]

- A function's docstring begins with a verb in the imperative; one of a property, class, module,
  constant or field with an article or a noun (some may begin with a verb); none merely repeats the
  name.
- A module is named after what it contains, in a noun of the domain or the verb of its command.
- Some words are refused in names, such as ``tally``, where a standard term exists, and the phrases
  that pages do not have in docstrings and comments.
- One class name is defined once in store, storenode and reconcile together; SDS participants
  have a namespace of their own.
- No folder is exempt from ruff's rules of docstrings and names.

`style.toml` has the words.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
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
    prose: dict[str, str]


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
        return Words(
            **lists,
            phrases=phrases,
            identifiers=dict(table["identifiers"]),
            prose=dict(table["prose"]),
        )
    except (KeyError, AttributeError, TypeError, re.error) as error:
        raise CheckError(f"{root / WORDS}: {error!r}") from error


def split_name(name: str) -> list[str]:
    """Return the lower-case words of an identifier in snake case or camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


class StyleChecker:
    """A checker of one module's names and docstrings."""

    def __init__(self, path: str, source: str, words: Words) -> None:
        """Parse the source.

        Raises:
            SyntaxError: it is malformed.
        """
        self._path = path
        self._source = source
        self.tree = ast.parse(source)
        self._words = words

    def check(self) -> Iterator[Violation]:
        """Yield the violations of the module."""
        yield from self._check_path()
        for kind, name, text, line in _documentation(self.tree, Path(self._path).stem):
            yield from self._check_docstring(kind, name, text, line)
        for node in ast.walk(self.tree):
            for name, line in _defined_names(node):
                yield from self._check_identifier(name, line)
        yield from self._check_prose()

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

    def _check_docstring(self, kind: str, name: str, text: str, line: int) -> Iterator[Violation]:
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

    def _check_prose(self) -> Iterator[Violation]:
        if not re.search("|".join(self._words.prose), self._source, re.IGNORECASE):
            return
        for token in tokenize.generate_tokens(io.StringIO(self._source).readline):
            if token.type == tokenize.COMMENT or token.string.startswith('"""'):
                for line, message in find_phrases(token.string, self._words.prose):
                    yield self._violation(token.start[0] + line, message)

    def _check_identifier(self, name: str, line: int) -> Iterator[Violation]:
        for word in split_name(name):
            if word in self._words.identifiers:
                better = self._words.identifiers[word]
                yield self._violation(line, f"name {name!r}: write {better} instead of {word!r}")


def find_phrases(text: str, prose: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the line of each refused phrase of a text, from 0, and what to write instead."""
    for phrase, instead in prose.items():
        for found in re.finditer(phrase, text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()), f"{found[0]!r}: write {instead}"


def _documentation(tree: ast.Module, stem: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield kind, name, text and line of each docstring, also of constants and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names = {
                    getattr(decorator, "id", getattr(decorator, "attr", None))
                    for decorator in node.decorator_list
                }
                kind = "property" if names & _PROPERTIES else "function"
            case ast.ClassDef(name=name):
                kind = "class"
            case ast.Module():
                kind, name = "module", stem
            case _:
                continue
        if text := ast.get_docstring(node):
            yield kind, name, text, node.body[0].lineno
        for value, constant in pairwise(node.body):
            match value, constant:
                case (
                    ast.Assign(targets=[target, *_]) | ast.AnnAssign(target=target),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield "value", ast.unparse(target), inspect.cleandoc(text), constant.lineno


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
    checkers = {}
    for path in sources:
        if path.endswith(".py"):
            try:
                checkers[path] = StyleChecker(
                    path, (root / path).read_text(encoding="utf-8"), words
                )
            except (OSError, UnicodeDecodeError, SyntaxError) as error:
                raise CheckError(f"{path}: {error}") from error
    found = list(find_duplicate_classes({path: each.tree for path, each in checkers.items()}))
    for checker in checkers.values():
        found += checker.check()
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
