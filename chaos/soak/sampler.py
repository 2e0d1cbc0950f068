"""Measures of processes while they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import psutil

from chaos.checker.growth import Life, Sample

EVERY_S: Final = 2.0


class Sampler:
    """A record of what processes use; a process that was started again has another life.

    ``targets`` returns process IDs and the ports of databases by name, and ``count_messages`` the
    number of messages of the run so far.
    """

    def __init__(
        self,
        targets: Callable[[], Mapping[str, tuple[int, set[int]]]],
        count_messages: Callable[[], int],
    ) -> None:
        self._targets = targets
        self._count_messages = count_messages
        self._lives: dict[tuple[str, float, str], list[Sample]] = {}

    def lives(self) -> list[Life]:
        """Return all samples."""
        numbers: dict[str, dict[float, int]] = {}
        for name, begun_s, _ in self._lives:
            known = numbers.setdefault(name, {})
            known.setdefault(begun_s, len(known) + 1)
        return [
            Life(f"{name}, life {numbers[name][begun_s]}", measure, samples)
            for (name, begun_s, measure), samples in self._lives.items()
        ]

    async def run(self) -> None:
        """Measure without end."""
        while True:
            await asyncio.sleep(EVERY_S)
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
            measured = {
                "memory": process.memory_info().rss,
                "database connections": to_database,
                "sockets": len(connections) - to_database,
                "files": process.num_fds(),
                "threads": process.num_threads(),
            }
        age_s, messages = time.time() - begun_s, self._count_messages()
        for measure, value in measured.items():
            samples = self._lives.setdefault((name, begun_s, measure), [])
            samples.append(Sample(age_s, float(value), messages))
