"""How fast an event spreads over many nodes: what `python -m bench gossip_sim` measures.

The nodes form a random graph in which each has about `Shape.degree` peers. Events are published at
random nodes, one after the other, while links break; then nothing breaks any more, and in the end
every node must hold every event.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Final

from sim.dice import Dice
from sim.gossiping.scenario import GossipFaults, GossipScenario
from sim.gossiping.world import GossipWorld
from sim.judge import Violation
from store.gossip.config import GossipConfig

_JOIN_S: Final = 10.0
_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 120.0
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

    def __init__(self, shape: Shape, dice: Dice) -> None:
        self._shape = shape
        self._arrivals: dict[bytes, list[float]] = {}
        super().__init__(_gossip(shape, dice), dice)

    def measure(self) -> Spread:
        """The whole run.

        Raises:
            Violation: an event does not come to all nodes.
        """
        return self.loop.run(self._measure())

    def committed(self, added: list[bytes]) -> None:
        """Note when events arrive."""
        super().committed(added)
        for digest in added:
            self._arrivals.setdefault(digest, []).append(self.loop.time())

    async def _measure(self) -> Spread:
        for node in self.nodes:
            node.boot()
        await asyncio.sleep(_JOIN_S)
        self.counts.clear()
        self.frames = 0
        self.network.weather.breaks = self._shape.breaks
        for number in range(self._shape.events):
            self._publish(number)
            await asyncio.sleep(_EVERY_S)
        await asyncio.sleep(_JOIN_S)
        late = self._lacking()
        self.network.weather.breaks = 0.0
        deadline_s = self.loop.time() + _PATIENCE_S
        while self._lacking():
            if self.loop.time() > deadline_s:
                raise Violation(f"{self._lacking()} events are left out in the end")
            await asyncio.sleep(1)
        self.check()
        return self._spread(late)

    def _publish(self, number: int) -> None:
        message = self.compose(b"%d" % number + bytes(_PAYLOAD_BYTES), self.now_ns())
        life = self.dice.choice(self.nodes).life
        assert life is not None
        life.call(partial(life.publish, [message.encoded], 0))

    def _lacking(self) -> int:
        held = sum(map(len, self._arrivals.values()))
        return self._shape.nodes * self._shape.events - held

    def _spread(self, late: int) -> Spread:
        delays = sorted(time_s - times[0] for times in self._arrivals.values() for time_s in times)
        links = sum(map(len, self.gossip.peers))
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
            breaks=self.marks["link broke"],
        )


def spread(shape: Shape, dice: Dice) -> Spread:
    """One run; see `SpreadWorld.measure`."""
    return SpreadWorld(shape, dice).measure()


def _gossip(shape: Shape, dice: Dice) -> GossipScenario:
    return GossipScenario(
        stores=tuple(range(shape.nodes)),
        peers=_graph(shape, dice),
        sync_every_s=0,
        config=GossipConfig(store_id="", max_confirms=0),
        min_confirms=(0,),
        clients=0,
        publish_every_s=1,
        events=0.0,
        strange=0.0,
        retold=0.0,
        kept_batches=1_000,
        replayed=1_000,
        tricks=(),
        victims=1,
        faults_s=0,
        network_delay_s=0.01,
        disk_delay_s=0.002,
        faults=GossipFaults(),
    )


def _graph(shape: Shape, dice: Dice) -> tuple[tuple[int, ...], ...]:
    """Each node connects to half of its degree at random, and one of them is an earlier node."""
    if shape.nodes <= shape.degree + 1:
        return tuple(tuple(range(node)) for node in range(shape.nodes))
    peers: list[tuple[int, ...]] = []
    pairs: set[frozenset[int]] = set()
    for node in range(shape.nodes):
        chosen: list[int] = [dice.randint(0, node - 1)] if node else []
        while len(chosen) < min(shape.degree // 2, shape.nodes - 1) and node:
            chosen.append(dice.randint(0, shape.nodes - 1))
        fresh = [each for each in dict.fromkeys(chosen) if frozenset((node, each)) not in pairs]
        mine = tuple(each for each in fresh if each != node)
        pairs |= {frozenset((node, each)) for each in mine}
        peers.append(mine)
    return tuple(peers)
