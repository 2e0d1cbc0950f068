"""Tasks that break things in a group from time to time, and put them right in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sim.faults import Fault, FaultInjector
from sim.rng import happens

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

_MOST_CUT_OFF: Final = 20
"""Participants of a large group that a partition cuts off."""


class GroupFaultInjector(FaultInjector):
    """Breaks participants, their store nodes and their network."""

    _world: GroupWorld

    def kinds(self) -> Sequence[tuple[int, Fault]]:
        """Return what is done from time to time, with its mean distance in ns; 0: never."""
        faults = self._faults
        return (
            (faults.crash_every_ns, self._crash),
            (faults.leave_every_ns, self._leave),
            (faults.disk_every_ns, self._lose_disk),
            (faults.outage_every_ns if self._world.nodes else 0, self._outage),
            (faults.partition_every_ns, self._partition),
            (faults.jump_every_ns if faults.skew_ns else 0, self._jump),
        )

    def skew_all(self) -> None:
        """Set the clocks of all participants."""
        for member in self._world.members:
            member.jump(self.offset_ns())

    def stop(self) -> None:
        """Let everything go right from now on."""
        super().stop()
        for member in self._world.members:
            member.disk.away = False
            if member.clock.offset_ns:
                member.jump(0)

    async def choose_moment(self) -> None:
        """Take any moment: something is always under way."""

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
        for node in world.nodes if happens(rng, 0.5) else [rng.choice(world.nodes)]:
            if node.process is not None:
                node.crash("by force")

    async def _partition(self) -> None:
        world = self._world
        names = [member.name for member in world.members] + [each.name for each in world.nodes]
        world.cut_off(names, min(len(names) - 1, _MOST_CUT_OFF))
        await asyncio.sleep(self._rng.uniform(0, 1) * 10)
        world.make_whole()

    async def _jump(self) -> None:
        self._rng.choice(self._world.members).jump(self.offset_ns())
