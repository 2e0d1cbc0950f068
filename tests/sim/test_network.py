"""The simulated network and database do what the real ones promise, and no more."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sim.bridge import TimelineLoop
from sim.calls import Closed, End, Ended, Identity, Status
from sim.database import Database, Unavailable
from sim.judge import Judge, Violation
from sim.limits import START_NS, STREAM_WINDOW_FRAMES
from sim.messages import Message, message_of
from sim.network import Network
from sim.promise import Promise
from sim.timeline import Timeline, Trace
from store.domain.hub import WrittenIds
from store.messages.record import RecordBatch
from storenode.message.rules import Policy
from tests.support.admission import admit

WHO = Identity("caller", "store-c")
RULES = Policy(max_drift_ns=None, publisher=False)


Serve = Callable[[End], Coroutine[Any, Any, None]]


class Callee:
    """A host that does with calls what a test wants, and keeps its letters."""

    def __init__(self, name: str, world: "World", serve: Serve) -> None:
        self.name = name
        self.identity: Identity | None = Identity(name, f"store-{name}")
        self.letters: list[object] = []
        self._world = world
        self._serve = serve

    def serve(self, method: str, end: End) -> bool:
        if method != "Method":
            return False
        task = self._world.spawn(self._serve(end))

        def lost(_: Closed) -> None:
            task.cancel()

        end.on_lost = lost
        return True

    def receive(self, sender: str, letter: object) -> None:  # noqa: ARG002 - as of every host
        self.letters.append(letter)


class World:
    """A network with a caller "a" and a callee "b"."""

    def __init__(self, seed: int, serve: Serve) -> None:
        self.timeline = Timeline(START_NS)
        self.rng = random.Random(seed)
        # Abstract is what needs sockets, signals or processes: there are none.
        self.loop = TimelineLoop(self.timeline, self.rng)  # type: ignore[abstract]
        self.network = Network(self.timeline, self.rng, Trace(self.timeline), Counter())
        self.callee = Callee("b", self, serve)
        self.network.add(self.callee)
        self.network.add(Callee("a", self, serve))
        self.failed: Exception | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.begin(None, self._watched(work))

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Closed as error:
            self.failed = error

    async def call(self) -> End:
        return await self.network.call("a", "b", "Method", WHO)

    def finish(self) -> None:
        with self.loop.running():
            while self.timeline.step():
                self.network.check()
                self.loop.check()


@pytest.mark.parametrize("seed", range(20))
def test_frames_arrive_in_order_and_each_once(seed: int) -> None:
    received: list[object] = []

    async def serve(end: End) -> None:
        assert end.there == WHO
        while not isinstance(frame := (await end.read()), Ended):
            received.append(frame)
            await end.send(frame)
        end.finish()

    world = World(seed, serve)
    echoed: list[object] = []

    async def caller() -> None:
        end = await world.call()
        assert end.there.node_id == "b"
        for number in range(30):
            await end.send(number)
            echoed.append(await end.read())
        end.half_close()
        assert (await end.read()) == Ended()

    world.spawn(caller())
    world.finish()
    assert received == echoed == list(range(30))
    assert world.failed is None
    assert not world.network.calls


def test_a_writer_waits_for_its_reader() -> None:
    async def serve(end: End) -> None:
        await end.send("nothing is read")
        await Promise[None]()

    world = World(0, serve)
    sent: list[int] = []

    async def caller() -> None:
        end = await world.call()
        for number in range(20):
            await end.send(number)
            sent.append(number)

    world.spawn(caller())
    world.finish()
    assert sent == list(range(STREAM_WINDOW_FRAMES))


@pytest.mark.parametrize("seed", range(30))
def test_a_call_may_break_at_any_frame_and_both_ends_learn_of_it(seed: int) -> None:
    received: list[object] = []
    ended: list[str] = []

    async def serve(end: End) -> None:
        try:
            while True:
                received.append(await end.read())
        finally:
            ended.append("callee")

    world = World(seed, serve)
    world.network.weather.breaks = 0.1

    async def caller() -> None:
        end = await world.call()
        try:
            for number in range(10_000):
                await end.send(number)
        finally:
            ended.append("caller")

    world.spawn(caller())
    world.finish()
    assert sorted(ended) == ["callee", "caller"]
    assert received == list(range(len(received)))
    assert isinstance(world.failed, Closed)
    assert world.failed.status is Status.UNAVAILABLE


def test_a_host_that_is_off_does_not_answer() -> None:
    async def serve(end: End) -> None:
        end.finish()

    world = World(0, serve)
    world.callee.identity = None

    async def caller() -> None:
        await world.call()

    world.spawn(caller())
    world.finish()
    assert isinstance(world.failed, Closed)
    assert world.failed.status is Status.UNAVAILABLE


@pytest.mark.parametrize("healed", [True, False])
def test_a_partition_holds_frames_up_until_it_heals_or_the_call_breaks(healed: bool) -> None:
    received: list[object] = []

    async def serve(end: End) -> None:
        while not isinstance(frame := (await end.read()), Ended):
            received.append(frame)
        end.finish()

    world = World(1, serve)
    world.network.weather.unnoticed = 1.0

    async def caller() -> None:
        end = await world.call()
        world.network.cut([("b", "a")])
        for number in range(3):
            await end.send(number)
        end.half_close()
        await end.read()

    world.spawn(caller())
    if healed:
        world.timeline.after(10**9, world.network.heal)
    world.finish()
    assert received == ([0, 1, 2] if healed else [])
    assert (world.failed is None) == healed


def test_letters_get_lost_and_come_twice_and_out_of_order() -> None:
    async def serve(end: End) -> None:
        end.finish()

    world = World(2, serve)
    world.network.weather.lost, world.network.weather.twice = 0.2, 0.3
    for number in range(500):
        world.network.post("a", "b", number)
    world.finish()
    numbers = [letter for letter in world.callee.letters if isinstance(letter, int)]
    assert numbers != sorted(numbers)
    assert 300 < len(set(numbers)) < 500 < len(numbers) + 100


# The database


class Writer:
    """A writer that may be gone."""

    def __init__(self) -> None:
        self.alive = True
        self.written_ids = WrittenIds()

    def crash_soon(self) -> None:
        self.alive = False


def batch(judge: Judge, *texts: bytes) -> RecordBatch:
    messages = [message_of("/waku/2/rs/7/0", "/t/1/a/proto", text, START_NS) for text in texts]
    for message in messages:
        judge.make(message)
    return admit([each.encoded for each in messages], START_NS, RULES).batch


def database(seed: int) -> tuple[Database, Timeline, Judge]:
    timeline, judge = Timeline(START_NS), Judge(lambda _: None)
    return Database("store", timeline, random.Random(seed), judge, [10**9]), timeline, judge


def test_what_is_committed_is_acknowledged_later_and_stays() -> None:
    store, timeline, judge = database(0)
    done = store.write(Writer(), batch(judge, b"one", b"two"))
    durable = []
    while timeline.step():
        durable.append((len(store.stored), done.settled))
    assert durable == [(2, False), (2, True)]
    assert done.value == [True, True]
    again = store.write(Writer(), batch(judge, b"two", b"three"))
    while timeline.step():
        store.check()
    assert again.value == [False, True]


def test_a_writer_that_is_gone_may_or_may_not_have_written() -> None:
    counts = set()
    for seed in range(20):
        store, timeline, judge = database(seed)
        writer = Writer()
        store.write(writer, batch(judge, b"one"))
        writer.alive = False
        while timeline.step():
            pass
        counts.add(len(store.stored))
    assert counts == {0, 1}


def test_a_database_that_is_away_commits_nothing() -> None:
    store, timeline, judge = database(0)
    store.available = False
    done, read = store.write(Writer(), batch(judge, b"one")), store.look(store.snapshot)
    while timeline.step():
        pass
    with pytest.raises(Unavailable):
        done.value  # noqa: B018 - a promise raises what it failed with
    with pytest.raises(Unavailable):
        read.value  # noqa: B018 - the same
    assert not store.stored


def test_the_judge_sees_what_is_invented_lost_or_changed() -> None:
    failed: list[Violation] = []
    judge = Judge(failed.append)
    store = Database("store", Timeline(START_NS), random.Random(0), judge, [10**9])
    known = batch(judge, b"one")
    changed = batch(Judge(lambda _: None), b"two")
    with pytest.raises(Violation, match="nobody published"):
        store.add(changed, 0)
    judge.make(Message(START_NS, changed.hashes[0], b"other bytes"))
    with pytest.raises(Violation, match="nobody published"):
        store.add(changed, 0)
    with pytest.raises(Violation, match="does not hold"):
        judge.acknowledge(store, known.hashes)
    store.add(known, 0)
    judge.acknowledge(store, known.hashes)
    judge.check()
    store.prune(START_NS + 1)
    judge.check()
    store.horizon_ns = 0
    with pytest.raises(Violation, match="does not hold"):
        judge.check()
    assert len(failed) == 4, "a driver that swallows what the judge raises would go on"
