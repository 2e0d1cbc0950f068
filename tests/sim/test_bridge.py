"""asyncio on the timeline: timers in their order, and processes that end."""

import asyncio
import random

import pytest

from sim.bridge import Life, TimelineLoop
from sim.limits import NS_PER_S, START_NS
from sim.timeline import Timeline


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(START_NS)


@pytest.fixture
def loop(timeline: Timeline) -> TimelineLoop:
    # Abstract is what needs sockets, signals or processes: there are none.
    return TimelineLoop(timeline, random.Random(1))  # type: ignore[abstract]


def pass_all(timeline: Timeline, loop: TimelineLoop) -> None:
    while timeline.step():
        loop.check()


def test_timers_of_one_moment_fire_in_the_order_of_their_making(
    timeline: Timeline, loop: TimelineLoop
) -> None:
    fired: list[int] = []
    with loop.running():
        loop.call_at(3600, fired.append, -1)
        for number in range(50):
            loop.call_at(0.5, fired.append, number)
        pass_all(timeline, loop)
    assert fired == [*range(50), -1]
    assert timeline.now_ns == START_NS + 3600 * NS_PER_S


def test_a_process_that_is_killed_does_nothing_more(timeline: Timeline, loop: TimelineLoop) -> None:
    life, fired = Life(), list[str]()
    with loop.running():
        with life.inside():
            loop.call_later(1, fired.append, "timer")
            task = loop.create_task(asyncio.sleep(1))
        loop.call_later(1, fired.append, "of the world")
        life.end()
        pass_all(timeline, loop)
    assert fired == ["of the world"]
    assert task.cancelled()
    assert not life.tasks


def test_what_a_task_raises_ends_the_run(timeline: Timeline, loop: TimelineLoop) -> None:
    async def fail() -> None:
        raise ValueError("a fault")

    with loop.running():
        loop.begin(Life(), fail())
        with pytest.raises(ValueError, match="a fault"):
            pass_all(timeline, loop)
