"""The network: calls and letters between hosts, with delays, losses and partitions.

A *call* is a stream each way (`sim.calls`). A *letter* is handed over by itself: it may be lost, or
come twice, or after one that was sent later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from sim.calls import Call, CallClosedError, End, Identity, Status
from sim.limits import MAX_CALLS_PER_NODE, NS_PER_MS
from sim.promise import Promise
from sim.rng import Rng, happens
from sim.timeline import Timeline, Trace

_SHORTEST_DELAY_NS: Final = NS_PER_MS // 5
_STALL_NS: Final = 4_000 * NS_PER_MS


@dataclass(slots=True)
class Weather:
    """The faults and delays of a network, in nanoseconds and shares of all cases.

    ``breaks``: of sent frames, those at which the call breaks. ``lost`` and ``twice``: of letters.
    ``unnoticed``: of ends of a call that broke, those that learn of it only after
    ``keepalive_ns``. ``silent``: of calls that broke, those of which the callee never learns.
    ``stalls``: of what is sent, what takes seconds.
    """

    delay_ns: int = 5 * NS_PER_MS
    breaks: float = 0.0
    lost: float = 0.0
    twice: float = 0.0
    unnoticed: float = 0.0
    silent: float = 0.0
    stalls: float = 0.0
    connect_ns: int = 3_000 * NS_PER_MS
    keepalive_ns: int = 80_000 * NS_PER_MS


class Host(Protocol):
    """A participant of the network, with a name."""

    name: str

    @property
    def identity(self) -> Identity | None:
        """The identity that answers calls; None while the host is off."""

    def serve(self, method: str, end: End) -> bool:
        """Serve a call; False: there is no such method."""

    def receive(self, sender: str, letter: object) -> None:
        """Receive a letter."""


class Caller:
    """A host that others never call: it calls them, or writes letters. ``receive`` may be more."""

    @property
    def identity(self) -> Identity | None:
        """The identity, which is None: the host answers no calls."""
        return None

    def serve(self, method: str, end: End) -> bool:  # noqa: ARG002 - as of every host
        """Refuse all calls."""
        return False

    def receive(self, sender: str, letter: object) -> None:
        """Read no letters."""


class Network:
    """The hosts, and the calls and letters between them."""

    def __init__(self, timeline: Timeline, rng: Rng, trace: Trace, counts: Counter[str]) -> None:
        self.counts = counts
        self.timeline = timeline
        self.trace = trace
        self.weather = Weather()
        self.calls: dict[Call, None] = {}
        self._rng = rng
        self._hosts: dict[str, Host] = {}
        self._cut: set[frozenset[str]] = set()

    def add(self, host: Host) -> None:
        """Connect a host."""
        self._hosts[host.name] = host

    # Calls

    async def call(self, caller: str, target: str, method: str, who: Identity) -> End:
        """Call a method; done when the callee's metadata have come.

        Raises:
            CallClosedError: it cannot be reached, or does not serve the method.
        """
        call = Call(self, caller, target, who)
        self.calls[call] = None
        opened: Promise[Identity] = Promise()
        call.caller.on_lost = opened.fail
        delay_ns = self.delay_ns(caller, target)
        self.timeline.after(delay_ns, lambda: self._connect(call, method, opened))
        late = CallClosedError(Status.DEADLINE_EXCEEDED, f"{target} did not answer in time")
        timer = self.timeline.after(self.weather.connect_ns, lambda: opened.fail(late))
        try:
            call.caller.there = await opened
        except BaseException:
            call.cancel()
            raise
        finally:
            timer.cancel()
        call.caller.on_lost = None
        return call.caller

    def _connect(self, call: Call, method: str, opened: Promise[Identity]) -> None:
        caller, target = call.hosts
        host = self._hosts[target]
        if call.over or self.is_cut(caller, target):
            return
        identity = host.identity
        if identity is None or not host.serve(method, call.callee):
            call.refuse(CallClosedError(Status.UNAVAILABLE, f"{target} cannot be reached"))
            return
        self.timeline.after(self.delay_ns(target, caller), lambda: opened.keep(identity))

    def breaks_now(self) -> bool:
        """Draw whether a call breaks at a frame."""
        return happens(self._rng, self.weather.breaks)

    def is_silent(self) -> bool:
        """Draw whether the callee of a broken call is never notified."""
        return happens(self._rng, self.weather.silent)

    def forget(self, call: Call) -> None:
        """Forget a call that is over."""
        del self.calls[call]

    def drop_calls(self, host: str) -> None:
        """End all calls of a host that is gone."""
        for call in list(self.calls):
            if host in call.hosts:
                call.drop(host)

    # Letters

    def post(self, sender: str, target: str, letter: object) -> None:
        """Send a letter, which may be lost or arrive twice."""
        copies = 0 if happens(self._rng, self.weather.lost) else 1
        copies += happens(self._rng, self.weather.twice)
        for _ in range(copies):
            delay_ns = self.delay_ns(sender, target)
            self.timeline.after(delay_ns, lambda: self._deliver(sender, target, letter))

    def _deliver(self, sender: str, target: str, letter: object) -> None:
        if not self.is_cut(sender, target):
            self._hosts[target].receive(sender, letter)

    # Partitions and delays

    def cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Let nothing through between some hosts; calls break when that lasts too long."""
        for pair in pairs:
            self._cut.add(frozenset(pair))
        for call in list(self.calls):
            if self.is_cut(*call.hosts):
                self._doubt(call)

    def heal(self) -> None:
        """Let everything through again."""
        self._cut.clear()
        for call in self.calls:
            for pipe in call.pipes:
                pipe.flow()

    def is_cut(self, one: str, other: str) -> bool:
        """Return True if nothing gets through between two hosts."""
        return bool(self._cut) and frozenset((one, other)) in self._cut

    def _doubt(self, call: Call) -> None:
        if not happens(self._rng, self.weather.unnoticed):
            call.break_off()
            return

        def look() -> None:
            if not call.over and self.is_cut(*call.hosts):
                call.break_off()

        self.timeline.after(self.weather.keepalive_ns, look)

    def delay_ns(self, sender: str, receiver: str) -> int:
        """Draw a delay; every pair of hosts has its own distance."""
        longest_ns = self.weather.delay_ns * (1 + (hash_of(sender, receiver) % 4))
        stalls = happens(self._rng, self.weather.stalls)
        stall_ns = int(_STALL_NS * self._rng.random()) if stalls else 0
        return _SHORTEST_DELAY_NS + int(longest_ns * self._rng.random() ** 2) + stall_ns

    def notice_ns(self, sender: str, receiver: str) -> int:
        """Draw the delay until the unannounced end of a call is noticed."""
        if happens(self._rng, self.weather.unnoticed):
            return self.weather.keepalive_ns
        return self.delay_ns(sender, receiver)

    def check(self) -> None:
        """Verify the bounds on what is under way.

        Raises:
            AssertionError: one is passed.
        """
        ends: dict[str, int] = {}
        for call in self.calls:
            for pipe in call.pipes:
                pipe.check()
            for host in call.hosts:
                ends[host] = ends.get(host, 0) + 1
        for host, count in ends.items():
            assert count <= MAX_CALLS_PER_NODE, f"{host} has {count} calls"


def hash_of(one: str, other: str) -> int:
    """Return a number that depends on two names only."""
    return sum((one + other).encode())
