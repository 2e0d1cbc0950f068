"""A stream of gossip that is ended from this side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast
from unittest.mock import AsyncMock, MagicMock

import pytest

from store.domain.places import Caller
from store.domain.unread import UnreadEvent
from store.gossip.driver.driver import PLACES, GossipDriver
from store.gossip.driver.streams import (
    DriverFailedError,
    NodeStoppingError,
    PeerStream,
    TurnedAwayError,
)
from store.gossip.events import Committed, FrameIn
from store.gossip.limits import LARGE_FRAME_IDS, LEAST_WAIT_NS
from store.gossip.machine import Gossip
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from tests.support.polling import settle
from tests.unit.gossip.gossip_world import inv

STOPPING = NodeStoppingError("the node is stopping")


class Silent:
    async def read(self) -> FrameIn | None:
        await asyncio.Event().wait()
        return None

    async def write(self, frame: RawGossipFrame) -> None:
        raise AssertionError(frame)


class Crowded(Silent):
    def __init__(self) -> None:
        self.left = 20

    async def read(self) -> FrameIn | None:
        self.left -= 1
        return inv([bytes(32)] * LARGE_FRAME_IDS) if self.left else None


class Watching:
    """Counts the turns of the event loop, and notes in which a frame was handed over."""

    def __init__(self) -> None:
        self.turns = asyncio.Lock()
        self.turn = 0
        self.taken: list[int] = []

    def received(self, *_: object) -> None:
        self.taken.append(self.turn)

    def sent(self, *_: object) -> None:
        raise AssertionError

    async def watch(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def test_one_large_frame_of_all_peers_is_taken_in_a_turn_of_the_event_loop() -> None:
    user = Watching()
    watching = asyncio.create_task(user.watch())
    streams = [PeerStream(Crowded(), f"peer-{each}", "s", "i") for each in range(4)]
    await asyncio.gather(*(stream.run(cast("GossipDriver", user)) for stream in streams))
    watching.cancel()
    assert len(user.taken) == 4 * 19
    assert len(set(user.taken)) == len(user.taken)


async def test_the_reason_of_an_end_is_raised_where_the_stream_is_run() -> None:
    frames = MagicMock(read=Silent().read, write=AsyncMock())
    stream = PeerStream(frames, "peer", "store", "initiator")
    running = asyncio.create_task(stream.run(MagicMock()))
    await asyncio.sleep(0)
    stream.send(inv(()))
    stream.close(STOPPING)
    with pytest.raises(NodeStoppingError, match="the node is stopping"):
        await running
    assert not frames.write.called
    await stream.ended()


def make_driver(steady_ns: Callable[[], int] = lambda: 0) -> GossipDriver:
    parts = MagicMock(steady_ns=steady_ns)
    around = dict.fromkeys(("database", "connector", "environment", "count"), parts)
    return GossipDriver(lambda _count: Gossip("s"), "n", (), **around)


async def test_a_stream_that_brought_nothing_gives_its_place_to_a_newcomer() -> None:
    now_ns = 0
    driver = make_driver(lambda: now_ns)

    def open_stream(name: str) -> asyncio.Task[None]:
        return asyncio.create_task(driver.serve(Silent(), Caller(name, f"store of {name}")))

    silent = [open_stream(f"invented-{number}") for number in range(PLACES.limit - PLACES.reserved)]
    await settle()
    with pytest.raises(TurnedAwayError, match="is reached: try again later"):
        await open_stream("early")
    now_ns = LEAST_WAIT_NS
    late = open_stream("late")
    with pytest.raises(TurnedAwayError, match="its place went to another"):
        await silent[0]
    driver.close()
    ended = await asyncio.gather(late, *silent[1:], return_exceptions=True)
    assert all(isinstance(each, NodeStoppingError) for each in ended)


async def test_who_is_cut_off_or_of_the_same_database_gets_no_place_and_costs_no_read() -> None:
    driver = make_driver()
    machine = driver._machine
    assert machine is not None
    machine.step(1, Gossip.join, "x", "store of x")
    machine.step(1, Gossip.reject, "x", "it sends no frames")
    for caller, reason in (
        (Caller("x", "store of x"), "it sends no frames"),
        (Caller("y", "s"), "works on the same database"),
    ):
        with pytest.raises(TurnedAwayError, match=reason):
            await driver.serve(Silent(), caller)
    assert not driver._streams
    assert not driver._needs_loading.is_set()


async def test_no_stream_joins_a_machine_that_fails_on_what_is_read() -> None:
    driver = make_driver()
    unreadable = Committed([b"no digest"], content_digests=[b"", b""])
    newest = AsyncMock(return_value=unreadable), AsyncMock(return_value=[])
    driver._database.messages.newest, driver._database.unread.newest = newest  # type: ignore[method-assign]
    loading = asyncio.create_task(driver._load())
    with pytest.raises(DriverFailedError, match="failed on its gossip"):
        await driver.serve(Silent(), Caller("p", "store of p"))
    assert not driver._is_awake
    driver.close()
    loading.cancel()


async def test_unread_events_are_restored_in_order_and_in_pieces() -> None:
    driver, restored = make_driver(), list[UnreadEvent]()
    events = [UnreadEvent(b"%032d" % number, bytes(16), 1) for number in range(3_000)]
    newest = AsyncMock(return_value=Committed([])), AsyncMock(return_value=events)
    driver._database.messages.newest, driver._database.unread.newest = newest  # type: ignore[method-assign]
    driver._restore = lambda some: restored.extend(reversed(some))  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(driver.serve(Silent(), Caller("p", "store of p")))
    loading, seen = asyncio.create_task(driver._load()), set[int]()
    for _ in range(9):
        await asyncio.sleep(0)
        seen.add(len(restored))
    serving.cancel()
    loading.cancel()
    assert restored == events[::-1]
    assert seen >= {1_024, 2_048}


async def test_no_stream_begins_when_the_node_has_closed_them() -> None:
    driver = make_driver()
    driver.close()
    with pytest.raises(NodeStoppingError):
        await driver.serve(Silent(), Caller("p", "s"))
    assert not driver._streams
