"""How fast an event spreads over many nodes that gossip.

The nodes form a random graph in which each has about `Shape.degree` peers. Events are published at
random nodes, one after the other, while links break; then nothing breaks any more, and in the end
every node must hold every event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from sim.dice import Dice
from sim.gossiping.scenario import GossipScenario, alone
from sim.gossiping.world import GossipWorld
from sim.intake import Publish
from sim.judge import Violation
from sim.limits import NS_PER_MS, NS_PER_S
from sim.marks import Mark
from sim.scenario import MIN_NODES, drawn
from store.gossip.limits import GossipConfig

_JOIN_NS: Final = 10 * NS_PER_S
_EVERY_NS: Final = NS_PER_S
_PATIENCE_NS: Final = 120 * NS_PER_S
_PAYLOAD_BYTES: Final = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """``breaks``: of frames, the share at which the link breaks."""

    nodes: int
    degree: int
    events: int
    breaks: float


@dataclass(frozen=True, slots=True)
class Spread:
    """What a run came to; times in seconds from when the publisher's node had stored an event.

    ``most_s``: when 99.9 % of all (event, node) pairs were there. ``frames`` and ``ids`` are sent
    ones, for each event; ``copies`` are bodies for each event and link.
    """

    links: int
    half_s: float
    most_s: float
    all_s: float
    late: int
    frames: float
    ids: float
    copies: float
    breaks: int


class SpreadWorld(GossipWorld):
    """The nodes, and when each event came to each of them."""

    max_events = 100_000_000
    known = 0.0

    def __init__(self, shape: Shape, dice: Dice) -> None:
        self._shape = shape
        self._arrivals: dict[bytes, list[int]] = {}
        super().__init__(_gossip(shape, dice), dice)

    def measure(self) -> Spread:
        """The whole run.

        Raises:
            Violation: an event does not come to all nodes.
        """
        with self.loop.running():
            return self._measure()

    def committed(self, added: list[bytes]) -> None:
        """Note when events arrive."""
        super().committed(added)
        for digest in added:
            self._arrivals.setdefault(digest, []).append(self.timeline.now_ns)

    def look_around(self) -> None:
        """So many nodes have more under way than a run may."""

    def _measure(self) -> Spread:
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
            self._let_pass(_EVERY_NS)
        return self._spread(late)

    def _publish(self, number: int) -> None:
        payload = b"%d" % number + bytes(_PAYLOAD_BYTES)
        message = self.compose(payload, self.timeline.now_ns)
        self.judge.make(message)
        node = self.dice.choice(self.nodes)
        node.receive(node.name, Publish(0, (message.encoded,)))

    def _lacking(self) -> int:
        held = sum(map(len, self._arrivals.values()))
        return self._shape.nodes * self._shape.events - held

    def _spread(self, late: int) -> Spread:
        delays = sorted(
            (time_ns - times[0]) / NS_PER_S
            for times in self._arrivals.values()
            for time_ns in times
        )
        links = sum(map(len, self.scenario.peers))
        events = self._shape.events
        counts = {str(what): count for what, count in self.counts.items()}
        bodies = counts.get("bodies_pushed", 0) + counts.get("bodies_answered", 0)
        return Spread(
            links=links,
            half_s=delays[len(delays) // 2],
            most_s=delays[-(-999 * len(delays) // 1000) - 1],
            all_s=delays[-1],
            late=late,
            frames=self.frames / events,
            ids=counts.get("ids_sent", 0) / events,
            copies=bodies / events / links,
            breaks=self.marks[str(Mark.TORN)],
        )


def spread(shape: Shape, dice: Dice) -> Spread:
    """One run; see `SpreadWorld.measure`."""
    return SpreadWorld(shape, dice).measure()


def _gossip(shape: Shape, dice: Dice) -> GossipScenario:
    base = drawn(dice, MIN_NODES)
    stores = tuple(range(shape.nodes))
    none = alone(base.faults)
    base = replace(
        base,
        stores=stores,
        peers=_graph(shape, dice),
        retention_ns=(None,) * shape.nodes,
        clients=0,
        large_share=0.0,
        network_delay_ns=10 * NS_PER_MS,
        disk_delay_ns=2 * NS_PER_MS,
        faults=replace(none, unnoticed=0.0, busy=0.0, commit_crashes=0.0, drift_ppm=0),
    )
    config = GossipConfig(store_id="", max_confirms=0)
    return GossipScenario(base=base, beside=False, config=config, min_confirms=(0,))


def _graph(shape: Shape, dice: Dice) -> tuple[tuple[int, ...], ...]:
    """Each node connects to half of its degree of earlier ones, so that all are connected."""
    half = shape.degree // 2
    return tuple(tuple(dice.sample(range(node), min(node, half))) for node in range(shape.nodes))
