"""The rule that what a process uses stays flat, and the samples of it.

The rule holds for every life of a process (from a start to its end) and every measure. Samples of
the first `WARM_UP_S` seconds are ignored. The rest, if it spans `LEAST_S` seconds, is cut into
three parts of equal time. The median of the last part may exceed that of the first by the larger of
an absolute and a relative allowance. Short work, such as a reconciliation, does not move a median;
a leak does.

Memory has a further allowance: a node keeps something of each of its newest messages, up to bounds
by number. Until these are reached it grows with every message, and again after every start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

import psutil

from chaos.checker.history import Violation

MIB: Final = 1024 * 1024
WARM_UP_S: Final = 60.0
"""A node fills its caches and pools in its first minute."""

LEAST_S: Final = 120.0
EVERY_S: Final = 2.0
BYTES_PER_MESSAGE: Final = 1_280
MAX_KEPT_MESSAGES: Final = 2**17
"""Messages beyond which a node's memory must not grow with their number."""

ALLOWED: Final = {
    "memory": (32 * MIB, 0.2),
    "database connections": (8, 0.0),
    "sockets": (16, 0.25),
    "files": (32, 0.25),
    "threads": (16, 0.25),
}
"""The allowed growth of each measure of a process: the larger of a number and a share of the first
value. Pools and executors may fill up to their bounds late in a life."""


class Sample(NamedTuple):
    """A measure at a time of a life, and the number of messages in the whole run by then."""

    at_s: float
    value: float
    messages: int = 0


def check_growth(process: str, measure: str, samples: Sequence[Sample]) -> list[Violation]:
    """Return a violation if a measure of one life of a process grew too much."""
    counted = [sample for sample in samples if sample.at_s >= WARM_UP_S]
    if not counted or counted[-1].at_s - counted[0].at_s < LEAST_S:
        return []
    begin_s, span_s = counted[0].at_s, counted[-1].at_s - counted[0].at_s
    first = median(each.value for each in counted if each.at_s <= begin_s + span_s / 3)
    last = median(each.value for each in counted if each.at_s >= begin_s + span_s * 2 / 3)
    least, share = ALLOWED[measure]
    allowed = max(least, share * first)
    unit, name = 1, ""
    if measure == "memory":
        unit, name = MIB, " MiB"
        room = max(0, MAX_KEPT_MESSAGES - (counted[0].messages - samples[0].messages))
        new = counted[-1].messages - counted[0].messages
        allowed += BYTES_PER_MESSAGE * min(room, new)
    if last - first <= allowed:
        return []
    sentence = (
        f"{process}: {measure} grew from {first / unit:.0f} to {last / unit:.0f}{name}, by more"
        f" than {allowed / unit:.0f}"
    )
    return [Violation("not flat", sentence)]


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

    def check(self) -> list[Violation]:
        """Return what grew too much in any life."""
        return [
            violation
            for (name, _, measure), samples in self._lives.items()
            for violation in check_growth(name, measure, samples)
        ]

    def peaks(self) -> dict[str, dict[str, float]]:
        """Return the most of each measure in all lives, by process."""
        found: dict[str, dict[str, float]] = {}
        for (name, _, measure), samples in self._lives.items():
            peaks = found.setdefault(name, {})
            peaks[measure] = max(peaks.get(measure, 0.0), *(each.value for each in samples))
        return found

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
