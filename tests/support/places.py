"""Places for what tests make: in memory where there is room, or once in a run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil
import pytest

_MEMORY: Final = Path("/dev/shm")
_LEAST_FREE_BYTES: Final = 4 * 1024**3
_PREFIX: Final = "storenode-of-test-"


def keep_logs(source: Path, tmp_path: Path) -> None:
    """Copy the logs of a directory that is about to be removed to one that pytest keeps."""
    for log in source.rglob("*.log"):
        kept = tmp_path / "logs" / log.relative_to(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)


@contextmanager
def quick_directory(kept: Path) -> Iterator[Path]:
    """Yield a directory that is removed after the block; its logs are copied to ``kept``."""
    memory = _memory()
    with TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=memory) as name:
        try:
            yield Path(name)
        finally:
            keep_logs(Path(name), kept)


def _memory() -> Path | None:
    """Return a file system in memory with room, less what killed processes have left there."""
    if not os.access(_MEMORY, os.W_OK):
        return None
    for left in _MEMORY.glob(f"{_PREFIX}*"):
        if not psutil.pid_exists(int(left.name.removeprefix(_PREFIX).partition("-")[0])):
            shutil.rmtree(left, ignore_errors=True)
    return _MEMORY if shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES else None


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
