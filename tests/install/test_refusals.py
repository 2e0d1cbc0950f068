"""Machines that lack something: one sentence says what, at once, and what works continues
working."""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from chaos.soak.small_disk import READ_ONLY
from tests.install.environment import ROOT
from tests.support.command import Ended
from tests.support.node import UV

PROGRAMS = (
    "awk",
    "cat",
    "env",
    "head",
    "make",
    "mkdir",
    "mktemp",
    "rm",
    "sed",
    "sh",
    "tail",
    "touch",
)
TIMEOUT_S = 120.0
NOWHERE = "http://127.0.0.1:1/simple"
NO_INDEX = {"PIP_INDEX_URL": NOWHERE, "UV_INDEX_URL": NOWHERE, "PIP_FIND_LINKS": ""}


@pytest.fixture
def toolbox(tmp_path: Path) -> Path:
    """Return a search path with what every system has, and neither uv nor Java nor a Python."""
    folder = tmp_path / "toolbox"
    folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with nothing but pip."""
    path = tmp_path_factory.mktemp("empty") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    (site_packages,) = path.glob("lib/python3.*/site-packages")
    (pip,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    (site_packages / "pip.pth").write_text(f"{pip}\n")  # it runs from its wheel too
    (path / "bin" / "pip").symlink_to("python")  # whether it is there is all that make asks
    return path


def make(
    toolbox: Path, *arguments: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Ended:
    """Run make where little is installed, on an environment that is not there."""
    absent = f"VENV={toolbox.with_name('venv')}"
    done = subprocess.run(
        [*prefix, "make", "--no-print-directory", absent, *arguments],
        cwd=ROOT,
        env={"PATH": str(toolbox), "HOME": str(toolbox.parent), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def program(folder: Path, name: str, script: str) -> Path:
    """Return a program that is not what its name says."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def sentences(ended: Ended) -> list[str]:
    """Return what is said, but for the line by which make itself ends."""
    return [line for line in ended.err.splitlines() if not line.startswith("make: ***")]


def test_an_old_python_is_refused_by_make(toolbox: Path) -> None:
    old = program(toolbox, "python3.9", "exit 1")
    ended = make(toolbox, "run", f"PYTHON={old}")
    assert ended.code != 0
    (sentence,) = sentences(ended)
    assert sentence.startswith("storenode needs Python 3.11 or newer, and PYTHON names ")
    assert "make PYTHON=/path/to/python3" in sentence
    program(toolbox, "python3", "exit 1")
    (sentence,) = sentences(make(toolbox, "run"))
    assert sentence.startswith("storenode needs Python 3.11 or newer and found none")


def test_without_java_the_tests_do_not_begin(toolbox: Path) -> None:
    ended = make(toolbox, "test")
    (sentence,) = sentences(ended)
    assert ended.code != 0
    assert sentence.startswith("The tests of the pipeline need Java 17 or newer")
    assert not toolbox.with_name("venv").exists()
    program(toolbox, "java", "echo 'openjdk version \"11.0.2\"' >&2")
    (sentence,) = sentences(make(toolbox, "test"))
    assert "java is version 11" in sentence


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_without_a_connection_make_says_so(toolbox: Path, empty_venv: Path, installer: str) -> None:
    if installer == "uv":
        (toolbox / "uv").symlink_to(UV)
    cold = {"UV_CACHE_DIR": str(toolbox.parent / "cache"), **NO_INDEX}
    ended = make(toolbox, "run", f"VENV={empty_venv}", env=cold)
    assert ended.code != 0
    said = sentences(ended)
    assert said[0] == f"Installing what requirements/run.lock names into {empty_venv} ..."
    assert "The packages that requirements/run.lock names could not be installed" in said[-1]
    assert "check the connection to the package index" in said[-1]
    assert len(said) <= 7
    assert not (empty_venv / ".run").exists()


def test_a_home_that_is_read_only_is_no_obstacle_to_uv(toolbox: Path, empty_venv: Path) -> None:
    """Check that uv needs no cache; without an index it then stops where anybody does."""
    (toolbox / "uv").symlink_to(UV)
    home = toolbox.with_name("home")
    home.mkdir()
    prefix = [shutil.which(READ_ONLY[0]) or "", *READ_ONLY[1:], str(home)]
    env = {"HOME": str(home), "PATH": f"{toolbox}:{os.environ['PATH']}", **NO_INDEX}
    said = make(toolbox, "run", f"VENV={empty_venv}", env=env, prefix=prefix).err
    assert "cache" not in said
    assert NOWHERE in said
