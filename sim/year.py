"""A year of three stores in coarse steps: days pass, and an operator does what is due.

What must hold besides the rules of `sim.judge`:

1. Nothing grows from the second quarter to the last: not what a node has in memory, counted in
   objects that `gc` finds, not its messages, commits and statements.
2. Nothing is lost: in the end each store has everything of its retention that was acknowledged.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from reconcile.algorithm.plan import Tuning
from reconcile.limits import SessionLimits, SummaryLimits
from sim.bridge import TimelineLoop
from sim.calls import Identity
from sim.database import Database
from sim.intake import Client
from sim.judge import Judge, ViolationError
from sim.limits import NS_PER_S
from sim.network import Network
from sim.node import Node
from sim.process import Process
from sim.rng import Random
from sim.scenario import DAY_NS, HOUR_NS, MINUTE_NS, Faults, Scenario, drawn
from sim.timeline import Timeline
from sim.world import World
from store.sync.limits import IndexLimits, TransferLimits

YEAR_DAYS: Final = 365
MONTH_DAYS: Final = 30

_STORES: Final = 3
_UNDER_WAY_NS: Final = 30 * NS_PER_S
_CRASH_EVERY_DAYS: Final = 5

_ELSEWHERE: Final = (
    *(BuiltinFunctionType, CodeType, FunctionType, ModuleType, type),
    *(Database, Judge, Network, Node, Process, Timeline, TimelineLoop, World),
)
"""The objects that are not part of a node's memory, or that every process has."""

_SHARE: Final = 1.2
_FEWEST: Final = 8
_ALLOWANCE: Final = 10
_ALLOWANCES: Final = {"commits": 60, "memory": 400, "statements": 150}
"""Counts of the last quarter may pass those of the second one by so much. At the end of a day a
session may be under way; statements about a store that was replaced stay until the horizon, and
the new one has few commits at first."""


class YearWorld(World):
    """A year of stores that keep messages for a month, or a quarter of a run of few days."""

    max_events = 50_000_000
    check_every = 4_096
    look_every_ns = 10 * MINUTE_NS

    def __init__(
        self, rng: Random, days: int = YEAR_DAYS, sink: Callable[[str], None] | None = None
    ) -> None:
        self.days = days
        self.month_days = min(MONTH_DAYS, days // 4)
        self._samples: dict[str, list[int]] = {}
        super().__init__(_scenario_of(rng, self.month_days * DAY_NS), rng, sink)

    def play(self) -> int:
        """Let the days pass, and look at what has grown."""
        for node in self.nodes:
            node.boot()
        self.begin_clients()
        for day in range(self.days):
            self.pass_for(DAY_NS)
            self._end_day(day)
        self._quiet()
        self._check_growth()
        self._verify()
        self._close()
        self._count()
        return 0

    def _end_day(self, day: int) -> None:
        if day == self.days // 3:
            self._replace(self.nodes[-1])
        elif day % _CRASH_EVERY_DAYS == 0:
            # The first one has a long life, which shows what a life leaves in memory.
            node = self.rng.choice(self.nodes[1:])
            if node.process is not None:
                node.crash("by force")
        for node in self.nodes:
            self._sample(node)

    def _sample(self, node: Node) -> None:
        database = node.database
        counts = {
            f"messages of {node.name}": len(database.stored),
            f"commits of {node.name}": len(database.commits),
            f"statements of {node.name}": sum(map(len, database.stated.values())),
        }
        if node.process is not None:
            parts = node.peering, node.process.own
            counts[f"memory of {node.name} in life {node.crashes}"] = objects_of(parts)
        for name, count in counts.items():
            self._samples.setdefault(name, []).append(count)

    def _check_growth(self) -> None:
        """Compare the last quarter with the second one."""
        for name, counts in self._samples.items():
            if len(counts) < _FEWEST:
                continue
            quarter = max(1, len(counts) // 4)
            before = statistics.median(counts[quarter : 2 * quarter])
            after = statistics.median(counts[-quarter:])
            allowed = _ALLOWANCES.get(name.partition(" ")[0], _ALLOWANCE)
            if after > _SHARE * before + allowed:
                raise ViolationError(f"{name} grows by the day, {before:.0f} to {after:.0f}")

    def _replace(self, node: Node) -> None:
        """Put an empty store in the place of one that all others have equalled."""
        self._quiet()
        if node.process is not None and node.peering is not None:
            self.wait_for(node.process.begin_task("stop", node.peering.stop()))
            node.process.end()
            node.process = node.peering = None
            self.network.drop_calls(node.name)
        database = self.make_database(node.number)
        database.store_id = f"store-{node.number}-new"
        self.databases[node.number] = node.database = database
        node.who = Identity(node.who.node_id, database.store_id)
        node.boot()
        self._wait_until_equal()
        self.clients = [Client(self, f"later{each}") for each in range(len(self.clients))]
        self.network.add(*self.clients)
        self.begin_clients()

    def _quiet(self) -> None:
        """Stop all clients, and wait until all stores are equal."""
        for actor in self._actors:
            actor.cancel()
        self._actors.clear()
        for node in self.nodes:
            node.boot()
        self.pass_for(_UNDER_WAY_NS)
        self._wait_until_equal()

    def _verify(self) -> None:
        stored = [node.database.stored for node in self.nodes]
        horizon_ns = max(node.policy().horizon_ns or 0 for node in self.nodes)
        for digest in self.judge.acknowledged:
            is_due = self.judge.made[digest].timestamp_ns >= horizon_ns
            if is_due and not all(digest in each for each in stored):
                raise ViolationError(f"a store lacks {digest.hex()}, which was acknowledged")


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


def _scenario_of(rng: Random, retention_ns: int) -> Scenario:
    """Return three stores that call each other, without faults but those of the calendar."""
    everyone = [tuple(other for other in range(_STORES) if other != one) for one in range(_STORES)]
    return replace(
        drawn(rng, _STORES),
        stores=tuple(range(_STORES)),
        peers=tuple(everyone),
        retention_ns=(retention_ns,) * _STORES,
        partition_ns=DAY_NS,
        history=0,
        moments=1,
        clients=2,
        publish_every_ns=6 * HOUR_NS,
        ask_every_ns=0,
        sds_share=0.0,
        large_share=0.0,
        small_nodes=frozenset(),
        plain_nodes=frozenset(),
        forged=False,
        interval_ns=12 * HOUR_NS,
        wide_ns=24 * HOUR_NS,
        range_ns=24 * HOUR_NS,
        offset_ns=NS_PER_S,
        index=IndexLimits(settle_s=6 * 3_600.0),
        own_bytes=1_000_000,
        online_every_s=3_600.0,
        limits=SessionLimits(),
        tuning=Tuning(),
        transfer=TransferLimits(),
        summary=SummaryLimits(),
        faults=Faults(),
    )
