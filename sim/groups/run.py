"""One run of a group from its seed, and what to do when it fails."""

from __future__ import annotations

from collections.abc import Callable

from sim.dice import Dice
from sim.groups.scenario import drawn_group, fixed_group
from sim.groups.world import GroupSummary, GroupWorld
from sim.run import SimulationFailure


def simulate_group(
    seed: int,
    dice: Dice,
    members: int,
    *,
    with_store: bool,
    fixed: bool = False,
    sink: Callable[[str], None] | None = None,
) -> GroupSummary:
    """Run once, with options drawn from the seed, or ``fixed`` ones.

    ``dice`` is a generator seeded with ``seed``; ``sink`` takes the trace.

    Raises:
        SimulationFailure: something that must hold does not.
    """
    scenario = (fixed_group if fixed else drawn_group)(dice, members, with_store=with_store)
    world = GroupWorld(scenario, dice, sink)
    try:
        return world.run()
    except Exception as error:
        again = f"python -m sim --groups {members}" + (" --with-store" if with_store else "")
        again += " --fixed" if fixed else ""
        tail = "\n".join(world.trace.tail)
        raise SimulationFailure(
            f"seed {seed}: {type(error).__name__}: {error}\n{tail}\n{scenario}\n"
            f"repeat it with: {again} --seed {seed} --trace"
        ) from error
