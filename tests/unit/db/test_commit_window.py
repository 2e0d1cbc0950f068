"""The commit window: who shares a transaction with whom, on a writer without a database."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from store.db import writer as writer_module
from store.db.partitions import PartitionMap
from store.db.pool import Database, PoolSettings
from store.db.sds import Turns
from store.db.writer import DatabaseWriter
from store.domain.ports import Source
from store.messages.conflicts import StoreResult
from store.messages.record import RecordBatch
from tests.integration.storage.world import NOW, TOPICS, batch_of
from tests.support.polling import settle


class Writer(DatabaseWriter):
    """A writer whose transactions take until the loop has had ``turns`` turns."""

    def __init__(self, turns: int) -> None:
        database = SimpleNamespace(settings=PoolSettings(), write_failure=None)
        super().__init__(cast("Database", database), PartitionMap(lambda: NOW))
        self.groups: list[int] = []
        self._turns = turns

    async def _serve(self, group: writer_module._Group) -> None:
        self.groups.append(len(group.members))
        for _ in range(self._turns):
            await asyncio.sleep(0)
        for member in group.members:
            member.answer.set_result(StoreResult([True] * len(member.batch)))

    async def publish(self, caller: int, count: int) -> None:
        """Store messages one after the other."""
        for number in range(count):
            batch = batch_of([(NOW, TOPICS[0], b"%d %d" % (caller, number))])
            await self.store(batch, Source.CLIENT)


async def test_a_lone_caller_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WINDOW_S", 3_600.0)
    writer = Writer(3)
    await writer.start()
    async with asyncio.timeout(60):
        await writer.publish(0, 20)
    assert writer.groups == [1] * 20


@pytest.mark.parametrize("callers", [2, 5, 100])
async def test_callers_that_go_on_share_their_commits(
    monkeypatch: pytest.MonkeyPatch, callers: int
) -> None:
    # No window ends: each group is written because all of its callers have come.
    monkeypatch.setattr(writer_module, "WINDOW_S", 3_600.0)
    writer = Writer(callers + 3)
    await writer.start()
    async with asyncio.timeout(60):
        await asyncio.gather(*(writer.publish(caller, 20) for caller in range(callers)))
    first, *middle = writer.groups[:-1]
    assert first in {1, callers}
    assert sum(writer.groups) == 20 * callers
    assert set(middle[1:]) <= {callers}


async def test_a_caller_that_stays_away_delays_no_other() -> None:
    writer = Writer(3)
    await writer.start()
    await asyncio.gather(writer.publish(0, 3), writer.publish(1, 1))
    async with asyncio.timeout(60):
        await writer.publish(0, 20)
    assert sum(writer.groups) == 24
    assert writer.groups[-10:] == [1] * 10


async def test_many_messages_do_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "WINDOW_S", 3_600.0)
    monkeypatch.setattr(writer_module, "ENOUGH_MESSAGES", 10)
    writer = Writer(3)
    await writer.start()
    await asyncio.gather(writer.publish(0, 1), writer.publish(1, 1), writer.publish(2, 1))
    large = RecordBatch()
    for number in range(10):
        large.extend(batch_of([(NOW, TOPICS[0], b"large %d" % number)]))
    async with asyncio.timeout(60):
        assert await writer.store(large, Source.CLIENT) == [True] * 10


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
