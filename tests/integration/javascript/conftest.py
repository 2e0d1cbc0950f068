"""The JavaScript library, where Node is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.javascript.world import Library, installed

collect_ignore = [] if all(map(shutil.which, ("node", "npm"))) else ["test_beside_javascript.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library, installed as its lock file says."""
    return installed(tmp_path_factory.mktemp("javascript") / "participants")


@pytest.fixture
def library(folder: Path) -> Iterator[Library]:
    """Return a process of the library."""
    made = Library(folder)
    yield made
    made.close()
