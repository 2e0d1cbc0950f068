"""A simulated store node, as the participants of a group see it: it is written, followed and read.

What it has acknowledged it keeps, whatever becomes of it. Pages have their limits, a call breaks
where the network says so, and a second node has the messages of the first only after a while, or
never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sim.bridge import Life
from sim.calls import Closed, End, Ended, Identity, Status
from sim.groups.shelf import Shelf
from sim.limits import NS_PER_S
from sim.rng import happens
from storenode.message.hashing import message_hash
from storenode.sds.aio.transport import FeedPage, Fetched, Outbound, PublishResult, Route

if TYPE_CHECKING:
    from sim.groups.world import GroupWorld

PUBLISH: Final = "PublishStream"
FOLLOW: Final = "Follow"
READ: Final = "Read"
ROUTE: Final = Route("room", "/waku/2/rs/1/0", "/sds/1/room/proto")


SCAN: Final = "Scan"
QUERY: Final = "Query"
LOOKUP: Final = "GetSdsMessages"
HISTORY: Final = "GetCausalHistory"


def taken(message: Outbound) -> Fetched:
    """Return a message as its receivers have it."""
    payload, time_ns = message.payload, message.timestamp_ns
    if message.ephemeral:
        return Fetched(payload, b"", time_ns)
    hint = message_hash(ROUTE.pubsub_topic, payload, ROUTE.content_topic, None, time_ns)
    return Fetched(payload, hint, time_ns)


class StoreNode:
    """A store node; a `sim.network.Host`."""

    def __init__(self, world: GroupWorld, number: int) -> None:
        self.name = f"s{number}"
        self.up = False
        self.shelf = Shelf(ROUTE.channel_id, world.scenario.limits)
        self._world = world
        self._life = Life()
        self._who = Identity(self.name, self.name)
        self._news = asyncio.Event()

    @property
    def identity(self) -> Identity | None:
        """The identity that answers; None while it is off."""
        return self._who if self.up else None

    def start(self) -> None:
        """Serve, and fetch what the other nodes have."""
        if not self.up:
            self.up, self._life = True, Life()
            self._world.trace.note(self.name, "is there")
            if self._world.scenario.pull_ns:
                self._begin(self._pull())

    def crash(self) -> None:
        """End all calls; what is stored stays."""
        if self.up:
            self.up = False
            self._world.trace.note(self.name, "is away")
            self._life.end()
            self._world.network.drop_calls(self.name)

    def serve(self, method: str, end: End) -> bool:
        """Take a call."""
        work = {PUBLISH: self._take, FOLLOW: self._feed, READ: self._read}.get(method)
        if work is None:
            return False
        task = self._begin(_served(work, end))

        def lost(_: Closed) -> None:
            task.cancel()

        end.on_lost = lost
        return True

    def receive(self, sender: str, letter: object) -> None:
        """Receive no broadcasts."""

    def hear(self, message: Fetched) -> None:
        """Store a message of an outsider."""
        if self.up:
            self._store(message)
            self._stir()

    # What it does

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._world.loop.begin(self._life, work)

    async def _disk(self) -> None:
        world = self._world
        await asyncio.sleep(world.scenario.disk_delay_ns * world.rng.random() / NS_PER_S)

    async def _take(self, end: End) -> None:
        while not isinstance(batch := await end.read(), Ended):
            await self._disk()
            self._world.store_calls["batches published"] += 1
            self._world.store_calls["messages published"] += len(batch)
            verdicts = [self._store(each) for each in batch]
            self._stir()
            if happens(self._world.rng, self._world.faults_now.commit_crashes):
                self._world.fail_soon(self)
                await asyncio.sleep(1)
            await end.send(verdicts)
        end.finish()

    def _store(self, message: Fetched) -> PublishResult:
        drift_ns = self._world.scenario.drift_ns
        if abs(message.timestamp_ns - self._world.timeline.now_ns) > drift_ns:
            self._world.mark("a store refused a message for its time")
            return PublishResult(
                stored=False, hint=b"", reason="The time is too far from the node's."
            )
        if message.hint:
            self.shelf.add(message)
        return PublishResult(stored=True, hint=message.hint)

    def _stir(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _feed(self, end: End) -> None:
        place, order = self._place(await end.read()), self.shelf.order
        if place is None:
            end.finish(Status.OUT_OF_RANGE, "the cursor is another store's")
            return
        most = self._world.scenario.limits.page_messages
        while True:
            messages = order[place : place + most]
            place += len(messages)
            cursor = f"{self.name}:{place}".encode()
            await end.send(FeedPage(messages, cursor, live=place == len(order)))
            while place == len(order):
                await self._news.wait()

    def _place(self, cursor: bytes) -> int | None:
        if not cursor:
            return len(self.shelf.order)
        name, place = cursor.decode().split(":")
        return int(place) if name == self.name else None

    async def _read(self, end: End) -> None:
        method, *arguments = await end.read()
        self._world.store_calls[method] += 1
        await self._disk()
        shelf = self.shelf
        reads: dict[str, Callable[..., tuple[list[Fetched], bool]]] = {
            SCAN: shelf.since,
            QUERY: shelf.by_hint,
            LOOKUP: shelf.by_id,
            HISTORY: shelf.causes,
        }
        messages, truncated = reads[method](*arguments)
        if truncated:
            self._world.mark("an answer was truncated")
        most = self._world.scenario.limits.page_messages
        for start in range(0, len(messages), most):
            await end.send(messages[start : start + most])
        end.finish()

    async def _pull(self) -> None:
        """Fetch what the other nodes have, as reconciliation does."""
        world = self._world
        while True:
            await asyncio.sleep(world.scenario.pull_ns / NS_PER_S * world.rng.uniform(0.5, 1.5))
            for other in world.stores:
                if other.up and not world.network.is_cut(self.name, other.name):
                    new = [each for each in other.shelf.order if self.shelf.add(each)]
                    if new:
                        self._stir()


async def _served(work: Callable[[End], Awaitable[None]], end: End) -> None:
    with suppress(Closed):
        await work(end)
