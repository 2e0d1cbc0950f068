"""Directories for several folders of tests, made once in a run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """Return what ``make`` gave for a new directory; who asks for the same name meanwhile waits."""
    # Where several processes run tests, those of one run have their directories in a common one.
    base = factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory, made = common / name, common / f"{name}.path"
    with (common / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(directory, ignore_errors=True)
            made.write_text(str(make(directory)), encoding="utf-8")
    return Path(made.read_text(encoding="utf-8"))
