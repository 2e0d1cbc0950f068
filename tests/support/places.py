"""Directories for servers that are made anew again and again: in memory, where there is room.

A database is some hundred files. To make and remove them takes about four times as much processor
time on a disk's file system as on one in memory, and is most of what a small test takes there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil

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
