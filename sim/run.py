"""One run from its seed, and what to do when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sim.dice import Dice
from sim.gossiping.scenario import drawn_gossip
from sim.gossiping.world import GossipSummary, GossipWorld
from sim.groups.scenario import drawn_group, fixed_group
from sim.groups.world import GroupSummary, GroupWorld
from sim.relaying.scenario import drawn_relay
from sim.relaying.world import RelaySummary, RelayWorld
from sim.scenario import drawn
from sim.trace import Trace
from sim.world import Summary, World
from sim.year.calendar import Calendar
from sim.year.world import YearSummary, YearWorld

Sink = Callable[[str], None]
"""Takes the lines of a trace."""


class SimulationFailure(AssertionError):
    """A run failed; says how to repeat it."""


def simulate(
    seed: int, dice: Dice, *, nodes: int | None = None, sink: Sink | None = None
) -> Summary:
    """Run once. ``dice`` is a generator seeded with ``seed``; ``sink`` takes the trace.

    Raises:
        SimulationFailure: something that must hold does not.
    """
    scenario = drawn(dice, nodes)
    world = World(scenario, dice, sink)
    with _repeatable(world.trace, scenario, seed, f" --nodes {nodes}" if nodes else ""):
        return world.run()


def simulate_gossip(
    seed: int,
    dice: Dice,
    *,
    beside: bool = False,
    nodes: int | None = None,
    sink: Sink | None = None,
) -> GossipSummary:
    """As `simulate`, with gossip; ``beside``: nodes reconcile as well."""
    scenario = drawn_gossip(dice, beside=beside, nodes=nodes)
    world = GossipWorld(scenario, dice, sink)
    after = f" --nodes {nodes}" if nodes else ""
    before = f" --gossip {'beside' if beside else 'alone'}"
    with _repeatable(world.trace, scenario, seed, after, before):
        return world.run()


def simulate_group(
    seed: int,
    dice: Dice,
    members: int,
    *,
    with_store: bool,
    fixed: bool = False,
    sink: Sink | None = None,
) -> GroupSummary:
    """As `simulate`, an SDS group, with options drawn from the seed, or ``fixed`` ones."""
    scenario = (fixed_group if fixed else drawn_group)(dice, members, with_store=with_store)
    world = GroupWorld(scenario, dice, sink)
    before = f" --groups {members}" + " --with-store" * with_store + " --fixed" * fixed
    with _repeatable(world.trace, scenario, seed, before=before):
        return world.run()


def simulate_relay(seed: int, rng: Dice, *, sink: Sink | None = None) -> RelaySummary:
    """Run a network of gossipsub routers once; arguments and errors as of `simulate`."""
    scenario = drawn_relay(rng)
    world = RelayWorld(scenario, rng, sink)
    with _repeatable(world.trace, scenario, seed, before=" --relay"):
        return world.run()


def simulate_year(
    seed: int, dice: Dice, calendar: Calendar | None = None, *, sink: Sink | None = None
) -> YearSummary:
    """As `simulate`, a year in coarse steps."""
    calendar = calendar or Calendar()
    world = YearWorld(calendar, dice, sink)
    with _repeatable(world.trace, calendar, seed, before=" --year"):
        return world.run_year()


@contextmanager
def _repeatable(
    trace: Trace, scenario: object, seed: int, after: str = "", before: str = ""
) -> Iterator[None]:
    """Say what is needed to repeat a run that fails, and the command that does."""
    try:
        yield
    except Exception as error:
        tail = "\n".join(trace.tail)
        raise SimulationFailure(
            f"seed {seed}: {type(error).__name__}: {error}\n{tail}\n{scenario}\n"
            f"repeat it with: python -m sim{before} --seed {seed}{after} --trace"
        ) from error
