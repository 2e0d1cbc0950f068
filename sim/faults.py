"""Tasks that break things from time to time, and put them right in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from sim.coverage import ask_after_loss
from sim.database import MAX_LOST_COMMITS
from sim.limits import NS_PER_S
from sim.node import RESTART_S
from sim.rng import happens
from sim.scenario import Faults

if TYPE_CHECKING:
    from sim.groups.member import Member
    from sim.node import Node
    from sim.world import World

Fault: TypeAlias = Callable[[], Coroutine[None, None, None]]

_BUSY_MOMENTS: Final = 0.7
"""Share of faults that wait for something to be under way, where they do more harm."""

_LOOK_EVERY_S: Final = 0.02
_LOOKS: Final = 250
_MOST_CUT_OFF: Final = 20
"""Hosts of a large group that a partition cuts off."""


class FaultInjector:
    """Breaks nodes, databases, participants and the network from time to time until `stop`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._faults = world.scenario.faults
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin with all the kinds that the scenario has."""
        self._befall(self._faults)
        for every_ns, what in self._kinds():
            if every_ns:
                self._tasks.append(
                    self._world.loop.begin(
                        None, self._world.repeat(every_ns, partial(self._break, what))
                    )
                )
        if self._faults.skew_ns:
            for host in self._world.clocked:
                host.jump(self._offset_ns())

    def _kinds(self) -> Sequence[tuple[int, Fault]]:
        """Return what is done from time to time, with its mean distance in ns; 0: never."""
        faults = self._faults
        return (
            (faults.crash_every_ns, self._crash),
            (faults.leave_every_ns, self._leave),
            (faults.disk_every_ns, self._lose_disk),
            (faults.partition_every_ns, self._partition),
            (faults.outage_every_ns if self._world.databases else 0, self._outage),
            (faults.jump_every_ns if faults.skew_ns else 0, self._jump),
            (faults.index_lost_every_ns, self._lose_index),
        )

    def stop(self) -> None:
        """Let everything go right from now on."""
        for task in self._tasks:
            task.cancel()
        self._befall(Faults())
        self._world.network.heal()
        for database in self._world.databases:
            database.come_back()
        for member in self._world.members:
            member.disk.away = False
        for host in self._world.clocked:
            if host.clock.offset_ns:
                host.jump(0)

    def _befall(self, faults: Faults) -> None:
        self._world.network.faults = faults
        for database in self._world.databases:
            database.faults = faults

    def _offset_ns(self) -> int:
        """Draw how far a clock is ahead; half of them are right."""
        most_ns = self._faults.skew_ns
        return 0 if happens(self._rng, 0.5) else int(self._rng.uniform(-most_ns, most_ns))

    async def _break(self, what: Fault) -> None:
        if not self._world.members and happens(self._rng, _BUSY_MOMENTS):
            await self._busy_moment()
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
        nodes = [node for node in world.nodes if node.process is not None]
        members = [member for member in world.members if not member.life.ended]
        up: list[Node | Member] = [*nodes, *members]
        if nodes and happens(self._rng, self._faults.gentle):
            node = self._rng.choice(nodes)
            await asyncio.wait({world.loop.begin(None, node.stop_gossip())})
            world.restart_later(node, RESTART_S)
        elif up:
            self._rng.choice(up).crash("by force")

    async def _leave(self) -> None:
        up = [member for member in self._world.members if member.stays]
        if up:
            self._rng.choice(up).leave()

    async def _lose_disk(self) -> None:
        disk = self._rng.choice(self._world.members).disk
        disk.away = True
        await asyncio.sleep(self._rng.uniform(0.1, 5))
        disk.away = False

    async def _partition(self) -> None:
        world = self._world
        names = [each.name for each in (*world.nodes, *world.clients, *world.members)]
        most = min(len(names) - 1, _MOST_CUT_OFF)
        here = dict.fromkeys(self._rng.sample(names, self._rng.randint(1, most)))
        world.trace.note("net", f"cuts off {sorted(here)}")
        world.network.cut((one, other) for one in here for other in names if other not in here)
        await asyncio.sleep(self._rng.uniform(0, 1) ** 2 * 15)
        world.trace.note("net", "is whole again")
        world.network.heal()

    async def _outage(self) -> None:
        database = self._rng.choice(self._world.databases)
        self._world.trace.note(database.store_id, "is away")
        database.go_away()
        await asyncio.sleep(self._rng.uniform(0.1, 5))
        loses = happens(self._rng, self._faults.commits_lost)
        most = min(MAX_LOST_COMMITS, len(database.commits))
        without = self._rng.randint(0, most) if loses else 0
        self._world.trace.note(database.store_id, f"is back without {without} commits")
        database.come_back(without)
        if without:
            ask_after_loss(self._world, database)

    async def _jump(self) -> None:
        self._rng.choice(self._world.clocked).jump(self._offset_ns())

    async def _lose_index(self) -> None:
        node = self._rng.choice(self._world.nodes)
        if node.peering is not None:
            node.peering.index.lost()
