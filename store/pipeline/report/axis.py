"""The time axis of a report: which part of the history is drawn, in steps of which length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from store.pipeline.limits import HOUR_NS
from store.pipeline.report.limits import MAX_STEPS, OUTLIERS, STEPS_NS


@dataclass(frozen=True, slots=True)
class Axis:
    """Steps of ``step_ns`` from ``low_ns`` up to ``high_ns``, exclusive; all multiples of a step.

    ``first_ns`` and ``last_ns``, exclusive, are the whole hours that are drawn: the outermost steps
    may be longer than what there is of them.
    """

    low_ns: int
    high_ns: int
    step_ns: int
    first_ns: int
    last_ns: int

    @property
    def starts(self) -> list[int]:
        """The starts of the steps."""
        return list(range(self.low_ns, self.high_ns, self.step_ns))

    def hours(self, start_ns: int) -> int:
        """Return the number of hours in the step that begins at ``start_ns``."""
        low, high = max(start_ns, self.first_ns), min(start_ns + self.step_ns, self.last_ns)
        return max(0, high - low) // HOUR_NS


def axis_of(first_ns: int, last_ns: int) -> Axis:
    """Return the finest axis that reaches from one time to another, which is part of it."""
    first_ns = first_ns // HOUR_NS * HOUR_NS
    end_ns = last_ns // HOUR_NS * HOUR_NS + HOUR_NS
    for step_ns in STEPS_NS:
        low_ns, high_ns = first_ns // step_ns * step_ns, -(-end_ns // step_ns) * step_ns
        if high_ns - low_ns <= MAX_STEPS * step_ns:
            break
    return Axis(low_ns, high_ns, step_ns, first_ns, end_ns)


def usual_days(messages: Mapping[int, int]) -> tuple[int, int]:
    """Return the first and last day, since the epoch, to draw; one must have messages.

    A few messages with a timestamp of long ago or far ahead would leave no room for the others:
    they are left out if that makes the axis less than half as long.
    """
    days = sorted(messages)
    spare = OUTLIERS * sum(messages.values())
    low = _inner(days, messages, spare)
    high = _inner(days[::-1], messages, spare)
    for first, last in ((days[0], high), (low, days[-1]), (low, high)):
        if 2 * (last - first + 1) < days[-1] - days[0] + 1:
            return first, last
    return days[0], days[-1]


def _inner(days: list[int], messages: Mapping[int, int], spare: float) -> int:
    """Return the first of some days before which at most ``spare`` messages are."""
    before = 0
    for day in days:
        before += messages[day]
        if before > spare:
            return day
    return days[-1]
