"""One run from its seed, and what to do when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sim.dice import Dice
from sim.scenario import drawn
from sim.trace import Trace
from sim.world import Summary, World


class SimulationFailure(AssertionError):
    """A run failed; says how to repeat it."""


def simulate(
    seed: int,
    dice: Dice,
    *,
    nodes: int | None = None,
    sink: Callable[[str], None] | None = None,
) -> Summary:
    """Run once. ``dice`` is a generator seeded with ``seed``; ``sink`` takes the trace.

    Raises:
        SimulationFailure: something that must hold does not.
    """
    scenario = drawn(dice, nodes)
    world = World(scenario, dice, sink)
    again = f"python -m sim --seed {seed}" + (f" --nodes {nodes}" if nodes else "")
    with repeatable(seed, world.trace, scenario, again):
        return world.run()


@contextmanager
def repeatable(seed: int, trace: Trace, scenario: object, again: str) -> Iterator[None]:
    """Say what is needed to repeat a run that fails, and ``again``, the command that does.

    Raises:
        SimulationFailure: it fails.
    """
    try:
        yield
    except Exception as error:
        tail = "\n".join(trace.tail)
        raise SimulationFailure(
            f"seed {seed}: {type(error).__name__}: {error}\n{tail}\n{scenario}\n"
            f"repeat it with: {again} --trace"
        ) from error
