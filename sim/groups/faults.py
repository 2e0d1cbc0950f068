"""Tasks that break things in a group from time to time, and put them right in the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from sim.faults import Injector
from sim.groups.member import Member
from sim.rng import happens

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

_MOST_CUT_OFF: Final = 20
"""Participants of a large group that a partition cuts off."""


class GroupFaultInjector(Injector):
    """Breaks things until `stop`."""

    def __init__(self, world: GroupWorld) -> None:
        super().__init__(world)
        self._world = world

    def start(self) -> None:
        """Begin with all the kinds that the scenario has."""
        faults, weather = self._world.scenario.faults, self._world.network.weather
        weather.lost, weather.twice, weather.breaks = faults.lost, faults.twice, faults.breaks
        kinds = (
            (faults.crash_every_ns, self._crash),
            (faults.leave_every_ns, self._leave),
            (faults.disk_every_ns, self._lose_disk),
            (faults.outage_every_ns if self._world.stores else 0, self._outage),
            (faults.partition_every_ns, self._partition),
            (faults.jump_every_ns if faults.skew_ns else 0, self._jump),
        )
        self.begin(kinds)
        if faults.skew_ns:
            for member in self._world.members:
                self._skew(member)

    def stop(self) -> None:
        """Let everything go right from now on."""
        super().stop()
        for member in self._world.members:
            member.disk.away = False
            if member.clock.offset_ns:
                member.jump(0)

    async def _crash(self) -> None:
        up = [member for member in self._world.members if not member.life.ended]
        if up:
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

    async def _outage(self) -> None:
        world, rng = self._world, self._rng
        stores = world.stores if happens(rng, 0.5) else [rng.choice(world.stores)]
        for store in stores:
            store.crash()
        await asyncio.sleep(rng.uniform(0.1, 5))
        for store in stores:
            store.start()

    async def _partition(self) -> None:
        world = self._world
        names = [member.name for member in world.members] + [each.name for each in world.stores]
        world.cut_off(names, min(len(names) - 1, _MOST_CUT_OFF))
        await asyncio.sleep(self._rng.uniform(0, 1) * 10)
        world.make_whole()

    async def _jump(self) -> None:
        self._skew(self._rng.choice(self._world.members))

    def _skew(self, member: Member) -> None:
        most_ns = self._world.scenario.faults.skew_ns
        right = happens(self._rng, 0.5)
        member.jump(0 if right else int(self._rng.uniform(-most_ns, most_ns)))
