"""Disk space that is kept back beside an embedded database, for when the disk is full.

Postgres does not start without space for its log, and then nothing can be dropped that would free
some. ``storenode db prune`` gives the reserve back first.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

RESERVE_BYTES: Final = 64 * 1024 * 1024
SHARE: Final = 8
"""So much, or at most this part of the disk: a few files of the log of Postgres."""

_NAME: Final = "reserve"


def keep(data_dir: Path) -> None:
    """Make the reserve where there is none and the disk has twice as much.

    Raises:
        OSError: The disk has no space after all, or cannot be written.
    """
    path, usage = data_dir / _NAME, shutil.disk_usage(data_dir)
    size = min(RESERVE_BYTES, usage.total // SHARE)
    if path.exists() or usage.free < 2 * size:
        return
    # Under another name until it is whole: a part of it would be taken for it.
    begun = path.with_suffix(".new")
    try:
        with begun.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        begun.replace(path)
    finally:
        begun.unlink(missing_ok=True)


def release(data_dir: Path) -> int:
    """Give the reserve back where the disk has less free than that; how many bytes.

    Raises:
        OSError: It cannot be removed.
    """
    path = data_dir / _NAME
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    if shutil.disk_usage(data_dir).free >= size:
        return 0
    path.unlink(missing_ok=True)
    return size
