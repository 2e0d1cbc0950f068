"""Queues of calls, sockets, and how calls drain at a stop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from random import Random

import pytest

from store.serving.failure import CallError
from store.serving.queue import FairQueue
from store.serving.sockets import ConnectionLimiter, ReceivedBytes, Remote, remote
from store.serving.tasks import Drain
from tests.support.polling import eventually, settle


def queue(limit: int = 10) -> FairQueue:
    return FairQueue(limit, "units")


def ask(of: FairQueue, connection: str, size: int) -> asyncio.Task[None]:
    return asyncio.create_task(of.acquire(connection, size))


async def test_the_lightest_connection_is_served_first() -> None:
    shared = queue()
    await shared.acquire("holder", 10)
    heavy = [ask(shared, "heavy", 5) for _ in range(2)]
    await settle()
    light = ask(shared, "light", 5)
    await settle()
    order: list[asyncio.Task[None]] = []
    for task in (*heavy, light):
        task.add_done_callback(order.append)
    for _ in range(3):
        shared.release("holder" if "holder" in shared.asked else "light", 5)
        await settle()
    assert order == [heavy[0], light, heavy[1]]


async def test_a_heavy_connection_waits_for_a_bounded_number_of_lighter_calls() -> None:
    shared = queue(1)
    await shared.acquire("holder", 1)
    heavy = [ask(shared, "heavy", 1) for _ in range(3)]
    holder = "holder"
    for number in range(10):
        await settle()
        light = ask(shared, f"light {number}", 1)
        await settle()
        shared.release(holder, 1)
        await settle()
        holder = f"light {number}" if light.done() else "heavy"
        if not light.done():
            light.cancel()
    assert all(task.done() for task in heavy)


async def test_one_owner_gets_half_and_all_get_the_whole() -> None:
    shared = queue()

    give_back = shared.take("a", 5)
    with pytest.raises(CallError, match="5 units on one client"):
        shared.take("a", 1)
    shared.take("b", 5)
    shared.take("c", 0)
    with pytest.raises(CallError, match="10 units on this node"):
        shared.take("c", 1)
    give_back()
    shared.release("b", 5)
    assert shared.used == 0
    await shared.acquire("a", 50)  # alone, what is larger than the whole passes


@pytest.mark.parametrize("seed", range(20))
async def test_every_unit_comes_back_however_calls_end(seed: int) -> None:
    rng = Random(seed)
    shared = queue()

    async def call(connection: str, size: int) -> None:
        await shared.acquire(connection, size)
        try:
            assert shared.used <= max(shared.limit, size)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            shared.release(connection, size)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(call(rng.choice("abc"), rng.randrange(1, 13))))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert shared.used == 0
    assert not shared.asked
    assert not shared.waiting
    assert not shared.waiting_units


async def wait_for_ever(drain: Drain, began: asyncio.Event) -> None:
    with drain.endless():
        began.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("drains", "cancels", "expected"),
    [
        (True, False, CallError),
        (False, True, asyncio.CancelledError),
        (True, True, asyncio.CancelledError),
    ],
)
async def test_the_callers_own_cancellation_counts_for_more(
    drains: bool, cancels: bool, expected: type[BaseException]
) -> None:
    drain, began = Drain(), asyncio.Event()
    call = asyncio.create_task(wait_for_ever(drain, began))
    await began.wait()
    if drains:
        drain.begin()
    if cancels:
        call.cancel()
    with pytest.raises(expected):
        await call


async def test_what_has_ended_is_left_alone() -> None:
    drain = Drain()
    with drain.endless():
        assert len(drain.blocks) == 1
    assert not drain.blocks
    drain.begin()
    await asyncio.sleep(0)  # a cancellation would end it


def is_open(connection: socket.socket) -> bool:
    """Return False when the other end has closed it."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True


def test_the_newest_connections_of_a_host_are_closed_and_no_others() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=16))
        elsewhere = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=16))
        callers, others = [], []

        def connect(to: socket.socket) -> socket.socket:
            caller = stack.enter_context(socket.create_connection(to.getsockname()))
            stack.enter_context(to.accept()[0])
            return caller

        limiter = ConnectionLimiter([listener.getsockname()[1]], per_host=3)
        callers += [connect(listener) for _ in range(3)]
        others += [connect(elsewhere) for _ in range(6)]
        limiter.close_newest()
        assert all(map(is_open, callers))
        callers += [connect(listener) for _ in range(4)]
        limiter.close_newest()
        # The kernel may bring the end of a connection to its other end a moment later.
        eventually(lambda: not any(map(is_open, callers[3:])))
        assert all(map(is_open, callers[:3]))
        assert all(map(is_open, others))


async def test_two_connections_from_one_port_of_a_caller_are_counted_apart() -> None:
    with ExitStack() as stack:
        source, received = ("127.0.0.1", 0), ReceivedBytes()
        for size in (100, 200):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            caller = stack.enter_context(socket.socket())
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            caller.bind(source)
            caller.connect(listener.getsockname())
            source = caller.getsockname()
            stack.enter_context(listener.accept()[0])
            caller.sendall(bytes(size))
            name = listener.getsockname()[1], f"ipv4:127.0.0.1:{source[1]}"
            counted = {name: size} if hasattr(socket, "TCP_INFO") else {}
            assert await received.count([name]) == counted


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ipv4:127.0.0.1:4000", Remote("host 127.0.0.1", loopback=True)),
        ("ipv4:10.1.2.3:4000", Remote("host 10.1.2.3", loopback=False)),
        ("ipv6:%5B::1%5D:4000", Remote("host ::1", loopback=True)),
        ("ipv6:[::1]:4000", Remote("host ::1", loopback=True)),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:9", Remote("host 2001:db8:1:2::/64", loopback=False)),
        ("ipv6:[fe80::1%25eth0]:9", Remote("host fe80::/64", loopback=False)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:9", Remote("host 10.0.0.1", loopback=False)),
        ("ipv6:%5B::ffff:127.0.0.1%5D:9", Remote("host 127.0.0.1", loopback=True)),
        ("unix:/run/node.sock", Remote("host unix", loopback=True)),
        ("ipv4:nonsense", Remote("host unknown", loopback=False)),
        ("", Remote("host ", loopback=False)),
    ],
)
def test_where_a_call_comes_from(address: str, expected: Remote) -> None:
    assert remote(address) == expected
