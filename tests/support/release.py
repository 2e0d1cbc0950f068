"""The version before, installed from the repository's history beside the present one."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.command import Command
from tests.support.node import UV, NodeProcess

ROOT: Final = Path(__file__).parents[2]
VERSION: Final = "0.1.0"

# The last commit whose pyproject.toml says so. The next version needs its own line here: the tests
# of an upgrade begin at the version that users have.
COMMIT: Final = "c7eb65c0db8d86438cdcd324f56d57c97aae0a80"


@dataclass(frozen=True)
class Release:
    """An installed version: third parties are those of this environment, the rest is its own."""

    packages: Path

    @classmethod
    def installed(cls, directory: Path) -> Release:
        """Build and install it below a directory."""
        packages = directory / "packages"
        into = ("--no-deps", "--python", sys.executable, "--target", str(packages))
        _run(UV, "pip", "install", *into, str(built(directory)))
        return cls(packages)

    @property
    def env(self) -> dict[str, str]:
        """What makes an interpreter of this environment import it."""
        return {"PYTHONPATH": str(self.packages)}

    @property
    def command(self) -> Command:
        """Its command line."""
        return Command(self.env, (sys.executable, "-m", "store.cli"), self.packages)

    def node(self, data_dir: Path, *args: str, database_url: str | None = None) -> NodeProcess:
        """A node of it, not started."""
        program, cwd = self.command.program, self.packages
        return NodeProcess(data_dir, args, database_url, self.env, program=program, cwd=cwd)


def built(directory: Path) -> Path:
    """Its wheel, built below a directory from the sources of the time."""
    source, out = directory / "source", directory / "wheels"
    unpack(source)
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION, f"{COMMIT} is version {project['version']}"
    building = ("build", "--wheel", "--no-isolation", "--outdir", str(out), str(source))
    _run(sys.executable, "-m", *building)
    (wheel,) = out.iterdir()
    return wheel


def unpack(target: Path, clone: Path = ROOT) -> None:
    """Write the files of the commit into a directory; fails the test where a clone lacks it."""
    asking = ("git", "-C", str(clone), "cat-file", "-e", f"{COMMIT}^{{commit}}")
    if subprocess.run(asking, capture_output=True, check=False).returncode != 0:
        pytest.fail(
            f"This clone does not hold commit {COMMIT[:7]}, which is version {VERSION}: fetch the"
            " whole history with `git fetch --unshallow`."
        )
    archive = target.with_suffix(".tar")
    _run("git", "-C", str(clone), "archive", f"--output={archive}", COMMIT)
    with tarfile.open(archive) as files:
        files.extractall(target, filter="data")


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
