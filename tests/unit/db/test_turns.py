"""Turns: how many work at one time, and who is next."""

from __future__ import annotations

import asyncio

import pytest

from store.db.pool import Turns
from store.domain.ports import StoreBusyError
from tests.support.polling import settle


class World:
    """Calls that work until they are ended."""

    def __init__(self, *, places: int = 3, of_caller: int = 2, most_waiting: int = 8) -> None:
        self.turns = Turns("walks", places=places, of_caller=of_caller, most_waiting=most_waiting)
        self.working: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, name: str) -> None:
        """Begin a call ``CALLER CONNECTION NUMBER``; a caller may have no name."""
        caller, connection, _ = name.split(" ")
        self._ends[name] = asyncio.Event()

        async def call() -> None:
            async with self.turns.turn(caller, connection):
                self.working.append(name)
                try:
                    await self._ends[name].wait()
                finally:
                    self.working.remove(name)

        self.tasks[name] = asyncio.create_task(call())
        await settle()

    async def end(self, name: str) -> None:
        """End a call that works."""
        self._ends[name].set()
        await self.tasks[name]
        await settle()


async def test_callers_take_turns_and_so_do_their_connections() -> None:
    world = World(of_caller=2, most_waiting=100)
    for number in range(6):
        await world.begin(f"a 1 {number}")
    assert world.working == ["a 1 0", "a 1 1"]
    await world.begin("a 2 0")
    await world.begin("b 3 0")
    assert world.working == ["a 1 0", "a 1 1", "b 3 0"]
    await world.begin("b 3 1")
    await world.begin(" 4 0")
    order = []
    while world.working:
        first = world.working[0]
        order.append(first)
        await world.end(first)
    assert order == [
        *("a 1 0", "a 1 1", "b 3 0", "b 3 1", " 4 0", "a 2 0"),
        *("a 1 2", "a 1 3", "a 1 4", "a 1 5"),
    ]


async def test_too_many_that_wait_are_refused_of_one_caller_first() -> None:
    world = World(places=1, of_caller=1, most_waiting=4)
    for number in range(3):
        await world.begin(f"a 1 {number}")
    await world.begin("a 2 3")
    with pytest.raises(StoreBusyError, match="2 walks are waiting already"):
        await world.tasks["a 2 3"]
    await world.begin("b 1 0")
    await world.begin("c 1 0")
    await world.begin("d 1 0")
    with pytest.raises(StoreBusyError, match="4 walks are waiting already"):
        await world.tasks["d 1 0"]
    for name in ("a 1 0", "b 1 0", "c 1 0", "a 1 1", "a 1 2"):
        assert world.working == [name]
        await world.end(name)


async def test_who_leaves_while_waiting_or_working_leaves_nothing_behind() -> None:
    world = World(places=1, of_caller=1)
    for name in ("a 1 0", "a 1 1", "b 1 0", "c 1 0"):
        await world.begin(name)
    for name in ("a 1 1", "a 1 0", "b 1 0"):
        world.tasks[name].cancel()
    await settle()
    assert world.working == ["c 1 0"]
    await world.end("c 1 0")
    await world.begin("a 1 2")
    assert world.working == ["a 1 2"]
    await world.end("a 1 2")
