"""Waku clients of other projects, from npm as they are, each in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.node import clean_environment
from tests.support.places import made_once

SOURCES: Final = Path(__file__).with_name("javascript")
AVAILABLE: Final = sys.platform == "linux" and shutil.which("npm") is not None
"""npm has Node.js itself too, for Linux: the clients need 22."""

_INSTALL_TIMEOUT_S: Final = 600
_MACHINES: Final = {"x86_64": "x64", "aarch64": "arm64"}


def installed(factory: pytest.TempPathFactory) -> Path:
    """Install the clients, once, and return their folder."""
    return made_once(factory, "javascript-clients", _install)


def _install(folder: Path) -> Path:
    shutil.copytree(SOURCES, folder, ignore=shutil.ignore_patterns("node_modules"))
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


class JavaScriptClient:
    """A client that answers one line with another."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self._process = process
        self._errors = errors

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
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
def running_client(folder: Path, *arguments: str, **env: str) -> Iterator[JavaScriptClient]:
    """Run a client of ``clients.mjs`` for the length of a ``with`` block."""
    program = folder / "node_modules" / f"node-linux-{_MACHINES[platform.machine()]}" / "bin/node"
    errors = folder / f"{arguments[0]}-{os.getpid()}.log"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            [str(program), "clients.mjs", *arguments],
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
