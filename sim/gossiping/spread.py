"""How fast an event spreads over many nodes: what `python -m bench gossip_sim` measures.

The nodes form a random graph in which each has about `Shape.degree` peers. Events are published at
random nodes, one after the other, while calls break; then nothing breaks any more, and in the end
every node must hold every event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from reconcile.ids import SyncId
from sim.dice import Dice
from sim.gossiping.scenario import GossipScenario
from sim.gossiping.world import GossipWorld
from sim.intake import Publish
from sim.judge import Violation
from sim.limits import NS_PER_MS, NS_PER_S
from sim.network import Caller
from sim.scenario import Scenario, drawn
from store.gossip.config import GossipConfig

_JOIN_NS: Final = 10 * NS_PER_S
_EVERY_NS: Final = NS_PER_S
_PATIENCE_NS: Final = 120 * NS_PER_S
_PAYLOAD_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """``breaks``: of frames, the share at which the call breaks."""

    nodes: int
    degree: int
    events: int
    breaks: float


@dataclass(frozen=True, slots=True)
class Spread:
    """What a run came to; times in nanoseconds from when the publisher had stored an event.

    ``most_ns``: when 99.9 % of all (event, node) pairs were there. ``frames`` and ``ids`` are sent
    ones, for each event; ``copies`` are bodies for each event and link.
    """

    links: int
    half_ns: int
    most_ns: int
    all_ns: int
    late: int
    frames: float
    ids: float
    copies: float
    breaks: int


PUBLISHER: Final = "publisher"


class Publisher(Caller):
    """Hands events to nodes; a `sim.network.Host`."""

    def __init__(self) -> None:
        self.name = PUBLISHER


class SpreadWorld(GossipWorld):
    """The nodes, and when each event came to each of them."""

    def __init__(self, shape: Shape, dice: Dice) -> None:
        self._shape = shape
        self._arrivals: dict[bytes, list[int]] = {}
        super().__init__(_gossip(shape, dice), dice)
        self.network.add(Publisher())

    def measure(self) -> Spread:
        """The whole run.

        Raises:
            Violation: an event does not come to all nodes.
        """
        self._fill()
        for database in self.databases:
            database.followers.append(self._arrived)
        for node in self.nodes:
            node.boot()
        self._let_pass(_JOIN_NS)
        self.counts.clear()
        self.frames = 0
        self.network.weather.breaks = self._shape.breaks
        for number in range(self._shape.events):
            self._publish(number)
            self._let_pass(_EVERY_NS)
        self._let_pass(_JOIN_NS)
        late = self._lacking()
        self.network.weather.breaks = 0.0
        deadline_ns = self.timeline.now_ns + _PATIENCE_NS
        while self._lacking():
            if self.timeline.now_ns > deadline_ns:
                raise Violation(f"{self._lacking()} events are left out in the end")
            self._let_pass(NS_PER_S)
        for node in self.nodes:
            node.check()
        return self._spread(late)

    def _step(self) -> None:
        # Of so many nodes, everything is checked at the end only.
        assert self.timeline.step(), "nothing is left to happen"

    def _publish(self, number: int) -> None:
        message = self.compose(b"%d" % number + bytes(_PAYLOAD_BYTES), self.timeline.now_ns)
        self.judge.make(message)
        self._arrivals[message.digest] = []
        node = self.dice.choice(self.nodes)
        self.network.post(PUBLISHER, node.name, Publish(number, (message.encoded,)))

    def _arrived(self, _: int, added: list[SyncId]) -> None:
        for _, digest in added:
            self._arrivals[digest].append(self.timeline.now_ns)

    def _lacking(self) -> int:
        held = sum(map(len, self._arrivals.values()))
        return self._shape.nodes * self._shape.events - held

    def _spread(self, late: int) -> Spread:
        delays = sorted(
            time_ns - times[0] for times in self._arrivals.values() for time_ns in times
        )
        links = sum(map(len, self.scenario.peers))
        events = self._shape.events
        counts = {str(what): count for what, count in self.counts.items()}
        bodies = counts.get("bodies_pushed", 0) + counts.get("bodies_answered", 0)
        return Spread(
            links=links,
            half_ns=delays[len(delays) // 2],
            most_ns=delays[-(-999 * len(delays) // 1000) - 1],
            all_ns=delays[-1],
            late=late,
            frames=self.frames / events,
            ids=counts.get("ids_sent", 0) / events,
            copies=bodies / events / links,
            breaks=self.marks["a call broke at a frame"],
        )


def spread(shape: Shape, dice: Dice) -> Spread:
    """One run; see `SpreadWorld.measure`."""
    return SpreadWorld(shape, dice).measure()


def _gossip(shape: Shape, dice: Dice) -> GossipScenario:
    return GossipScenario(
        base=_base(shape, dice),
        beside=False,
        config=GossipConfig(store_id="", max_confirms=0),
        min_confirms=(0,),
        events=0.0,
        strange=0.0,
        retold=0.0,
        tricks=(),
        victims=1,
        hour_off=None,
        replayed=1_000,
        rolling=False,
    )


def _base(shape: Shape, dice: Dice) -> Scenario:
    nodes = shape.nodes
    return replace(
        drawn(dice, 2),
        stores=tuple(range(nodes)),
        peers=_graph(shape, dice),
        retention_ns=(None,) * nodes,
        history=0,
        clients=0,
        large_share=0.0,
        small_nodes=frozenset(),
        network_delay_ns=10 * NS_PER_MS,
        disk_delay_ns=2 * NS_PER_MS,
    )


def _graph(shape: Shape, dice: Dice) -> tuple[tuple[int, ...], ...]:
    """Each node calls half of its degree at random, and one of them an earlier node."""
    if shape.nodes <= shape.degree + 1:
        return tuple(tuple(range(node)) for node in range(shape.nodes))
    calls: list[tuple[int, ...]] = []
    pairs: set[frozenset[int]] = set()
    for node in range(shape.nodes):
        chosen: list[int] = [dice.randint(0, node - 1)] if node else []
        while len(chosen) < min(shape.degree // 2, shape.nodes - 1) and node:
            chosen.append(dice.randint(0, shape.nodes - 1))
        fresh = [each for each in dict.fromkeys(chosen) if frozenset((node, each)) not in pairs]
        mine = tuple(each for each in fresh if each != node)
        pairs |= {frozenset((node, each)) for each in mine}
        calls.append(mine)
    return tuple(calls)
