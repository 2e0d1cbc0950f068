"""Whether what a process uses stays flat.

The rule, for every life of a process (from a start to the next) and every measure: samples of the
first ``warm_up_s`` seconds do not count. What is left, if it spans at least ``least_s`` seconds, is
cut into three parts of equal time. The median of the last part may pass that of the first by the
larger of an absolute and a relative allowance. A part's median is not moved by a moment's work,
such as a reconciliation; a leak moves it.

Memory has a further allowance: a node remembers something of each of its newest messages (who holds
it, who was told, its place in the index), up to bounds by number. Until they are reached it grows
with every message, and it begins anew with every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from bench.soak.checker.verdict import Violation

MIB: Final = 1024 * 1024
BYTES_PER_MESSAGE: Final = 1_280
REMEMBERED: Final = 2**17
"""Messages beyond which a node's memory must not go on growing with their number."""


class Sample(NamedTuple):
    """A measure at a time of a life, and how many messages there were in the whole run by then."""

    at_s: float
    value: float
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """By how much a measure may grow: the larger of ``units`` and ``share`` of what it was."""

    units: float
    share: float


ALLOWED: Final = {
    "memory": Allowance(32 * MIB, 0.2),
    "database connections": Allowance(8, 0.0),
    "sockets": Allowance(16, 0.25),
    "files": Allowance(32, 0.25),
    "threads": Allowance(16, 0.25),
}
"""Measures of a process. Pools and executors may fill up to their bounds late in a life."""


@dataclass(frozen=True, slots=True)
class Life:
    """One measure of one life, in the order of time."""

    process: str
    measure: str
    samples: Sequence[Sample]

    @property
    def most(self) -> float:
        """The largest value, warm-up included."""
        return max((sample.value for sample in self.samples), default=0.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which samples count, in seconds."""

    warm_up_s: float
    least_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """The medians of the first and the last third, and the messages that came from one to the end
    of the other, of those that a node still remembers.
    """

    first: float
    last: float
    messages: int

    def allowed(self, measure: str) -> float:
        """By how much it may have grown."""
        allowance = ALLOWED[measure]
        most = max(allowance.units, allowance.share * self.first)
        return most + (BYTES_PER_MESSAGE * self.messages if measure == "memory" else 0)


def growth(life: Life, rule: Rule) -> Growth | None:
    """How a life grew; None when it is too short to judge."""
    counted = [sample for sample in life.samples if sample.at_s >= rule.warm_up_s]
    if not counted or counted[-1].at_s - counted[0].at_s < rule.least_s:
        return None
    begin_s, span_s = counted[0].at_s, counted[-1].at_s - counted[0].at_s
    first = median(each.value for each in counted if each.at_s <= begin_s + span_s / 3)
    last = median(each.value for each in counted if each.at_s >= begin_s + span_s * 2 / 3)
    since_start = life.samples[0].messages
    room = max(0, REMEMBERED - (counted[0].messages - since_start))
    return Growth(first, last, min(room, counted[-1].messages - counted[0].messages))


def check_flat(lives: Sequence[Life], rule: Rule) -> list[Violation]:
    """One violation for each life and measure that grew."""
    found = []
    for life in lives:
        grown = growth(life, rule)
        if grown is None or grown.last - grown.first <= grown.allowed(life.measure):
            continue
        unit, name = (MIB, " MiB") if life.measure == "memory" else (1, "")
        text = (
            f"{life.process}: {life.measure} grew from {grown.first / unit:.0f} to"
            f" {grown.last / unit:.0f}{name}, by more than {grown.allowed(life.measure) / unit:.0f}"
        )
        found.append(Violation("not flat", text))
    return found
