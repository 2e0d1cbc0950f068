"""The example programs in other languages, and the page that shows them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.node import clean_environment
from tests.support.pages import ROOT, blocks, section
from tests.support.places import made_once

PAGE: Final = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
TIMEOUT_S: Final = 840.0
"""The time to build an example without any cache on a busy machine."""

_REGION = re.compile(
    r"^[ \t]*// #region (\w+)\n(.*?)^[ \t]*// #endregion$", re.MULTILINE | re.DOTALL
)
_QUICK_GO: Final = {"GOGC": "400", "GOFLAGS": "'-gcflags=all=-dwarf=false -l' '-ldflags=-s -w'"}
"""Settings of a compiler that inlines nothing: without a cache a build takes two fifths less."""

_MADE: Final = shutil.ignore_patterns("gen", "dist", "node_modules", "client")


@dataclass(frozen=True, slots=True)
class Language:
    """A language: its heading on the page, the folder of its example, and what it is built with.

    ``ways``: variables with the address of the node, one for each protocol.
    """

    title: str
    fence: str
    folder: str
    sources: str
    program: tuple[str, ...]
    toolchain: tuple[str, ...]
    ways: tuple[str, ...] = ("STORENODE_NODE",)

    @property
    def section(self) -> str:
        """The section of the page about the language."""
        return section(PAGE, self.title)

    @property
    def available(self) -> bool:
        """True where the example can be built."""
        return all(map(shutil.which, self.toolchain))

    def regions(self) -> dict[str, str]:
        """Return the marked regions of the example's sources, by name, without indentation."""
        paths = sorted((ROOT / "examples" / self.folder).glob(self.sources))
        found = [pair for path in paths for pair in _REGION.findall(path.read_text("utf-8"))]
        regions = {name: textwrap.dedent(body).strip("\n") + "\n" for name, body in found}
        assert len(regions) == len(found), "a region is there once"
        return regions

    def built(self, factory: pytest.TempPathFactory) -> Path:
        """Return a copy of the example that was built by the commands of the page; its folder."""
        return made_once(factory, f"example-{self.folder}", self._build)

    def _build(self, directory: Path) -> Path:
        shutil.copytree(ROOT / "proto", directory / "proto")
        folder = directory / "examples" / self.folder
        shutil.copytree(ROOT / "examples" / self.folder, folder, ignore=_MADE)
        (commands,) = blocks(self.section, "sh")
        shell(commands, directory)
        return folder


GO: Final = Language("Go", "go", "go", "*.go", ("./client",), ("go",))
TYPESCRIPT: Final = Language(
    "TypeScript",
    "ts",
    "typescript",
    "src/*.ts",
    ("node", "dist/client.js"),
    ("node", "npm"),
    ("STORENODE_NODE", "STORENODE_URL"),
)
LANGUAGES: Final = (GO, TYPESCRIPT)


@dataclass(frozen=True, slots=True)
class Program:
    """A built example that calls a node."""

    language: Language
    folder: Path
    env: dict[str, str]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env=clean_environment(**self.env),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def lines(self, *arguments: str) -> list[str]:
        """Return what it prints, by line; it must succeed."""
        done = self(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start without waiting; the caller ends it."""
        return subprocess.Popen(
            self._command(arguments),
            cwd=self.folder,
            env=clean_environment(**self.env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [*self.language.program, *arguments]


def shell(commands: str, directory: Path) -> None:
    """Run commands of the page with the buf that is installed beside this Python."""
    tools = Path(sys.executable).parent
    env = clean_environment()
    done = subprocess.run(
        ["bash", "-e"],
        input=commands,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env={**env, "PATH": f"{tools}:{env['PATH']}", **_QUICK_GO},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}"
