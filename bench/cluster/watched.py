"""What a job on a cluster uses: the driver, which is this process with its JVM, and each worker's
executor with its Python workers.

Memory is looked at again and again while the job runs; the counters of processes are read before
and after it. An executor keeps its processes between jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import psutil

T = TypeVar("T")
EVERY_S: Final = 0.5
_MIB: Final = 1024 * 1024


class Counters(NamedTuple):
    """Of some processes: seconds of processor time, bytes that they have read and written."""

    cpu_s: float = 0.0
    read: int = 0
    written: int = 0

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        read, written = self.read + other.read, self.written + other.written
        return Counters(self.cpu_s + other.cpu_s, read, written)


@dataclass
class Watched:
    """The processes of a cluster; ``workers`` are those of Spark's workers by name, and ``apart``
    those that are started here and are not the driver's.
    """

    workers: Mapping[str, int]
    apart: Set[int]
    peaks: dict[str, int] = field(default_factory=dict)

    def run(self, work: Callable[[], T]) -> tuple[T, dict[str, float]]:
        """Do some work; its result, and what was used.

        Seconds of processor time, MiB read and written, of files and of other processes, and MiB
        of memory that the driver, and the worker that had most, had at the peak.
        """
        self.peaks = {}
        before = self._counters()
        with self._looking():
            result = work()
        used = [now - then for now, then in zip(self._counters(), before, strict=True)]
        peaks = {name: each / _MIB for name, each in self.peaks.items()}
        return result, {
            "cpu_s": used[0],
            "read_mib": used[1] / _MIB,
            "written_mib": used[2] / _MIB,
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
            self._look()

    def _look(self) -> None:
        for name, processes in self._groups():
            memory = 0
            for each in processes:
                with suppress(psutil.Error):
                    memory += each.memory_info().rss
            self.peaks[name] = max(self.peaks.get(name, 0), memory)

    def _counters(self) -> Counters:
        found = Counters()
        for _, processes in self._groups():
            for each in processes:
                with suppress(psutil.Error):
                    times, moved = each.cpu_times(), each.io_counters()
                    # Of children that have ended what they used is their parent's to tell.
                    cpu_s = times.user + times.system + times.children_user + times.children_system
                    found = found.plus(Counters(cpu_s, moved.read_chars, moved.write_chars))
        return found

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
