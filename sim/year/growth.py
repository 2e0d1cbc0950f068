"""Counts of a node's memory and store, day by day, which may not grow with the days.

Memory is counted in objects that a node's process refers to, as `gc` finds them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from sim.bridge import TimelineLoop
from sim.database import Database
from sim.judge import Judge, Violation
from sim.network import Network
from sim.node import Node
from sim.process import Process
from sim.timeline import Timeline
from sim.world import World

_ELSEWHERE: Final = (
    *(BuiltinFunctionType, CodeType, FunctionType, ModuleType, type),
    *(Database, Judge, Network, Node, Process, Timeline, TimelineLoop, World),
)
"""What is not of a node's memory, or is in every process."""

_SHARE: Final = 1.2
_FEWEST: Final = 8
_ALLOWANCE: Final = 10
_ALLOWANCES: Final = {"commits": 60, "memory": 400, "statements": 150}
"""Counts of the last quarter may pass those of the second one by so much. At the end of a day a
session may be under way; statements about a store that was replaced stay until the horizon, and
the new one has few commits at first."""


def objects_of(roots: Iterable[object]) -> int:
    """Count the objects that can be reached; those of arrays count by their size."""
    seen: dict[int, object] = {}
    left: list[Any] = list(roots)
    count = 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, _ELSEWHERE):
            continue
        seen[id(each)] = each
        count += 1 + getattr(each, "nbytes", 0) // 40
        if isinstance(each, MethodType):
            left.append(each.__self__)
        else:
            left += gc.get_referents(each)
    return count


class Growth:
    """Counts of all nodes, one sample a day."""

    def __init__(self) -> None:
        self.samples: dict[str, list[int]] = {}

    def sample(self, name: str, count: int) -> None:
        """Note a count of this day."""
        self.samples.setdefault(name, []).append(count)

    def check(self) -> None:
        """Compare the last quarter with the second one.

        Raises:
            Violation: something grows.
        """
        for name, counts in self.samples.items():
            if len(counts) < _FEWEST:
                continue
            before, after = self.medians(counts)
            allowed = _ALLOWANCES.get(name.partition(" ")[0], _ALLOWANCE)
            if after > _SHARE * before + allowed:
                raise Violation(f"{name} grows with the days: from {before:.0f} to {after:.0f}")

    @staticmethod
    def medians(counts: list[int]) -> tuple[float, float]:
        """Return the medians of the second and of the last quarter."""
        quarter = max(1, len(counts) // 4)
        return statistics.median(counts[quarter : 2 * quarter]), statistics.median(
            counts[-quarter:]
        )
