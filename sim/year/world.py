"""The year: days pass, and at the end of each an operator does what is due.

What must hold besides the rules of `sim.judge`:

1. Nothing grows: not what a node has in memory, not its commits, statements and partitions.
2. Nothing is lost: in the end each store has everything of its retention that was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from sim.calls import Identity
from sim.database import Database
from sim.intake import Client
from sim.judge import Violation
from sim.limits import NS_PER_S
from sim.node import Node
from sim.peering import Peering
from sim.process import Process
from sim.rng import Rng
from sim.world import World
from sim.year.calendar import Calendar, scenario_of
from sim.year.growth import Growth, objects_of
from sim.year.partitions import Partitions, maintain
from store.domain.partitioning import DAY_NS

_UNDER_WAY_NS: Final = 30 * NS_PER_S
_CRASH_EVERY_DAYS: Final = 5


@dataclass(frozen=True, slots=True)
class YearSummary:
    """The result of a year; ``grew``: by name, the medians of its second and last quarter."""

    days: int
    events: int
    messages: int
    dropped: int
    sessions: int
    upgrades: int
    crashes: int
    grew: dict[str, tuple[float, float]]


class YearNode(Node):
    """A node with the partitions of its store, which is upgraded now and then."""

    def __init__(self, world: YearWorld, number: int, database: Database) -> None:
        super().__init__(world, number, database)
        self._retention_ns = world.calendar.retention_ns
        self.partitions = Partitions(self._retention_ns)
        self.upgrades = 0

    @property
    def retention_ns(self) -> int | None:
        """The time for which its store keeps messages."""
        return self._retention_ns

    def begin(self, process: Process) -> None:
        """Begin everything that a life does."""
        process.begin_task("retention", maintain(process, self.partitions))
        self.peering = Peering(process, self.peers)
        self.peering.start()


class YearWorld(World):
    """A world of three stores over a year; `run` is called once."""

    max_events = 50_000_000
    check_every = 4_096

    def __init__(
        self, calendar: Calendar, rng: Rng, sink: Callable[[str], None] | None = None
    ) -> None:
        self.calendar = calendar
        self.growth = Growth()
        super().__init__(scenario_of(rng), rng, sink)

    def make_node(self, number: int, database: Database) -> Node:
        """Create a node."""
        return YearNode(self, number, database)

    @property
    def year_nodes(self) -> list[YearNode]:
        """The nodes."""
        return [node for node in self.nodes if isinstance(node, YearNode)]

    def run(self) -> YearSummary:  # type: ignore[override]
        """Run from the beginning to the end.

        Raises:
            Violation: something that must hold does not.
            AssertionError: a machine's invariant, or a bound, is broken.
        """
        with self.loop.running():
            for node in self.nodes:
                node.boot()
            self._act(client.run() for client in self.clients)
            for day in range(self.calendar.days):
                self.pass_for(DAY_NS)
                self._end_day(day)
            self._quiet()
            self.growth.check()
            self._verify()
            self._close()
            return self._year_summary()

    def _end_day(self, day: int) -> None:
        phase = self.calendar.upgrades(day)
        if phase is not None:
            for node in self.year_nodes[1:] if phase else self.year_nodes[:1]:
                self._upgrade(node)
        if day == self.calendar.replaced_on:
            self._replace(self.year_nodes[-1])
        elif day % _CRASH_EVERY_DAYS == 0:
            # The first one has long lives, which show what a life leaves in memory.
            node = self.rng.choice(self.year_nodes[1:])
            if node.process is not None:
                node.crash("by force")
        for node in self.year_nodes:
            self._sample(node)

    def _sample(self, node: YearNode) -> None:
        sample, database = self.growth.sample, node.database
        if node.process is not None:
            life = f"memory of {node.name} in life {node.crashes + node.upgrades}"
            sample(life, objects_of((node.peering, node.process.written_ids)))
        sample(f"messages of {node.name}", len(database.stored))
        sample(f"commits of {node.name}", len(database.commits))
        sample(f"statements of {node.name}", sum(map(len, database.stated.values())))
        sample(
            f"partitions of {node.name}", len(node.partitions.fine) + len(node.partitions.coarse)
        )

    def _upgrade(self, node: YearNode) -> None:
        """Stop a node, and start the next version of it, which has sums."""
        plain = self.scenario.plain_nodes - {node.number}
        self.scenario = replace(self.scenario, plain_nodes=plain)
        self._stop(node)
        node.boot()
        node.upgrades += 1

    def _stop(self, node: YearNode) -> None:
        if node.process is None:
            return
        assert node.peering is not None
        process = node.process
        self._await(process.begin_task("stop", node.peering.stop()))
        process.end()
        node.process = node.peering = None
        self.network.drop_calls(node.name)

    def _replace(self, node: YearNode) -> None:
        """Put an empty store in the place of one that all others have equalled."""
        self._quiet()
        self._stop(node)
        number = node.number
        database = self.make_database(number)
        database.store_id = f"store-{number}-new"
        self.databases[number] = node.database = database
        node.who = Identity(node.who.node_id, database.store_id)
        node.partitions = Partitions(self.calendar.retention_ns)
        node.boot()
        self._settle()
        self.clients = [Client(self, f"later{each}") for each in range(len(self.clients))]
        for client in self.clients:
            self.network.add(client)
        self._act(client.run() for client in self.clients)

    def _quiet(self) -> None:
        """Stop all clients, and wait until all stores are equal."""
        for actor in self._actors:
            actor.cancel()
        self._actors.clear()
        for node in self.nodes:
            self._start(node)
        self.pass_for(_UNDER_WAY_NS)
        self._changed = True
        self._settle()

    def _verify(self) -> None:
        stored = [node.database.stored for node in self.nodes]
        horizon_ns = max(node.policy().horizon_ns or 0 for node in self.nodes)
        for digest in self.judge.acknowledged:
            is_due = self.judge.made[digest].timestamp_ns >= horizon_ns
            if is_due and not all(digest in each for each in stored):
                raise Violation(f"a store lacks {digest.hex()}, which was acknowledged")

    def _year_summary(self) -> YearSummary:
        samples = self.growth.samples
        return YearSummary(
            days=self.calendar.days,
            events=self.timeline.events,
            messages=len(self.judge.acknowledged),
            dropped=sum(node.partitions.dropped for node in self.year_nodes),
            sessions=sum(self.endings.values()),
            upgrades=sum(node.upgrades for node in self.year_nodes),
            crashes=sum(node.crashes for node in self.nodes),
            grew={
                name: self.growth.medians(counts)
                for name, counts in samples.items()
                if not name.startswith("memory") or len(counts) > self.calendar.month_days // 2
            },
        )
