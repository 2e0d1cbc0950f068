"""The budget of unsent answers: who waits, who is served first, and who is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress

import pytest

from store.serving import unsent
from store.serving.failure import CallFailure, Code
from store.serving.unsent import (
    CONTENDED_S,
    COPIES,
    DRAIN_STALL_S,
    FIRST_PAGE_BYTES,
    LINGER_S,
    MAX_GROWING,
    MAX_WAIT_S,
    PATIENCE_S,
    QUICK_S,
    SLOW_S,
    STALL_S,
    Outlet,
    UnsentAnswers,
)

MIB = 1024 * 1024
PAGE = COPIES * FIRST_PAGE_BYTES


class World:
    """A budget on a clock that the test moves, with the connections that it closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time_s = 1_000.0
        self.hung_up: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        monkeypatch.setattr(unsent, "hang_up", self.hung_up.extend)
        self.answers = UnsentAnswers(lambda: self.time_s, 8 * MIB)

    def stall(self, outlet: Outlet, size_bytes: int = FIRST_PAGE_BYTES) -> asyncio.Task[None]:
        """A call whose page is never taken."""

        async def call() -> None:
            with outlet.ending():
                outlet.add(COPIES * size_bytes)
                async with outlet.sending(size_bytes):
                    await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(call())
        self.tasks.append(task)
        return task

    def wait(self, outlet: Outlet, size_bytes: int) -> asyncio.Task[None]:
        """A call that asks for room."""
        task = asyncio.create_task(self.answers.wait(outlet, size_bytes))
        self.tasks.append(task)
        return task

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, and everybody notice."""
        self.time_s += seconds
        self.answers.press()
        await settled()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    world = World(monkeypatch)
    yield world
    for task in world.tasks:
        task.cancel()
    await asyncio.gather(*world.tasks, return_exceptions=True)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def refused(task: Awaitable[None]) -> CallFailure:
    with pytest.raises(CallFailure) as caught:
        await task
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    return caught.value


async def test_draining_ends_the_readers_that_stall_and_no_others(world: World) -> None:
    stalled, reading = Outlet(world.answers, "a", "1"), Outlet(world.answers, "b", "2")
    unary = Outlet(world.answers, "c", "3")
    call = world.stall(stalled)
    await settled()
    await unary.answered(MIB, refusable=False)
    world.time_s += DRAIN_STALL_S
    async with reading.sending(FIRST_PAGE_BYTES):
        world.answers.end_stalled_readers()
        with pytest.raises(CallFailure, match="shutting down") as ended:
            await call
        assert (ended.value.code, ended.value.retry) == (Code.UNAVAILABLE, True)
        assert world.hung_up == ["3"], "its handler has returned"
    world.time_s += LINGER_S + 0.1
    world.answers.end_stalled_readers()
    assert sorted(world.hung_up) == ["1", "3", "3"], "neither has taken what gRPC holds"
    assert reading.ended_s is None


async def test_pages_grow_while_they_are_taken_quickly_and_shrink_for_the_slow(
    world: World,
) -> None:
    outlet = Outlet(world.answers, "a", "1")

    async def next_page(taken_s: float) -> int:
        room = await outlet.room(MIB)
        async with outlet.sending(room.size_bytes):
            world.time_s += taken_s
        room.close()
        assert outlet.held_bytes == world.answers.used_bytes == 0
        return room.size_bytes // FIRST_PAGE_BYTES

    # With 8 MiB free, a page may have a third of one.
    assert [await next_page(QUICK_S / 2) for _ in range(4)] == [1, 2, 4, 4]
    assert [await next_page(SLOW_S + 1) for _ in range(6)] == [4, 4, 4, 2, 1, 1]
    assert [await next_page((QUICK_S + SLOW_S) / 2) for _ in range(2)] == [1, 1]


async def test_reading_ahead_leaves_half_of_the_budget_to_what_is_needed(world: World) -> None:
    outlet = Outlet(world.answers, "a", "1")
    rooms = []
    while (room := outlet.spare_room(MIB)) is not None:
        rooms.append(room)
    assert 4 * MIB - PAGE < world.answers.used_bytes <= 4 * MIB
    assert (await outlet.room(MIB)).size_bytes == FIRST_PAGE_BYTES
    for room in rooms:
        room.close()
        room.close()
    assert world.answers.used_bytes == PAGE
    outlet.close()
    assert world.answers.used_bytes == 0


async def test_a_page_is_counted_as_large_as_it_is(world: World) -> None:
    room = await Outlet(world.answers, "a", "1").room(MIB)
    room.fit(10)
    assert world.answers.used_bytes == 10 * COPIES
    room.fit(MIB)
    assert world.answers.used_bytes == MIB * COPIES


async def test_the_lightest_connection_is_served_first(world: World) -> None:
    holder = Outlet(world.answers, "holder", "0")
    holder.add(8 * MIB)
    heavy = [world.wait(Outlet(world.answers, "a", "1"), MIB) for _ in range(5)]
    await settled()
    light = world.wait(Outlet(world.answers, "a", "2"), MIB)
    other = world.wait(Outlet(world.answers, "b", "3"), MIB)
    await settled()
    order: list[object] = []
    for task in (*heavy, light, other):
        task.add_done_callback(order.append)
    for _ in range(7):
        holder.add(-MIB)
        await settled()
    assert order == [heavy[0], other, heavy[1], light, *heavy[2:]]


async def test_a_stalled_reader_is_ended_for_a_lighter_call(world: World) -> None:
    heavy = [Outlet(world.answers, "a", "1") for _ in range(4)]
    stalled = [world.stall(outlet, 2 * MIB // COPIES) for outlet in heavy]
    await settled()
    assert world.answers.free_bytes < MIB
    light = world.wait(Outlet(world.answers, "a", "2"), MIB)
    await settled()
    await world.pass_s(STALL_S - 0.1)
    assert not any(task.done() for task in stalled)
    await world.pass_s(0.2)
    failure = await refused(stalled[0])
    assert "was not read for 1 s" in failure.sentence
    assert [task.done() for task in stalled] == [True, False, False, False]
    await light
    # gRPC still holds its copy of the page.
    assert heavy[0].held_bytes == 2 * MIB // COPIES
    assert not any(task.done() for task in stalled[1:])


async def test_among_equals_only_who_stalls_for_long_is_ended(world: World) -> None:
    readers = [Outlet(world.answers, str(number), str(number)) for number in range(4)]
    stalled = []
    for outlet in readers:
        stalled.append(world.stall(outlet, 2 * MIB // COPIES))
        await settled()
        world.time_s += 0.01
    waiting = world.wait(Outlet(world.answers, "x", "x"), 3 * MIB)
    await settled()
    await world.pass_s(PATIENCE_S - 1)
    assert not any(task.done() for task in stalled)
    await world.pass_s(1)
    assert [task.done() for task in stalled] == [True, True, False, False]
    for outlet in readers[:2]:
        outlet.close()
    await waiting


async def test_nobody_is_ended_while_nobody_waits_or_only_for_a_moment(world: World) -> None:
    stalled = world.stall(Outlet(world.answers, "a", "1"), MIB)
    await settled()
    await world.pass_s(3_600)
    assert not stalled.done()
    Outlet(world.answers, "b", "2").add(6 * MIB)
    waiting = world.wait(Outlet(world.answers, "c", "3"), MIB)
    await settled()
    await world.pass_s(CONTENDED_S / 2)
    assert not stalled.done()
    await world.pass_s(CONTENDED_S)
    assert stalled.done()
    await waiting


async def test_a_caller_that_keeps_what_it_was_sent_loses_its_connection(world: World) -> None:
    outlet = Outlet(world.answers, "a", "1")
    stalled = world.stall(outlet, 2 * MIB)
    await settled()
    Outlet(world.answers, "b", "2").add(2 * MIB)
    world.wait(Outlet(world.answers, "c", "3"), 8 * MIB)
    await settled()
    await world.pass_s(PATIENCE_S)
    await refused(stalled)
    assert outlet.held_bytes == 2 * MIB
    assert world.hung_up == []
    await world.pass_s(LINGER_S + 0.1)
    assert world.hung_up == ["1"]


async def test_a_unary_answer_that_is_not_taken_ends_with_its_connection(world: World) -> None:
    outlet = Outlet(world.answers, "a", "1")
    await outlet.answered(2 * MIB, refusable=True)
    Outlet(world.answers, "b", "2").add(7 * MIB)
    world.wait(Outlet(world.answers, "c", "3"), MIB)
    await settled()
    await world.pass_s(PATIENCE_S)
    assert world.hung_up == ["1"]


async def test_unary_answers_that_do_not_fit_wait_and_beyond_a_few_are_refused(
    world: World,
) -> None:
    Outlet(world.answers, "b", "2").add(8 * MIB)
    growing = []
    for _ in range(MAX_GROWING):
        outlet = Outlet(world.answers, "a", "1")
        growing.append(asyncio.create_task(outlet.answered(MIB, refusable=True)))
    world.tasks += growing
    await settled()
    assert not any(task.done() for task in growing)
    outlet = Outlet(world.answers, "a", "1")
    assert (await refused(outlet.answered(MIB, refusable=True))).retry
    # What is done already is told in any case.
    await outlet.answered(MIB, refusable=False)


async def test_a_wait_ends_with_a_refusal(world: World) -> None:
    holder = Outlet(world.answers, "b", "2")
    holder.add(8 * MIB)
    waiting = world.wait(Outlet(world.answers, "a", "1"), MIB)
    await settled()
    await world.pass_s(MAX_WAIT_S + 1)
    failure = await refused(waiting)
    assert failure.retry
    assert "8,388,608 bytes" in failure.sentence
    holder.add(-8 * MIB)
    await Outlet(world.answers, "a", "1").take(MIB)


async def test_a_call_that_leaves_gives_everything_back(world: World) -> None:
    holder = Outlet(world.answers, "b", "2")
    holder.add(8 * MIB)
    outlet = Outlet(world.answers, "a", "1")
    waiting = world.wait(outlet, MIB)
    await settled()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    outlet.close()
    await world.pass_s(1)
    holder.close()
    assert world.answers.used_bytes == 0
    assert not world.answers.asked


async def test_the_callers_own_end_is_no_stall(world: World) -> None:
    stalled = world.stall(Outlet(world.answers, "a", "1"))
    await settled()
    stalled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stalled
    assert world.answers.used_bytes == 0


async def test_a_page_gives_back_what_it_took_where_its_share_was_less() -> None:
    answers = UnsentAnswers(lambda: 0.0, 4 * PAGE)
    room = await Outlet(answers, "caller", "connection").room(FIRST_PAGE_BYTES)
    assert answers.used_bytes == PAGE // 2
    room.close()
    assert answers.used_bytes == 0
