"""The built distributions, and virtual environments without files of the repository."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.support.command import Command, Ended
from tests.support.node import UV, NodeProcess

ROOT: Final = Path(__file__).parents[2]
_LOCK: Final = ROOT / "requirements" / "dev.lock"
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_OWN_MODULES: Final = {"PYTHONPATH": ""}
_TIMEOUT_S: Final = 240.0
# An earlier run may have built another wheel of this version at the same path.
_ANEW: Final = ("--refresh-package", "storenode", "--refresh-package", "storenode-node")


@dataclass(frozen=True)
class Dist:
    """The directory that `tools/build_dist.py` has filled."""

    path: Path

    @property
    def library(self) -> Path:
        """The wheel of the library."""
        return self._one(f"storenode-{VERSION}-*.whl")

    @property
    def node(self) -> Path:
        """The wheel of the node."""
        return self._one(f"storenode_node-{VERSION}-*.whl")

    @property
    def library_source(self) -> Path:
        """The source distribution of the library."""
        return self.path / f"storenode-{VERSION}.tar.gz"

    @property
    def node_source(self) -> Path:
        """The source distribution of the node."""
        return self.path / f"storenode_node-{VERSION}.tar.gz"

    @property
    def schemas(self) -> Path:
        """The archive of the schemas."""
        return self.path / f"storenode-proto-{VERSION}.tar.gz"

    def _one(self, pattern: str) -> Path:
        (found,) = self.path.glob(pattern)
        return found


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder beside it in which its programs are run."""

    path: Path
    elsewhere: Path

    @classmethod
    def made(cls, directory: Path) -> Environment:
        """Return an empty one of this Python."""
        made = cls(directory / "venv", directory / "elsewhere")
        made.elsewhere.mkdir()
        _uv("venv", "--python", sys.executable, str(made.path))
        return made

    def install(self, dist: Dist, *requirements: str, **env: str) -> None:
        """Install requirements: ours from what was built, those of others as they are locked."""
        _uv(
            *("pip", "install", "--python", str(self.python), "--find-links", str(dist.path)),
            *("--constraint", str(_LOCK), *_ANEW, *requirements),
            **env,
        )

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.path / "bin" / "python"

    @cached_property
    def site_packages(self) -> Path:
        """The directory of its packages."""
        (found,) = self.path.glob("lib/python3.*/site-packages")
        return found

    @property
    def storenode(self) -> Command:
        """The command, run elsewhere."""
        return Command(_OWN_MODULES, (str(self.path / "bin" / "storenode"),), self.elsewhere)

    def calling(self, node: NodeProcess) -> Command:
        """Return its command, set to call a node."""
        called = {"STORENODE_NODE": node.listen, "STORENODE_ADMIN": node.admin}
        return replace(self.storenode, env={**_OWN_MODULES, **called})

    def run(self, *arguments: str) -> Ended:
        """Run its Python, elsewhere."""
        return Command(_OWN_MODULES, (str(self.python),), self.elsewhere)(*arguments)


def files_of(path: Path) -> set[str]:
    """Return the files in a wheel, or those in a source distribution below its folder."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return set(wheel.namelist())
    with tarfile.open(path) as source:
        files = (member.name for member in source.getmembers() if member.isfile())
        return {name.partition("/")[2] for name in files}


def library_of(dist: Dist, extra: str = "") -> str:
    """Return the requirement that installs the built library, with an extra."""
    return f"storenode{extra} @ {dist.library.as_uri()}"


def _uv(*arguments: str, **env: str) -> None:
    done = Command(env, (UV,))(*arguments)
    assert done.code == 0, done.err


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a program, which must end well; what it printed."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
