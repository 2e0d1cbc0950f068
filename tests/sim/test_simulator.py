"""The simulated loop, network and database do what the real ones promise, and no more."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sim.bridge import Life, TimelineLoop
from sim.calls import CallClosedError, End, Ended, Identity
from sim.database import Database
from sim.judge import Judge
from sim.limits import START_NS
from sim.messages import message_of
from sim.network import Network
from sim.timeline import Timeline, Trace
from store.domain.hub import WrittenIds
from store.messages.record import RecordBatch
from storenode.message.rules import Policy
from tests.support.admission import admit

WHO = Identity("caller", "store-c")
RULES = Policy(max_drift_ns=None, publisher=False)

Serve = Callable[[End], Coroutine[Any, Any, None]]


class World:
    """A network with a caller "a" and a callee "b", which serves calls as a test wants."""

    def __init__(self, seed: int, serve: Serve) -> None:
        self.timeline = Timeline(START_NS)
        self.rng = random.Random(seed)
        # Abstract is what needs sockets, signals or processes: there are none.
        self.loop = TimelineLoop(self.timeline, self.rng)  # type: ignore[abstract]
        self.network = Network(self.timeline, self.rng, Trace(self.timeline), Counter())
        self._serve = serve
        for name in "ab":
            host: Any = SimpleNamespace(name=name, identity=Identity(name, f"store-{name}"))
            host.serve, host.receive = self._take, lambda *_: None
            self.network.add(host)
        self.callee = host

    def _take(self, method: str, end: End) -> bool:
        task = self.spawn(self._serve(end))

        def lost(_: CallClosedError) -> None:
            task.cancel()

        end.on_lost = lost
        return method == "Method"

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.begin(None, work)

    async def call(self) -> End:
        return await self.network.call("a", "b", "Method", WHO)

    def finish(self, *works: Coroutine[Any, Any, None]) -> None:
        for work in works:
            self.spawn(work)
        with self.loop.running():
            while self.timeline.step():
                self.network.check()
                self.loop.check()


async def serve_nothing(end: End) -> None:
    end.finish()


@pytest.mark.parametrize("seed", range(10))
def test_frames_arrive_in_order_and_each_once(seed: int) -> None:
    received, echoed = list[object](), list[object]()

    async def serve(end: End) -> None:
        assert end.there == WHO
        while not isinstance(frame := (await end.read()), Ended):
            received.append(frame)
            await end.send(frame)
        end.finish()

    async def call() -> None:
        end = await world.call()
        assert end.there.node_id == "b"
        for number in range(30):
            await end.send(number)
            echoed.append(await end.read())
        end.half_close()
        assert (await end.read()) == Ended()

    world = World(seed, serve)
    world.finish(call())
    assert received == echoed == list(range(30))
    assert not world.network.calls


# The database


def writer() -> Any:  # noqa: ANN401 - a client of a database
    return Mock(alive=True, written_ids=WrittenIds())


def batch(judge: Judge, *texts: bytes) -> RecordBatch:
    messages = [message_of("/waku/2/rs/7/0", "/t/1/a/proto", text, START_NS) for text in texts]
    for message in messages:
        judge.make(message)
    return admit([each.encoded for each in messages], START_NS, RULES).batch


def test_what_is_committed_is_acknowledged_later() -> None:
    timeline, judge, rng = Timeline(START_NS), Judge(lambda _: None), random.Random(0)
    store, durable = Database("store", timeline, rng, judge, [10**9]), []
    with TimelineLoop(timeline, rng).running():  # type: ignore[abstract]
        done = store.write(writer(), batch(judge, b"one", b"two"))
        while timeline.step():
            durable.append((len(store.stored), done.done()))
            store.check()
    assert durable == [(2, False), (2, True)]


# The event loop


def test_a_process_that_is_killed_does_nothing_more() -> None:
    world, life, fired = World(1, serve_nothing), Life(), list[str]()
    with life.inside():
        world.loop.call_later(1, fired.append, "timer")
        task = world.loop.create_task(asyncio.sleep(1))
    world.loop.call_later(1, fired.append, "of the world")
    life.end()
    world.finish()
    assert fired == ["of the world"]
    assert task.cancelled()
    assert not life.tasks


def test_what_a_task_raises_ends_the_run() -> None:
    async def fail() -> None:
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        World(1, serve_nothing).finish(fail())
