"""Scans for messages that were missed: wanted until one node was read to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from sim.limits import START_NS
from sim.timeline import Timeline
from storenode.sds.aio.feed import ChannelFeed
from storenode.sds.aio.ledger import ParticipantLedger
from storenode.sds.aio.participant import Participant
from storenode.sds.aio.repair import Repair
from storenode.sds.aio.transport import Fetched, Link, Rotation, TransportError
from storenode.sds.channel import MessageChannel
from storenode.sds.config import ChannelConfig
from tests.support.virtual_time import run_virtually
from tests.unit.sds.worlds import NOW, channel, take, wire

MESSAGES = tuple(Fetched(b"%d" % number, b"", number * 10) for number in range(1, 9))
PAGE = 2


class Store:
    """A link that can only be scanned, and that fails after so many pages of each scan."""

    def __init__(self, *fails_after: int) -> None:
        self.name = "store"
        self.fails_after = list(fails_after)
        self.scans: list[int] = []

    async def scan(self, since_ns: int) -> AsyncGenerator[Sequence[Fetched], None]:
        self.scans.append(since_ns)
        left = self.fails_after.pop(0) if self.fails_after else len(MESSAGES)
        found = [each for each in MESSAGES if each.timestamp_ns >= since_ns]
        for start in range(0, len(found), PAGE):
            if start >= left * PAGE:
                raise TransportError("The line is cut.")
            yield found[start : start + PAGE]
        if not left:
            raise TransportError("The line is cut.")


class Receiver:
    """A receiver without room for one message until it was relieved so often."""

    def __init__(self, refuses: Fetched | None = None, until: int = 0) -> None:
        self.came: dict[Fetched, None] = {}
        self.relieved = 0
        self._refuses, self._until = refuses, until

    async def take(self, messages: Sequence[Fetched]) -> int | None:
        for each in messages:
            if each == self._refuses and self.relieved < self._until:
                return each.timestamp_ns
            self.came[each] = None
        return None

    async def relieve(self) -> None:
        self.relieved += 1


def searched(stores: Sequence[Any], receiver: Receiver, seconds: int, *since_ns: int) -> None:
    """Request scans, and let virtual time pass."""
    timeline = Timeline(START_NS)

    async def run() -> None:
        core = MessageChannel(ChannelConfig("room", "alice"), 0, random.Random(1))
        participant = SimpleNamespace(
            ledger=ParticipantLedger(core),
            rotation=Rotation(stores),
            links=stores,
            take=receiver.take,
            relieve=receiver.relieve,
        )
        feed = ChannelFeed(cast("Participant", participant))
        task = asyncio.create_task(feed.searches())
        for each in since_ns:
            feed.search(each)
        await asyncio.sleep(seconds)
        task.cancel()

    run_virtually(timeline, run())


def test_a_search_that_fails_is_tried_again_until_it_is_complete() -> None:
    store, receiver = Store(0, 1, 0, 0, 2), Receiver()
    searched([store], receiver, 60, 10)
    assert tuple(receiver.came) == MESSAGES
    # It goes on from the last page that came, and ends with the first scan that is complete.
    assert store.scans == [10, 10, 20, 20, 20, 50]


def test_a_search_goes_to_the_next_node_at_once() -> None:
    silent, store, receiver = Store(*[0] * 100), Store(), Receiver()
    searched([silent, store], receiver, 60, 10)
    assert (silent.scans, store.scans, tuple(receiver.came)) == ([10], [10], MESSAGES)


def test_a_search_without_room_is_relieved_and_goes_on_from_the_refused_message() -> None:
    store, receiver = Store(), Receiver(MESSAGES[4], until=3)
    searched([store], receiver, 60, 0)
    assert tuple(receiver.came) == MESSAGES
    assert store.scans == [0, 50, 50, 50]


def test_a_search_that_cannot_succeed_is_tried_every_few_seconds() -> None:
    store, receiver = Store(), Receiver(MESSAGES[4], until=10_000)
    searched([store], receiver, 600, 0)
    assert 100 < len(store.scans) < 200


def test_requests_of_one_moment_are_one_scan_of_the_longest_time() -> None:
    store, receiver = Store(), Receiver()
    searched([store], receiver, 60, 50, 10, 30)
    assert (store.scans, tuple(receiver.came)) == ([10], MESSAGES)


def test_missing_messages_are_asked_for_less_and_less() -> None:
    core = channel()
    take(core, wire("b", after=["a"]))
    asked_s: list[float] = []

    async def nothing(*_: object) -> AsyncGenerator[Sequence[Fetched], None]:
        asked_s.append(asyncio.get_running_loop().time())
        yield []

    async def run() -> None:
        participant = SimpleNamespace(
            core=core,
            rotation=Rotation([cast("Link", SimpleNamespace(by_id=nothing))]),
            feed=SimpleNamespace(quiet=SimpleNamespace(wait=partial(asyncio.sleep, 0))),
            readable=True,
            take=Receiver().take,
            tell=lambda _: None,
            ledger=ParticipantLedger(core),
            now_ms=lambda: NOW,
        )
        repair = Repair(cast("Participant", participant))
        repair.wake()
        task = asyncio.create_task(repair.run())
        await asyncio.sleep(200)
        task.cancel()

    run_virtually(Timeline(START_NS), run())
    pauses = [round(after - before) for before, after in pairwise(asked_s)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
