"""What a job on a cluster uses: the driver, which is this process with its JVM, and each worker's
executor with its Python workers.

Processes are looked at before and after the job, and again and again while it runs. An executor
keeps its own between jobs; Python workers that have nothing to do end after a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import psutil

T = TypeVar("T")
EVERY_S: Final = 0.5
_MIB: Final = 1024 * 1024


Used = dict[tuple[int, float], tuple[float, int, int]]
"""By process (ID and time of its start), the seconds of processor time that it has used, and the
bytes that it has read and written."""


@dataclass
class Watched:
    """The processes of a cluster; ``workers`` are those of Spark's workers by name, and ``apart``
    those that are started here and are not the driver's.
    """

    workers: Mapping[str, int]
    apart: Set[int]
    peaks: dict[str, int] = field(default_factory=dict)
    used: Used = field(default_factory=dict)

    def run(self, work: Callable[[], T]) -> tuple[T, dict[str, float]]:
        """Do some work; its result, and what was used.

        Seconds of processor time, MiB read and written, of files and of other processes, and MiB
        of memory that the driver, and the worker that had most, had at the peak.
        """
        self.peaks, self.used = {}, {}
        self._look()
        before = dict(self.used)
        with self._looking():
            result = work()
        self._look()
        peaks = {name: each / _MIB for name, each in self.peaks.items()}
        # A worker that has ended meanwhile counts as when it was seen last.
        now, then = (
            [sum(each) for each in zip(*used.values(), strict=True)] for used in (self.used, before)
        )
        return result, {
            "cpu_s": now[0] - then[0],
            "read_mib": (now[1] - then[1]) / _MIB,
            "written_mib": (now[2] - then[2]) / _MIB,
            "driver_peak_mib": peaks.pop("driver"),
            "worker_peak_mib": max(peaks.values()),
        }

    @contextmanager
    def _looking(self) -> Iterator[None]:
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(EVERY_S):
                self._look()

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _look(self) -> None:
        """Take down memory, processor time and bytes."""
        for name, processes in self._groups():
            memory = 0
            for each in processes:
                with suppress(psutil.Error):
                    memory += each.memory_info().rss
                    moved, cpu_s = each.io_counters(), sum(each.cpu_times()[:2])
                    used = cpu_s, moved.read_chars, moved.write_chars
                    self.used[each.pid, each.create_time()] = used
            self.peaks[name] = max(self.peaks.get(name, 0), memory)

    def _groups(self) -> Iterator[tuple[str, list[psutil.Process]]]:
        this = psutil.Process()
        driver = [this]
        for child in this.children():
            if child.pid not in self.apart:
                driver += [child, *_below(child)]
        yield "driver", driver
        for name, pid in self.workers.items():
            yield name, _below(psutil.Process(pid))


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []
