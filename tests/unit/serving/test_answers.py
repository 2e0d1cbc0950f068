"""The budget of unsent answers: who waits, who is served first, and who is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from threading import get_ident
from types import SimpleNamespace
from typing import cast

import pytest

from store.domain.access import CallDeniedError
from store.serving import answers, sockets
from store.serving.answers import (
    CONTENDED_S,
    COPIES,
    FIRST_PAGE_BYTES,
    LINGER_S,
    PATIENCE_S,
    QUICK_S,
    SLOW_S,
    STALL_S,
    AnswerSender,
    UnsentBudget,
)
from store.serving.call import Call
from store.serving.failure import CallError, Code
from tests.support.polling import settle

MIB = 1024 * 1024
PAGE = COPIES * FIRST_PAGE_BYTES


class World:
    """A budget on a clock that the test moves, with the connections that it closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time_s = 1_000.0
        self.hung_up: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        monkeypatch.setattr(answers, "hang_up", self.hung_up.extend)
        self.answers = UnsentBudget(lambda: self.time_s, 8 * MIB)

    def stall(self, sender: AnswerSender, size_bytes: int = FIRST_PAGE_BYTES) -> asyncio.Task[None]:
        """Begin a call whose page is never taken."""

        async def call() -> None:
            with sender:
                sender.add(COPIES * size_bytes)
                await sender.deliver(bytes(size_bytes), never_taken)

        task = asyncio.create_task(call())
        self.tasks.append(task)
        return task

    def wait(self, sender: AnswerSender, size_bytes: int) -> asyncio.Task[None]:
        """Begin a call that asks for room."""
        task = asyncio.create_task(self.answers.wait(sender, size_bytes))
        self.tasks.append(task)
        return task

    async def pass_s(self, seconds: float) -> None:
        """Advance the clock, and apply the rules."""
        self.time_s += seconds
        self.answers.evict_stalled()
        await settle()


async def never_taken(_page: bytes) -> None:
    await asyncio.get_running_loop().create_future()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    world = World(monkeypatch)
    yield world
    for task in world.tasks:
        task.cancel()
    await asyncio.gather(*world.tasks, return_exceptions=True)


async def refused(task: Awaitable[None]) -> CallError:
    with pytest.raises(CallError) as caught:
        await task
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    return caught.value


async def test_pages_grow_while_they_are_taken_quickly_and_shrink_for_the_slow(
    world: World,
) -> None:
    sender = AnswerSender(world.answers, "a", "1")

    async def next_page(taken_s: float) -> int:
        room = await sender.room(MIB)

        async def send(_page: bytes) -> None:
            world.time_s += taken_s

        await sender.deliver(bytes(room.size_bytes), send)
        room.close()
        assert sender.taken_bytes == world.answers.used == 0
        return room.size_bytes // FIRST_PAGE_BYTES

    # With 8 MiB free, a page may have a third of one.
    assert [await next_page(QUICK_S / 2) for _ in range(4)] == [1, 2, 4, 4]
    assert [await next_page(SLOW_S + 1) for _ in range(3)] == [4, 1, 1]
    assert [await next_page((QUICK_S + SLOW_S) / 2) for _ in range(2)] == [1, 1]


