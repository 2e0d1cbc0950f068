"""The pages of the documentation, and what stands in their blocks of code."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support import warm
from tests.support.node import COMMAND, clean_environment

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md") for path in ROOT.glob(pattern)
)

_TIMEOUT_S: Final = 280.0
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_OPERATORS = re.compile(r"[;&|()<>]+")
_ASSIGNMENT = re.compile(r"\w+=")


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a shell and the output that a page shows for it."""

    command: str
    output: str


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return str(page.relative_to(ROOT))


def blocks(text: str, *languages: str) -> list[str]:
    """Return the blocks of some languages in a text; that of a plain block is empty."""
    return [body for language, _, body in _BLOCK.findall(text) if language in languages]


def files(text: str) -> dict[str, str]:
    """Return the blocks with a title, which is the name of the file that a reader makes of them."""
    return {title: body for _, title, body in _BLOCK.findall(text) if title}


def fragments(text: str, language: str) -> list[str]:
    """Return the blocks of a language that are no files of their own."""
    return [body for found, title, body in _BLOCK.findall(text) if found == language and not title]


def section(text: str, title: str) -> str:
    """Return the text under a heading of the second level."""
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def steps(text: str) -> list[Step]:
    """Return the commands of the console blocks of a text, with their outputs."""
    found = []
    for body in blocks(text, "console"):
        before, *parts = re.split(r"^\$ ", body, flags=re.MULTILINE)
        assert before == "", "a console block begins with a command"
        found += [_step(part) for part in parts]
    return found


def commands(text: str) -> Iterator[Sequence[str]]:
    """Yield each command in the blocks for a shell, as words; variables are not replaced."""
    lines = [step.command for step in steps(text)]
    for body in blocks(text, "sh"):
        lines += body.replace("\\\n", " ").splitlines()
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not _OPERATORS.fullmatch(word):
                words.append(word)
                continue
            while words and _ASSIGNMENT.match(words[0]):
                words.pop(0)
            if words:
                yield tuple(words)
            words = []


def _step(text: str) -> Step:
    lines = text.splitlines(keepends=True)
    length = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\\n"))
    command = "".join(lines[:length]).replace("\\\n", " ").rstrip("\n")
    return Step(command, "".join(lines[length:]))


def matches(shown: str, printed: str) -> bool:
    """Return True if an output is the one of a page, where ``...`` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in shown.split("..."))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def run_in_one_shell(todo: Sequence[Step], env: Mapping[str, str], cwd: Path = ROOT) -> list[str]:
    """Run commands one after the other and return what each printed; each must end well."""
    # A NUL tells where the output of a command ends, and its exit code follows.
    script = "".join(f"{step.command}\nprintf '\\0%s\\0' $?\n" for step in todo)
    path = env.get("PATH", f"{Path(COMMAND).parent}:/usr/bin:/bin")
    done = subprocess.run(
        ["bash"],
        input=script.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=clean_environment(**{**env, "PATH": f"{warm.commands()}:{path}"}),
        timeout=_TIMEOUT_S,
        check=True,
    )
    parts = done.stdout.decode().split("\0")
    outputs, codes = parts[0::2], parts[1::2]
    for step, output, code in zip(todo, outputs, codes, strict=False):
        assert code == "0", f"{step.command} ended with {code}:\n{output}"
    assert len(codes) == len(todo)
    return outputs[: len(todo)]


def as_shown(todo: Sequence[Step], env: Mapping[str, str], cwd: Path = ROOT) -> None:
    """Run commands; each must print what its page shows."""
    for step, printed in zip(todo, run_in_one_shell(todo, env, cwd), strict=True):
        assert matches(step.output, printed), (
            f"{step.command} printed\n{printed}\nbut the page shows\n{step.output}"
        )
