"""What goes wrong, and when: tasks that break things until the run calms down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from sim.dice import happens
from sim.limits import NS_PER_S

if TYPE_CHECKING:
    from sim.gossiping.world import GossipWorld

_HOUR_NS: Final = 3_600 * NS_PER_S


class Faults:
    """Breaks things until `stop`."""

    def __init__(self, world: GossipWorld) -> None:
        self._world = world
        self._dice = world.dice
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with all the kinds that the scenario has."""
        world, faults = self._world, self._world.gossip.faults
        weather = world.network.weather
        weather.breaks, weather.stalls = faults.breaks, faults.stalls
        weather.unnoticed = faults.unnoticed
        for store in world.stores:
            disk = store.disk
            disk.busy, disk.pause, disk.crashes = faults.busy, faults.pauses, faults.commit_crashes
        for node in world.nodes:
            if happens(self._dice, faults.hour_off):
                node.offset_ns = self._dice.choice((-1, 1)) * _HOUR_NS
        for every_s, what in (
            (faults.crash_every_s, self._crash),
            (faults.partition_every_s, self._partition),
            (faults.outage_every_s, self._outage),
        ):
            if every_s:
                self._tasks.append(asyncio.create_task(self._repeat(every_s, what)))

    def stop(self) -> None:
        """Let everything go right from now on."""
        world = self._world
        for task in self._tasks:
            task.cancel()
        weather = world.network.weather
        weather.breaks = weather.stalls = weather.unnoticed = 0.0
        world.network.heal()
        for store in world.stores:
            store.available = True
            store.disk.busy = store.disk.pause = store.disk.crashes = 0.0
        for node in world.nodes:
            node.offset_ns = 0

    async def _repeat(self, every_s: int, what: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._dice.uniform(0, 2) * every_s)
            await what()

    async def _crash(self) -> None:
        up = [node for node in self._world.nodes if node.life is not None]
        if not up:
            return
        node = self._dice.choice(up)
        if happens(self._dice, self._world.gossip.faults.gentle):
            await asyncio.shield(node.stop())
        else:
            node.crash("by force")
        self._world.restart_later(node)

    async def _partition(self) -> None:
        world, dice = self._world, self._dice
        names = [node.name for node in world.nodes]
        here = dice.sample(names, dice.randint(1, len(names) - 1))
        world.note("net", f"cuts off {sorted(here)}")
        world.network.cut(set(here))
        await asyncio.sleep(dice.uniform(0, 1) ** 2 * 25)
        world.note("net", "is whole again")
        world.network.heal()

    async def _outage(self) -> None:
        store = self._dice.choice(self._world.stores)
        self._world.note(store.store_id, "is away")
        store.available = False
        await asyncio.sleep(self._dice.uniform(0.1, 5))
        self._world.note(store.store_id, "is back")
        store.available = True
