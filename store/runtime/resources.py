"""Disk space and memory of the node's process.

Publishing stops before an embedded Postgres has no space for its log.

What frames of many MiB leave behind is free memory of the C library, in pieces of some kilobytes,
which it keeps for later: after a dozen frames of 60 MiB at a time, 600 MiB. glibc gives it back
when it is asked to (malloc_trim(3)). And once it has freed a large block, it takes blocks up to
that size from its heaps, where they stay as long as something lies behind them, unless a size is
set (mallopt(3)). Where there are no such functions, nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.embedded.datadir import keep_reserve
from store.observe.logging import get_logger
from store.observe.metrics import Metrics

_LOG = get_logger("store.runtime.resources")

MAPPED_BYTES: Final = 8 * 1024 * 1024
"""A block of memory of this size or more goes back to the system as soon as it is freed."""

LOOK_REST_S: Final = 1.0
"""A write looks at the disk unless that was done within this time."""

_BACK: Final = 1.25
"""Times the least free space: so much must be free before messages are taken again."""


class DiskSpace:
    """The free space of an embedded database; `on_change` is called when it is full or no more."""

    def __init__(
        self,
        directory: Path | None,
        least_bytes: int,
        metrics: Metrics,
        on_change: Callable[[bool], None],
    ) -> None:
        self._directory = directory
        self._least_bytes = least_bytes
        self._metrics = metrics
        self._on_change = on_change
        self._looked_s = -LOOK_REST_S
        self._full = False

    def is_full(self) -> bool:
        """Return True if nothing more may be stored, as it was `LOOK_REST_S` ago at most."""
        if time.monotonic() - self._looked_s >= LOOK_REST_S:
            self.look()
        return self._full

    def look(self) -> None:
        """Measure, and keep the reserve that ``storenode db prune`` gives back."""
        if self._directory is None:
            return
        self._looked_s = time.monotonic()
        with suppress(OSError):
            size, _, free = shutil.disk_usage(self._directory)
            self._metrics.disk_free_bytes.labels("data").set(free)
            self._metrics.disk_size_bytes.labels("data").set(size)
            full = free < self._least_bytes * (_BACK if self._full else 1)
            if full != self._full:
                self._full = full
                self._metrics.disk_full.set(int(full))
                self._on_change(full)
                log = _LOG.error if full else _LOG.info
                log(
                    "disk_full" if full else "disk_has_space",
                    directory=str(self._directory),
                    free_bytes=free,
                    reason=f"publishing stops below {self._least_bytes:,} free bytes: "
                    "--min-free-disk",
                )
            if not full:
                keep_reserve(self._directory)


_M_MMAP_THRESHOLD: Final = -3
"""The parameter's number in glibc's malloc.h."""


def map_large_blocks() -> None:
    """Return freed blocks of `MAPPED_BYTES` or more to the system, if no other size was set."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


async def trim_memory() -> None:
    """Return free memory to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        await asyncio.to_thread(trim, 0)
