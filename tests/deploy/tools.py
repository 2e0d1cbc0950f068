"""The programs that validate what is in `deploy/`, and where that is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
MEMORY_GIB: Final = {"node": 2, "embedded": 4}
"""The memory that docs/operations.md allows a node, and one with a Postgres of its own."""

PACKAGES: Final = {
    "docker-compose": "Debian's package docker-compose",
    "promtool": "Debian's package prometheus",
    "systemd-analyze": "Debian's package systemd",
    "openssl": "Debian's package openssl",
    "psql": "Debian's package postgresql-client",
    "kubectl": "kubectl 1.30 or newer, from the project Kubernetes",
}


def run(*command: str, cwd: Path = DEPLOY, code: int | None = 0) -> str:
    """Run a program; returns all that it prints.

    Raises:
        AssertionError: it is not installed, or ended with another code than ``code``, if given.
    """
    assert shutil.which(command[0]), f"{command[0]} is missing: install {PACKAGES[command[0]]}"
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert code in (None, done.returncode), f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every file below `deploy/` that is text."""
    for path in sorted(DEPLOY.rglob("*")):
        ignored = {"secrets", "archive", "__pycache__"} & set(path.relative_to(DEPLOY).parts[:-1])
        if path.is_file() and ("kubernetes" in path.parts or not ignored):
            yield path, path.read_text("utf-8")
