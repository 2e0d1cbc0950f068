"""Whether what a process uses stays flat.

The rule, for every life of a process (from a start to the next) and every measure: samples of the
first ``warm_up_s`` seconds do not count. What is left, if it spans at least ``least_s`` seconds, is
cut into three parts of equal time. The median of the last part may pass that of the first by the
larger of an absolute and a relative allowance. A part's median is not moved by a moment's work,
such as a reconciliation; a leak moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.soak.checker.verdict import Violation

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Allowance:
    """By how much a measure may grow: the larger of ``units`` and ``share`` of what it was."""

    units: float
    share: float


ALLOWED = {
    "memory": Allowance(32 * MIB, 0.2),
    "database connections": Allowance(8, 0.0),
    "sockets": Allowance(16, 0.25),
    "files": Allowance(32, 0.25),
    "threads": Allowance(16, 0.25),
}
"""Measures of a process. Pools and executors may fill up to their bounds late in a life."""


@dataclass(frozen=True, slots=True)
class Life:
    """One measure of one life: seconds since its start, and the value then."""

    process: str
    measure: str
    samples: Sequence[tuple[float, float]]

    @property
    def most(self) -> float:
        """The largest value, warm-up included."""
        return max((value for _, value in self.samples), default=0.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which samples count, in seconds."""

    warm_up_s: float
    least_s: float


def growth(life: Life, rule: Rule) -> tuple[float, float] | None:
    """The medians of the first and the last third; None for a life that is too short to judge."""
    counted = [(at, value) for at, value in life.samples if at >= rule.warm_up_s]
    if not counted or counted[-1][0] - counted[0][0] < rule.least_s:
        return None
    begin, span = counted[0][0], counted[-1][0] - counted[0][0]
    first = median(value for at, value in counted if at <= begin + span / 3)
    last = median(value for at, value in counted if at >= begin + span * 2 / 3)
    return first, last


def check_flat(lives: Sequence[Life], rule: Rule) -> list[Violation]:
    """One violation for each life and measure that grew."""
    found = []
    for life in lives:
        allowed = ALLOWED[life.measure]
        grown = growth(life, rule)
        if grown is None:
            continue
        first, last = grown
        if last - first > max(allowed.units, allowed.share * first):
            unit = MIB if life.measure == "memory" else 1
            text = (
                f"{life.process}: {life.measure} grew from {first / unit:.0f} to {last / unit:.0f}"
            )
            found.append(Violation("not flat", text + (" MiB" if unit == MIB else "")))
    return found
