"""Turns: how many work at the same time, and who is next."""

from __future__ import annotations

import asyncio

from store.db.sds import Turns
from tests.support.polling import settle


class World:
    """Calls that work until they are ended."""

    def __init__(self, places: int, of_caller: int) -> None:
        self.turns = Turns(places, of_caller)
        self.working: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> None:
        """Begin calls, whose callers are the first letters of their names."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._call(name))
            await settle()

    async def _call(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.working.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.working.remove(name)

    async def end(self, name: str) -> None:
        """End a call that works."""
        self._ends[name].set()
        await self.tasks[name]
        await settle()


async def test_callers_take_turns_and_who_leaves_leaves_nothing_behind() -> None:
    world = World(3, 2)
    await world.begin("a0", "a1", "a2", "a3", "b0", "b1", "c0")
    assert world.working == ["a0", "a1", "b0"]
    order = []
    while world.working:
        order.append(world.working[0])
        await world.end(order[-1])
    assert order == ["a0", "a1", "b0", "b1", "c0", "a2", "a3"]
    await world.begin("a4", "a5", "a6", "b2", "b3", "c1")
    for name in ("a6", "a4", "b3"):  # one that works, and two that wait
        world.tasks[name].cancel()
    await settle()
    assert world.working == ["a5", "b2", "c1"]
