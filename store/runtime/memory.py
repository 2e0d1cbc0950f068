"""Gives memory back to the system that the process has freed.

What frames of many MiB leave behind is free memory of the C library, in pieces of some kilobytes,
which it keeps for later: after a dozen frames of 60 MiB at a time, 600 MiB. glibc gives it back
when it is asked to (malloc_trim(3)). And once it has freed a large block, it takes blocks up to
that size from its heaps, where they stay as long as something lies behind them, unless it is told a
size (mallopt(3)). Where there are no such functions, nothing is done.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from store.runtime.limits import MAPPED_BYTES, MAX_TRIM_PAUSE, TRIM_GROWTH_BYTES

_STATM: Final = Path("/proc/self/statm")
"""Sizes of this process in pages, the second the resident one (Linux, proc(5))."""

_M_MMAP_THRESHOLD: Final = -3
"""The parameter's number in glibc's malloc.h."""


def map_large_blocks() -> None:
    """Give blocks of `MAPPED_BYTES` or more back as they are freed, if no other size was set."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def trimming() -> Callable[[], object] | None:
    """The C library's function that gives freed memory back; None where there is none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None or not _STATM.exists() else lambda: trim(0)


def resident_bytes() -> int:
    """What the process holds in memory."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Trimmer:
    """Asks for memory back where the process has grown; `trim_grown` is called now and then.

    A process may have grown for good: when little comes back, ever more calls pass until the next
    attempt, up to `MAX_TRIM_PAUSE`.
    """

    def __init__(self) -> None:
        self._trim = trimming()
        self._smallest = resident_bytes() if self._trim else 0
        self._pause = 1
        self._passed = 0

    async def trim_grown(self) -> None:
        """Give back what is free, if the process is much larger than it has been."""
        self._passed += 1
        if self._trim is None or self._passed < self._pause:
            return
        before = resident_bytes()
        if before < self._smallest + TRIM_GROWTH_BYTES:
            return
        await asyncio.to_thread(self._trim)
        after = resident_bytes()
        self._smallest = min(self._smallest, after)
        little = before - after < TRIM_GROWTH_BYTES // 4
        self._pause = min(2 * self._pause, MAX_TRIM_PAUSE) if little else 1
        self._passed = 0
