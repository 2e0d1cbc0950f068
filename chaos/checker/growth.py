"""The rule that what a process uses stays flat.

The rule holds for every life of a process (from a start to its end) and every measure. Samples of
the first ``warm_up_s`` seconds are ignored. The rest, if it spans ``least_s`` seconds, is cut into
three parts of equal time. The median of the last part may exceed that of the first by the larger of
an absolute and a relative allowance. Short work, such as a reconciliation, does not move a median;
a leak does.

Memory has a further allowance: a node keeps something of each of its newest messages, up to bounds
by number. Until these are reached it grows with every message, and again after every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from chaos.checker.violation import Violation

MIB: Final = 1024 * 1024
BYTES_PER_MESSAGE: Final = 1_280
MAX_KEPT_MESSAGES: Final = 2**17
"""Messages beyond which a node's memory must not grow with their number."""


class Sample(NamedTuple):
    """A measure at a time of a life, and the number of messages in the whole run by then."""

    at_s: float
    value: float
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowed growth of a measure: the larger of ``units`` and a share of the first value."""

    units: float
    share: float


ALLOWED: Final = {
    "memory": Allowance(32 * MIB, 0.2),
    "database connections": Allowance(8, 0.0),
    "sockets": Allowance(16, 0.25),
    "files": Allowance(32, 0.25),
    "threads": Allowance(16, 0.25),
}
"""The measures of a process. Pools and executors may fill up to their bounds late in a life."""


@dataclass(frozen=True, slots=True)
class Life:
    """The samples of one measure in one life of a process, in the order of time."""

    process: str
    measure: str
    samples: Sequence[Sample]

    @property
    def most(self) -> float:
        """The largest value, warm-up included."""
        return max((sample.value for sample in self.samples), default=0.0)


@dataclass(frozen=True, slots=True)
class Rule:
    """The samples that count, in seconds."""

    warm_up_s: float
    least_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a measure.

    Attributes:
        first: the median of the first third.
        last: the median of the last third.
        messages: messages between them that a node still keeps something of.
    """

    first: float
    last: float
    messages: int

    def allowed(self, measure: str) -> float:
        """Return the growth that is allowed."""
        allowance = ALLOWED[measure]
        most = max(allowance.units, allowance.share * self.first)
        return most + (BYTES_PER_MESSAGE * self.messages if measure == "memory" else 0)


def measure_growth(life: Life, rule: Rule) -> Growth | None:
    """Return the growth in a life; None if it is too short to judge."""
    counted = [sample for sample in life.samples if sample.at_s >= rule.warm_up_s]
    if not counted or counted[-1].at_s - counted[0].at_s < rule.least_s:
        return None
    begin_s, span_s = counted[0].at_s, counted[-1].at_s - counted[0].at_s
    first = median(each.value for each in counted if each.at_s <= begin_s + span_s / 3)
    last = median(each.value for each in counted if each.at_s >= begin_s + span_s * 2 / 3)
    since_start = life.samples[0].messages
    room = max(0, MAX_KEPT_MESSAGES - (counted[0].messages - since_start))
    return Growth(first, last, min(room, counted[-1].messages - counted[0].messages))


def check_growth(lives: Sequence[Life], rule: Rule) -> list[Violation]:
    """Return a violation for each life and measure that grew too much."""
    found = []
    for life in lives:
        grown = measure_growth(life, rule)
        if grown is None or grown.last - grown.first <= grown.allowed(life.measure):
            continue
        unit, name = (MIB, " MiB") if life.measure == "memory" else (1, "")
        text = (
            f"{life.process}: {life.measure} grew from {grown.first / unit:.0f} to"
            f" {grown.last / unit:.0f}{name}, by more than {grown.allowed(life.measure) / unit:.0f}"
        )
        found.append(Violation("not flat", text))
    return found
