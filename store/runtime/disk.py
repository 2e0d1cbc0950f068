"""The disk of an embedded database: publishing stops before Postgres has no space for its log."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from store.embedded.datadir import keep_reserve
from store.observe.logging import get_logger
from store.observe.metrics import Metrics

_LOG = get_logger("store.runtime.disk")
_BACK: Final = 1.25
"""Times the least free space: so much must be free before messages are taken again."""


class DiskSpace:
    """``directory``: of an embedded database; None: the disk is somebody else's matter.

    ``least_bytes`` stay free. ``full``: nothing more may be stored.
    """

    def __init__(self, directory: Path | None, least_bytes: int, metrics: Metrics) -> None:
        self._directory = directory
        self._least_bytes = least_bytes
        self._metrics = metrics
        self.full = False

    def look(self) -> None:
        """Measure, and keep the reserve that ``storenode db prune`` gives back."""
        if self._directory is None:
            return
        with suppress(OSError):
            size, _, free = shutil.disk_usage(self._directory)
            self._metrics.disk_free_bytes.labels("data").set(free)
            self._metrics.disk_size_bytes.labels("data").set(size)
            full = free < self._least_bytes * (_BACK if self.full else 1)
            if full != self.full:
                self.full = full
                self._metrics.disk_full.set(int(full))
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
