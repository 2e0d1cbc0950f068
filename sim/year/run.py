"""One year from its seed."""

from __future__ import annotations

from collections.abc import Callable

from sim.dice import Dice
from sim.run import repeatable
from sim.year.calendar import Calendar
from sim.year.world import YearSummary, YearWorld


def simulate_year(
    seed: int,
    dice: Dice,
    calendar: Calendar | None = None,
    *,
    sink: Callable[[str], None] | None = None,
) -> YearSummary:
    """Run once. ``dice`` is a generator seeded with ``seed``; ``sink`` takes the trace.

    Raises:
        SimulationFailure: something that must hold does not.
    """
    calendar = calendar or Calendar()
    world = YearWorld(calendar, dice, sink)
    with repeatable(seed, world.trace, calendar, f"python -m sim --year --seed {seed}"):
        return world.run_year()