async def test_no_page_is_sent_whose_caller_lost_its_rights_while_it_waited(world: World) -> None:
    rules, sent = [object()], list[bytes]()

    async def pages(_call: Call, _request: bytes) -> AsyncGenerator[bytes, None]:
        yield bytes(MIB)

    async def send(page: bytes) -> None:
        sent.append(page)

    def check_rights() -> None:
        raise CallDeniedError

    node = SimpleNamespace(access=lambda: rules[0])
    sender = AnswerSender(world.answers, "a", "1")
    call = SimpleNamespace(sender=sender, access=rules[0], node=node, check_rights=check_rights)
    blocker = world.stall(AnswerSender(world.answers, "b", "2"), 8 * MIB // COPIES)
    await settle()
    sending = asyncio.create_task(Call.send_pages(cast("Call", call), pages, b"", send))
    await settle()
    rules[0] = object()
    blocker.cancel()
    with pytest.raises(CallDeniedError):
        await sending
    assert sent == []


async def test_reading_ahead_leaves_half_of_the_budget_to_what_is_needed(world: World) -> None:
    sender = AnswerSender(world.answers, "a", "1")
    rooms = []
    while (room := sender.spare_room(MIB)) is not None:
        rooms.append(room)
    assert 4 * MIB - PAGE < world.answers.used <= 4 * MIB
    assert (await sender.room(MIB)).size_bytes == FIRST_PAGE_BYTES
    for room in rooms:
        room.close()
        room.close()
    assert world.answers.used == PAGE
    sender.close()
    assert world.answers.used == 0


async def test_a_page_is_counted_as_large_as_it_is(world: World) -> None:
    room = await AnswerSender(world.answers, "a", "1").room(MIB)
    room.fit(10)
    assert world.answers.used == 10 * COPIES
    room.fit(MIB)
    assert world.answers.used == MIB * COPIES


async def test_the_connections_of_a_caller_count_in_its_weight(world: World) -> None:
    holder = AnswerSender(world.answers, "holder", "0")
    holder.add(8 * MIB)
    first, second = (AnswerSender(world.answers, "a", name) for name in "12")
    heavy = [world.wait(sender, MIB) for sender in (first, second)]
    light = world.wait(AnswerSender(world.answers, "b", "3"), MIB)
    await settle()
    holder.add(-MIB)
    await settle()
    assert [task.done() for task in (*heavy, light)] == [False, False, True]


async def test_a_stalled_reader_is_ended_for_a_lighter_call(world: World) -> None:
    heavy = [AnswerSender(world.answers, "a", "1") for _ in range(4)]
    stalled = [world.stall(sender, 2 * MIB // COPIES) for sender in heavy]
    await settle()
    assert world.answers.free < MIB
    light = world.wait(AnswerSender(world.answers, "a", "2"), MIB)
    await settle()
    await world.pass_s(STALL_S - 0.1)
    assert not any(task.done() for task in stalled)
    await world.pass_s(0.2)
    failure = await refused(stalled[0])
    assert "was not read for 1 s" in failure.sentence
    assert [task.done() for task in stalled] == [True, False, False, False]
    await light
    # gRPC still holds its copy of the page.
    assert heavy[0].taken_bytes == 2 * MIB // COPIES
    assert not any(task.done() for task in stalled[1:])


async def test_among_equals_only_who_stalls_for_long_is_ended(world: World) -> None:
    readers = [AnswerSender(world.answers, str(number), str(number)) for number in range(4)]
    stalled = []
    for sender in readers:
        stalled.append(world.stall(sender, 2 * MIB // COPIES))
        await settle()
        world.time_s += 0.01
    waiting = world.wait(AnswerSender(world.answers, "x", "x"), 3 * MIB)
    await settle()
    await world.pass_s(PATIENCE_S - 1)
    assert not any(task.done() for task in stalled)
    await world.pass_s(1)
    assert [task.done() for task in stalled] == [True, True, False, False]
    for sender in readers[:2]:
        sender.close()
    await waiting


async def test_no_reader_is_ended_while_no_call_waits_for_long(world: World) -> None:
    stalled = world.stall(AnswerSender(world.answers, "a", "1"), MIB)
    await settle()
    await world.pass_s(3_600)
    assert not stalled.done()
    AnswerSender(world.answers, "b", "2").add(6 * MIB)
    waiting = world.wait(AnswerSender(world.answers, "c", "3"), MIB)
    await settle()
    await world.pass_s(CONTENDED_S / 2)
    assert not stalled.done()
    await world.pass_s(CONTENDED_S)
    assert stalled.done()
    await waiting


async def test_a_caller_that_keeps_what_it_was_sent_loses_its_connection(world: World) -> None:
    sender = AnswerSender(world.answers, "a", "1")
    stalled = world.stall(sender, 2 * MIB)
    await settle()
    AnswerSender(world.answers, "b", "2").add(2 * MIB)
    world.wait(AnswerSender(world.answers, "c", "3"), 8 * MIB)
    await settle()
    await world.pass_s(PATIENCE_S)
    await refused(stalled)
    assert sender.taken_bytes == 2 * MIB
    assert world.hung_up == []
    await world.pass_s(LINGER_S + 0.1)
    assert world.hung_up == ["1"]


async def test_connections_are_looked_for_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[int]()

    def look() -> tuple[()]:
        threads.append(get_ident())
        return ()

    monkeypatch.setattr(sockets, "accepted_sockets", look)
    sockets.hang_up(["ipv4:127.0.0.1:1"])
    await asyncio.get_running_loop().shutdown_default_executor()
    assert [each == get_ident() for each in threads] == [False]


async def test_a_unary_answer_that_is_not_taken_ends_with_its_connection(world: World) -> None:
    sender = AnswerSender(world.answers, "a", "1")
    sender.answered(2 * MIB, refusable=True)
    AnswerSender(world.answers, "b", "2").add(7 * MIB)
    world.wait(AnswerSender(world.answers, "c", "3"), MIB)
    await settle()
    await world.pass_s(PATIENCE_S)
    assert world.hung_up == ["1"]


async def test_one_unary_answer_may_pass_the_limit_and_further_ones_are_refused(
    world: World,
) -> None:
    AnswerSender(world.answers, "b", "2").add(7 * MIB)
    AnswerSender(world.answers, "a", "1").answered(MIB, refusable=True)
    sender = AnswerSender(world.answers, "a", "1")
    with pytest.raises(CallError) as refused:
        sender.answered(MIB, refusable=True)
    assert (refused.value.code, refused.value.retry) == (Code.RESOURCE_EXHAUSTED, True)
    # The answer to completed work is sent in any case.
    sender.answered(MIB, refusable=False)


async def test_a_wait_ends_with_a_refusal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_WAIT_S", 0.0)
    holder = AnswerSender(world.answers, "b", "2")
    holder.add(8 * MIB)
    failure = await refused(world.wait(AnswerSender(world.answers, "a", "1"), MIB))
    assert failure.retry
    assert "8,388,608 bytes" in failure.sentence
    holder.add(-8 * MIB)
    await AnswerSender(world.answers, "a", "1").take(MIB)


async def test_a_call_that_leaves_gives_everything_back(world: World) -> None:
    holder = AnswerSender(world.answers, "b", "2")
    holder.add(8 * MIB)
    sender = AnswerSender(world.answers, "a", "1")
    waiting = world.wait(sender, MIB)
    await settle()
    waiting.cancel()
    await settle()
    sender.close()
    await world.pass_s(1)
    holder.close()
    assert world.answers.used == 0
    assert not world.answers.asked
