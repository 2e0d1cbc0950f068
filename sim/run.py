"""Runs by their seeds, each with the command that repeats it when it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from sim.groups.scenario import drawn_group, fixed_group
from sim.groups.world import GroupSummary, GroupWorld
from sim.nwaku_sync import SyncSummary, SyncWorld
from sim.relaying.scenario import Trick, drawn_relay
from sim.relaying.world import RelaySummary, RelayWorld
from sim.rng import Rng
from sim.scenario import draw_with_gossip, drawn
from sim.timeline import Trace
from sim.world import Summary, World
from sim.year.calendar import Calendar
from sim.year.world import YearSummary, YearWorld

_T_co = TypeVar("_T_co", covariant=True)
Sink = Callable[[str], None]
"""Takes the lines of a trace."""


class SimulationFailure(AssertionError):
    """A run failed; says how to repeat it."""


def simulate(seed: int, rng: Rng, *, nodes: int | None = None, sink: Sink | None = None) -> Summary:
    """Run nodes that reconcile once. ``rng`` is seeded with ``seed``; ``sink`` takes the trace.

    Raises:
        SimulationFailure: A rule is broken.
    """
    world = World(drawn(rng, nodes), rng, sink)
    return _repeatable(world, seed, "", world.scenario, _nodes_option(nodes))


def simulate_gossip(
    seed: int,
    rng: Rng,
    *,
    beside: bool = False,
    nodes: int | None = None,
    sink: Sink | None = None,
) -> Summary:
    """Run nodes that gossip; ``beside``: they reconcile as well."""
    world = World(draw_with_gossip(rng, beside=beside, nodes=nodes), rng, sink)
    option = f" --gossip {'beside' if beside else 'alone'}"
    return _repeatable(world, seed, option, world.scenario, _nodes_option(nodes))


def simulate_group(
    seed: int,
    rng: Rng,
    members: int,
    *,
    with_store: bool,
    fixed: bool = False,
    sink: Sink | None = None,
) -> GroupSummary:
    """Run an SDS group, with options drawn from the seed, or ``fixed`` ones."""
    scenario = (fixed_group if fixed else drawn_group)(rng, members, with_store=with_store)
    option = f" --groups {members}" + " --with-store" * with_store + " --fixed" * fixed
    return _repeatable(GroupWorld(scenario, rng, sink), seed, option, scenario)


def simulate_relay(
    seed: int, rng: Rng, *, pushes: bool = True, sink: Sink | None = None
) -> RelaySummary:
    """Run a network of gossipsub routers; ``pushes`` False: requested messages arrive alone."""
    scenario, option = drawn_relay(rng), " --relay"
    if not pushes:
        liars = (Trick.WITHHOLD,) * len(scenario.tricks)
        scenario = replace(scenario, pushes=False, tricks=liars, losses=0.0)
        option += " --no-pushes"
    return _repeatable(RelayWorld(scenario, rng, sink), seed, option, scenario)


def simulate_sync(seed: int, rng: Rng, *, sink: Sink | None = None) -> SyncSummary:
    """Run sessions of gateways with nwaku."""
    return _repeatable(SyncWorld(rng, sink), seed, " --sync")


def simulate_year(
    seed: int, rng: Rng, calendar: Calendar | None = None, *, sink: Sink | None = None
) -> YearSummary:
    """Run a year in coarse steps."""
    calendar = calendar or Calendar()
    return _repeatable(YearWorld(calendar, rng, sink), seed, " --year", calendar)


def _nodes_option(nodes: int | None) -> str:
    return f" --nodes {nodes}" if nodes else ""


class _Runnable(Protocol[_T_co]):
    trace: Trace

    def run(self) -> _T_co: ...


def _repeatable(
    world: _Runnable[_T_co], seed: int, before: str, scenario: object = "", after: str = ""
) -> _T_co:
    """Run a world; a failure has what is needed to repeat it, and the command that does."""
    try:
        return world.run()
    except Exception as error:
        tail = "\n".join(world.trace.tail)
        raise SimulationFailure(
            f"seed {seed}: {type(error).__name__}: {error}\n{tail}\n{scenario}\n"
            f"repeat it with: python -m sim{before} --seed {seed}{after} --trace"
        ) from error
