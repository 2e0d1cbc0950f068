"""The stage of a run: a timeline, an event loop, a network, counts; and how time passes on it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from sim.bridge import TimelineLoop
from sim.judge import ViolationError
from sim.limits import NS_PER_MS, NS_PER_S, START_NS
from sim.network import Network
from sim.rng import Random
from sim.timeline import Timeline, Trace

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run.

    ``settling_ns``: from the end of the faults until all was equal. ``counts``: how often
    something happened, rare events (`sim.counts`) among them.
    """

    digest: str
    events: int
    settling_ns: int
    counts: Mapping[str, float]


class Stage(ABC):
    """The stage of one run; `run` is called once.

    ``network_delay_ns``: about how long a frame takes; ``sink`` is given the trace.

    Attributes:
        scenario: its parameters.
        max_events: of a run; more means that something goes round in circles.
        check_every: the number of events between two checks of everything.
        look_every_ns: the time between two looks at what is unsettled.
        counts: how often something happened.
    """

    scenario: object
    max_events: int
    check_every: int
    look_every_ns = 500 * NS_PER_MS

    def __init__(
        self, rng: Random, network_delay_ns: int, sink: Callable[[str], None] | None
    ) -> None:
        self.rng = rng
        self.timeline = Timeline(START_NS)
        # Abstract is what needs sockets, signals or processes: there are none.
        self.loop = TimelineLoop(self.timeline, rng)  # type: ignore[abstract]
        self.trace = Trace(self.timeline, sink)
        self.counts: Counter[str] = Counter()
        self.network = Network(self.timeline, rng, self.trace, self.counts)
        self.network.distance_ns = network_delay_ns

    def run(self) -> Summary:
        """Run from the beginning to the end.

        Raises:
            ViolationError: something that must hold does not.
            AssertionError: a machine's invariant, or a bound, is broken.
        """
        with self.loop.running():
            settling_ns = self.play()
        return Summary(
            digest=self.trace.digest,
            events=self.timeline.events,
            settling_ns=settling_ns,
            counts=dict(sorted(self.counts.items())),
        )

    @abstractmethod
    def play(self) -> int:
        """Let everything happen; return how long it took to settle, in nanoseconds."""

    def look_around(self) -> None:  # noqa: B027 - there may be nothing to verify
        """Verify what must hold at any moment."""

    # Time

    def step(self) -> None:
        """Let the next event happen, and look around now and then."""
        assert self.timeline.step(), "nothing is left to happen"
        self.loop.check()
        events = self.timeline.events
        assert events < self.max_events, (
            f"more than {self.max_events} events: something goes round in circles"
        )
        if not events % self.check_every:
            self.look_around()

    def pass_until(self, time_ns: int) -> None:
        """Let everything happen up to a time."""
        reached: list[bool] = []
        self.timeline.at(time_ns, lambda: reached.append(True))
        while not reached:
            self.step()

    def pass_for(self, duration_ns: int) -> None:
        """Run all events of the next nanoseconds."""
        self.pass_until(self.timeline.now_ns + duration_ns)

    def wait_until_settled(
        self, unsettled: Callable[[], str], sentence: str, patience_ns: int
    ) -> None:
        """Run events until ``unsettled`` returns an empty string.

        Raises:
            ViolationError: That takes longer; it says ``sentence`` and what is unsettled.
        """
        deadline_ns = self.timeline.now_ns + patience_ns
        while reason := unsettled():
            if self.timeline.now_ns > deadline_ns:
                raise ViolationError(f"{sentence}: {reason}")
            self.pass_for(self.look_every_ns)

    def wait_for(self, task: asyncio.Task[_T]) -> _T:
        """Run events until a task has ended, and return its result."""
        while not task.done():
            self.step()
        return task.result()

    async def repeat(self, every_ns: float, act: Callable[[], Awaitable[object]]) -> NoReturn:
        """Repeat an action, with pauses of ``every_ns`` in the mean."""
        while True:
            await asyncio.sleep(self.rng.uniform(0, 2) * every_ns / NS_PER_S)
            await act()
