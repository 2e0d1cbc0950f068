"""What processes use, measured while they run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil

from bench.soak.checker.flatness import Life, Sample

EVERY_S = 2.0


class Sampler:
    """Measures processes from a thread of its own. A process that comes anew begins another life.

    ``targets`` gives, by name, the process ID and the ports of its database, each time anew;
    ``messages`` how many messages there are.
    """

    def __init__(
        self,
        targets: Callable[[], Mapping[str, tuple[int, set[int]]]],
        messages: Callable[[], int],
    ) -> None:
        self._targets = targets
        self._messages = messages
        self._lives: dict[tuple[str, float, str], list[Sample]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def lives(self) -> list[Life]:
        """Everything that was measured."""
        numbers: dict[str, dict[float, int]] = {}
        for name, begun_s, _ in self._lives:
            known = numbers.setdefault(name, {})
            known.setdefault(begun_s, len(known) + 1)
        return [
            Life(f"{name}, life {numbers[name][begun_s]}", measure, samples)
            for (name, begun_s, measure), samples in self._lives.items()
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure for the length of a ``with`` block."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            for name, (pid, ports) in self._targets().items():
                try:
                    self._measure(name, psutil.Process(pid), ports)
                except psutil.Error:
                    continue

    def _measure(self, name: str, process: psutil.Process, ports: set[int]) -> None:
        with process.oneshot():
            begun_s = process.create_time()
            connections = process.net_connections("tcp")
            to_database = sum(bool(each.raddr) and each.raddr.port in ports for each in connections)
            found = {
                "memory": process.memory_info().rss,
                "database connections": to_database,
                "sockets": len(connections) - to_database,
                "files": process.num_fds(),
                "threads": process.num_threads(),
            }
        age_s, messages = time.time() - begun_s, self._messages()
        for measure, value in found.items():
            samples = self._lives.setdefault((name, begun_s, measure), [])
            samples.append(Sample(age_s, float(value), messages))
