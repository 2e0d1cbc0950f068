"""Virtual time for tests of drivers: deadlines and pauses pass at once, in their order."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from sim.bridge import Life, TimelineLoop
from sim.limits import START_NS
from sim.timeline import Timeline

_P = ParamSpec("_P")


def virtual_time(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run an asynchronous test on the event loop of the simulator.

    There are no sockets, signals or threads. A test in which nothing can happen any more fails
    instead of hanging.
    """

    @functools.wraps(test)
    def run(*args: _P.args, **options: _P.kwargs) -> None:
        run_virtually(Timeline(START_NS), test(*args, **options))

    return run


def run_virtually(timeline: Timeline, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end on a timeline."""
    loop = TimelineLoop(timeline, random.Random(1))  # type: ignore[abstract]
    with loop.running():
        task = loop.begin(Life(), work)
        while not task.done():
            assert timeline.step(), "nothing is left to happen"
            loop.check()
        task.result()
