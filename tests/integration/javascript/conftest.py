"""The JavaScript library, where Node is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.javascript.world import HERE, Library
from tests.support.node import clean_environment

collect_ignore = [] if all(map(shutil.which, ("node", "npm"))) else ["test_beside_javascript.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, installed as its lock file says."""
    made = tmp_path_factory.mktemp("javascript") / "participants"
    shutil.copytree(HERE, made, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(
        command, cwd=made, check=False, capture_output=True, text=True, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def library(folder: Path) -> Iterator[Library]:
    """A process of the library."""
    made = Library(folder)
    yield made
    made.close()
