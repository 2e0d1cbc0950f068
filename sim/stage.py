"""The stage of runs of all kinds: a timeline, an event loop, a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from sim.bridge import TimelineLoop
from sim.judge import Violation
from sim.limits import NS_PER_MS, START_NS
from sim.network import Host, Network
from sim.rng import Rng
from sim.timeline import Timeline, Trace

LOOK_EVERY_NS: Final = 500 * NS_PER_MS
"""The time between two looks at what is unsettled."""


class Stage:
    """``network_delay_ns``: how long a frame takes, about; ``sink`` is given the trace.

    ``max_events`` in a run; everything is looked at after each ``check_every`` of them.
    """

    max_events: int
    check_every: int

    def __init__(self, rng: Rng, network_delay_ns: int, sink: Callable[[str], None] | None) -> None:
        self.rng = rng
        self.timeline = Timeline(START_NS)
        # Abstract is what needs sockets, signals or processes: there are none.
        self.loop = TimelineLoop(self.timeline, rng)  # type: ignore[abstract]
        self.trace = Trace(self.timeline, sink)
        self.marks: Counter[str] = Counter()
        self.network = Network(self.timeline, rng, self.trace, self.marks)
        self.network.weather.delay_ns = network_delay_ns

    def connect(self, hosts: Iterable[Host]) -> None:
        """Connect hosts to the network."""
        for host in hosts:
            self.network.add(host)

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
            Violation: That takes longer; it says ``sentence`` and what is unsettled.
        """
        deadline_ns = self.timeline.now_ns + patience_ns
        while reason := unsettled():
            if self.timeline.now_ns > deadline_ns:
                raise Violation(f"{sentence}: {reason}")
            self.pass_for(LOOK_EVERY_NS)

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

    def look_around(self) -> None:
        """Verify what must hold at any moment."""

    def cut_off(self, names: list[str], most: int) -> None:
        """Let nothing through between some hosts and all others."""
        here = set(self.rng.sample(names, self.rng.randint(1, most)))
        pairs = [
            (one, other) for one in names for other in names if one in here and other not in here
        ]
        self.trace.note("net", f"cuts off {sorted(here)}")
        self.network.cut(pairs)

    def make_whole(self) -> None:
        """Let everything through again."""
        self.trace.note("net", "is whole again")
        self.network.heal()
