"""Tasks that break things from time to time, and put them right in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from sim.coverage import ask_after_loss
from sim.limits import NS_PER_MS, NS_PER_S
from sim.node import Node
from sim.rng import happens

if TYPE_CHECKING:
    from sim.node_world import NodeWorld

Fault: TypeAlias = Callable[[], Coroutine[None, None, None]]

_BUSY_MOMENTS: Final = 0.7
"""Share of faults that wait for something to be under way, where they do more harm."""

_GOSSIP_KEEPALIVE_NS: Final = 15 * NS_PER_S
_LOOK_EVERY_S: Final = 0.02
_LOOKS: Final = 250


class FaultInjector:
    """Breaks nodes, their databases and their network from time to time until `stop`."""

    def __init__(self, world: NodeWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._faults = world.scenario.faults
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with all the kinds that the scenario has."""
        faults, weather = self._faults, self._world.network.weather
        weather.breaks, weather.unnoticed = faults.breaks, faults.unnoticed
        weather.lost, weather.twice = faults.lost, faults.twice
        gossip = self._world.scenario.gossip
        if gossip is not None:
            weather.stalls, weather.silent = gossip.stalls, gossip.silent
            weather.keepalive_ns = _GOSSIP_KEEPALIVE_NS
        for database in self._world.databases:
            database.weather.pauses = 0.0 if gossip is None else gossip.pauses
            database.weather.crashes = faults.commit_crashes
            database.weather.busy = faults.busy
            database.weather.fails = faults.fails
        for every_ns, what in self.kinds():
            if every_ns:
                self._tasks.append(self._world.loop.begin(None, self._again(every_ns, what)))
        if faults.skew_ns:
            self.skew_all()

    def kinds(self) -> Sequence[tuple[int, Fault]]:
        """Return what is done from time to time, with its mean distance in ns; 0: never."""
        faults = self._faults
        return (
            (faults.crash_every_ns, self._crash),
            (faults.partition_every_ns, self._partition),
            (faults.outage_every_ns, self._outage),
            (faults.jump_every_ns if faults.skew_ns else 0, self._jump),
            (faults.index_lost_every_ns, self._lose_index),
        )

    def skew_all(self) -> None:
        """Set all clocks."""
        for node in self._world.nodes:
            self._skew(node)

    def stop(self) -> None:
        """Let everything go right from now on."""
        for task in self._tasks:
            task.cancel()
        weather = self._world.network.weather
        weather.breaks = weather.lost = weather.twice = weather.unnoticed = 0.0
        weather.stalls = weather.silent = 0.0
        self._world.network.heal()
        for database in self._world.databases:
            database.come_back()
            database.weather.crashes = database.weather.busy = database.weather.fails = 0.0
            database.weather.pauses = 0.0
        for node in self._world.nodes:
            node.clock.offset_ns = 0

    def offset_ns(self) -> int:
        """Draw how far a clock is ahead; half of them are right."""
        most_ns = self._faults.skew_ns
        return 0 if happens(self._rng, 0.5) else int(self._rng.uniform(-most_ns, most_ns))

    async def choose_moment(self) -> None:
        """Wait, in most cases, until something is under way."""
        if happens(self._rng, _BUSY_MOMENTS):
            await self._busy_moment()

    async def _again(self, every_ns: int, what: Fault) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0, 2) * every_ns / NS_PER_S)
            await self.choose_moment()
            await what()

    async def _busy_moment(self) -> None:
        """Wait until a call is under way, and a little longer: for a time without one, not long."""
        for _ in range(_LOOKS):
            if self._world.network.calls:
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        delay_ns = self._world.scenario.network_delay_ns + self._world.scenario.disk_delay_ns
        await asyncio.sleep(self._rng.uniform(0, 20) * delay_ns / NS_PER_S)

    async def _crash(self) -> None:
        world = self._world
        up = [node for node in world.nodes if node.process is not None]
        gentle = 0.0 if world.scenario.gossip is None else world.gossip.gentle
        if up and happens(self._rng, gentle):
            node = self._rng.choice(up)
            await asyncio.wait({world.loop.begin(None, node.stop_gossip())})
            world.restart_later(node)
        elif up:
            self._rng.choice(up).crash("by force")

    async def _partition(self) -> None:
        world = self._world
        names = [node.name for node in world.nodes] + [each.name for each in world.clients]
        world.cut_off(names, len(names) - 1)
        await asyncio.sleep(self._rng.uniform(0, 1) ** 2 * 15)
        world.make_whole()

    async def _outage(self) -> None:
        database = self._rng.choice(self._world.databases)
        self._world.trace.note(database.store_id, "is away")
        database.go_away()
        await asyncio.sleep(self._rng.uniform(0.1, 5))
        loses = happens(self._rng, self._faults.commits_lost)
        without = min(self._rng.randint(1, 3), len(database.commits)) if loses else 0
        self._world.trace.note(database.store_id, f"is back without {without} commits")
        database.come_back(without)
        if without:
            ask_after_loss(self._world, database)

    async def _jump(self) -> None:
        self._skew(self._rng.choice(self._world.nodes))

    async def _lose_index(self) -> None:
        node = self._rng.choice(self._world.nodes)
        if node.peering is not None:
            node.peering.index.lost()

    def _skew(self, node: Node) -> None:
        node.clock.offset_ns = self.offset_ns()
        offset_ms = node.clock.offset_ns // NS_PER_MS
        self._world.trace.note(node.name, f"has a clock that is {offset_ms} ms ahead")
