"""The network: calls and letters between hosts, with delays, losses and partitions.

A *call* is a stream each way (`sim.calls`). A *letter* is handed over by itself: it may be lost, or
come twice, or after one that was sent later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from sim.bridge import Promise
from sim.calls import Call, CallClosedError, End, Identity, Status
from sim.limits import MAX_CALLS_PER_NODE, NS_PER_MS
from sim.rng import Random, happens
from sim.scenario import Faults
from sim.timeline import Timeline, Trace

_SHORTEST_DELAY_NS: Final = NS_PER_MS // 5
_STALL_NS: Final = 4_000 * NS_PER_MS
_CONNECT_NS: Final = 3_000 * NS_PER_MS


class Host:
    """A host with a name; by default it serves no call and reads no letter."""

    name: str

    @property
    def identity(self) -> Identity | None:
        """The identity that answers calls; None while the host is off."""
        return None

    def serve(self, method: str, end: End) -> bool:  # noqa: ARG002 - as of every host
        """Serve a call; False: there is no such method."""
        return False

    def receive(self, sender: str, letter: object) -> None:
        """Receive a letter."""


class Network:
    """The hosts, and the calls and letters between them.

    Attributes:
        faults: those of this moment.
        distance_ns: about how long a frame takes.
        keepalive_ns: after so long an end of a call notices that it broke, if it does not at once.
    """

    def __init__(self, timeline: Timeline, rng: Random, trace: Trace, counts: Counter[str]) -> None:
        self.counts = counts
        self.timeline = timeline
        self.trace = trace
        self.faults = Faults()
        self.distance_ns = 5 * NS_PER_MS
        self.keepalive_ns = 80_000 * NS_PER_MS
        self.calls: dict[Call, None] = {}
        self._rng = rng
        self._hosts: dict[str, Host] = {}
        self._cut: set[frozenset[str]] = set()

    def add(self, *hosts: Host) -> None:
        """Connect hosts."""
        self._hosts |= {host.name: host for host in hosts}

    # Calls

    @asynccontextmanager
    async def call(
        self, caller: str, target: str, method: str, who: Identity
    ) -> AsyncIterator[End]:
        """Call a method; yields when the callee's metadata have come, and cancels at the end.

        Raises:
            CallClosedError: it cannot be reached, or does not serve the method.
        """
        call = Call(self, caller, target, who)
        self.calls[call] = None
        opened: Promise[Identity] = Promise()
        call.caller.on_lost = opened.fail
        delay_ns = self.delay_ns(caller, target)
        self.timeline.after(delay_ns, lambda: self._connect(call, method, opened))
        late = CallClosedError(Status.UNAVAILABLE, f"{target} did not answer in time")
        timer = self.timeline.after(_CONNECT_NS, lambda: opened.fail(late))
        try:
            try:
                call.caller.there = await opened
            finally:
                timer.cancel()
            call.caller.on_lost = None
            yield call.caller
        finally:
            call.cancel()

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
        return happens(self._rng, self.faults.breaks)

    def is_silent(self) -> bool:
        """Draw whether the callee of a broken call is never notified."""
        return happens(self._rng, self.faults.silent)

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
        copies = 0 if happens(self._rng, self.faults.lost) else 1
        copies += happens(self._rng, self.faults.twice)
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
        if not happens(self._rng, self.faults.unnoticed):
            call.break_off()
            return

        def look() -> None:
            if not call.over and self.is_cut(*call.hosts):
                call.break_off()

        self.timeline.after(self.keepalive_ns, look)

    def delay_ns(self, sender: str, receiver: str) -> int:
        """Draw a delay; every pair of hosts has its own distance."""
        longest_ns = self.distance_ns * (1 + sum((sender + receiver).encode()) % 4)
        stalls = happens(self._rng, self.faults.stalls)
        stall_ns = int(_STALL_NS * self._rng.random()) if stalls else 0
        return _SHORTEST_DELAY_NS + int(longest_ns * self._rng.random() ** 2) + stall_ns

    def notice_ns(self, sender: str, receiver: str) -> int:
        """Draw the delay until the unannounced end of a call is noticed."""
        if happens(self._rng, self.faults.unnoticed):
            return self.keepalive_ns
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
