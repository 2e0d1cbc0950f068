"""What goes wrong with gossip besides what does in every run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sim.dice import happens
from sim.faults import FaultInjector
from sim.limits import NS_PER_S

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

_KEEPALIVE_NS: Final = 15 * NS_PER_S


class GossipFaultInjector(FaultInjector):
    """Also delays frames and calls of the store, and shuts nodes down."""

    def __init__(self, world: GossipWorld) -> None:
        super().__init__(world)
        self._gossip = world

    def start(self) -> None:
        """Begin with all the kinds that the scenario has."""
        gossip, weather = self._gossip.gossip, self._gossip.network.weather
        weather.stalls, weather.silent = gossip.stalls, gossip.silent
        weather.keepalive_ns = _KEEPALIVE_NS
        for store in self._gossip.stores:
            store.pauses = gossip.pauses
        super().start()

    def stop(self) -> None:
        """Let everything go right from now on."""
        super().stop()
        weather = self._gossip.network.weather
        weather.stalls = weather.silent = 0.0
        for store in self._gossip.stores:
            store.pauses = 0.0

    async def _crash(self) -> None:
        world = self._gossip
        up = [node for node in world.nodes if node.process is not None]
        if not up or not happens(world.dice, world.gossip.gentle):
            await super()._crash()
            return
        node = world.dice.choice(up)
        await asyncio.wait({world.loop.begin(None, node.stop())})
        world.restart_later(node)
