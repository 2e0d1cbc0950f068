"""Simulated streams: frames with drawn latencies, over links that break, stall or fall silent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sim.dice import Dice, happens
from sim.gossiping.loop import VirtualLoop, current_life
from store.domain.ports import PeerFailed

WINDOW_FRAMES: Final = 4
"""Frames of one direction that the reader has not taken yet; then the writer waits."""

CONNECT_TIMEOUT_S: Final = 3.0
KEEPALIVE_S: Final = 15.0
"""After so long the end of a link learns that it is broken, if nothing has told it before."""

_SHORTEST_S: Final = 0.0002
_STALL_S: Final = 4.0


@dataclass(slots=True)
class Weather:
    """Shares of all cases; ``delay_s``: what a frame takes, about.

    ``breaks``: of frames, at which the link breaks; ``stalls``: of frames, that are held up for
    seconds. ``unnoticed``: of ends of a broken link, those that only keepalive tells; of these, the
    callee's half learn it never.
    """

    delay_s: float = 0.005
    breaks: float = 0.0
    stalls: float = 0.0
    unnoticed: float = 0.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A host as its peers know it."""

    node_id: str
    store_id: str


class Host(Protocol):
    """A host on the network."""

    name: str

    @property
    def identity(self) -> Identity | None:
        """The identity that answers; None while the host is down."""
        ...

    def accept(self, end: End, peer: Identity) -> None:
        """Serve a link that a peer has begun."""
        ...


class End:
    """One end of a link: raw frames in and out."""

    def __init__(self, link: Link, host: str) -> None:
        self.host = host
        self.other: End
        self._link = link
        self._frames: deque[Any] = deque()
        self._flying = 0
        self._last_s = 0.0
        self._changed = asyncio.Event()
        self._over = False
        self._fault: PeerFailed | None = None

    async def read(self) -> Any:  # noqa: ANN401 - any frame
        """The next frame; None when the other end has ended the link well.

        Raises:
            PeerFailed: the link is broken, or was ended with a fault.
        """
        _demand_alive()
        while not self._frames and not self._over:
            await self._wait()
        if self._frames:
            frame = self._frames.popleft()
            self.other.wake()
            return frame
        if self._fault is not None:
            raise self._fault
        return None

    async def write(self, frame: object) -> None:
        """Send a frame; waits while the window is full.

        Raises:
            PeerFailed: the link is over.
        """
        _demand_alive()
        while not self._over and self.other.waiting >= WINDOW_FRAMES:
            await self._wait()
        if self._over:
            raise self._fault or PeerFailed("the link has ended")
        self._link.carry(self, frame)

    @property
    def waiting(self) -> int:
        """Frames on their way to this end, and not read yet."""
        return self._flying + len(self._frames)

    def fly(self, delay_s: float, frame: object) -> None:
        """A frame comes to this end, after those before it."""
        loop = asyncio.get_running_loop()
        self._last_s = max(self._last_s, loop.time() + delay_s)
        self._flying += 1
        loop.call_at(self._last_s, self._land, frame, context=outside())

    def end(self, fault: PeerFailed | None) -> None:
        """Nothing comes any more; frames that have come can still be read after a good end."""
        if not self._over:
            self._over, self._fault = True, fault
            if fault is not None:
                self._frames.clear()
            self.wake()

    def close(self, fault: PeerFailed | None) -> None:
        """End the link from this end; the other one learns it, after the frames under way."""
        self._link.close(self, fault)

    def wake(self) -> None:
        """Something has changed for those who wait at this end."""
        self._changed.set()

    def _land(self, frame: object) -> None:
        if self._link.is_cut():
            asyncio.get_running_loop().call_later(0.1, self._land, frame, context=outside())
            return
        self._flying -= 1
        if not self._over and not self._link.broken:
            self._frames.append(frame)
            self.wake()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Link:
    """A link between two hosts."""

    def __init__(self, network: Network, caller: str, callee: str) -> None:
        self.caller, self.callee = End(self, caller), End(self, callee)
        self.caller.other, self.callee.other = self.callee, self.caller
        self.broken = False
        self.over = False
        self._network = network
        self._hosts = caller, callee

    @property
    def ends(self) -> tuple[End, End]:
        """Both."""
        return self.caller, self.callee

    def is_cut(self) -> bool:
        """Does nothing get through at present?"""
        return self._network.is_cut(*self._hosts)

    def touches(self, host: str) -> bool:
        """Is it a host's?"""
        return host in self._hosts

    def carry(self, end: End, frame: object) -> None:
        """Take a frame that an end sends."""
        network = self._network
        if self.broken:
            return
        if happens(network.dice, network.weather.breaks):
            self.break_off()
            return
        delay_s = network.delay_s()
        if happens(network.dice, network.weather.stalls):
            delay_s += network.dice.uniform(0, _STALL_S)
        end.other.fly(delay_s, frame)

    def close(self, end: End, fault: PeerFailed | None) -> None:
        """An end has ended the link."""
        end.end(fault or PeerFailed("the link has ended"))
        self._forget()
        self._tell(end.other, fault, self._network.delay_s())

    def break_off(self) -> None:
        """The connection breaks: each end learns it in its own time."""
        if self.broken:
            return
        self.broken = True
        network = self._network
        network.marks["link broke"] += 1
        for end in self.ends:
            delay_s = network.delay_s()
            if happens(network.dice, network.weather.unnoticed):
                delay_s += KEEPALIVE_S
                if end is self.callee and happens(network.dice, 0.5):
                    network.marks["break never reported"] += 1
                    continue
            self._tell(end, PeerFailed("the connection broke"), delay_s)
        self._forget()

    def drop(self, host: str) -> None:
        """A host is gone: its end hears nothing more, the other one learns it."""
        (other,) = (end for end in self.ends if end.host != host)
        late = KEEPALIVE_S if happens(self._network.dice, self._network.weather.unnoticed) else 0
        self.broken = True
        self._tell(other, PeerFailed("the peer is gone"), late + self._network.delay_s())
        self._forget()

    def _tell(self, end: End, fault: PeerFailed | None, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        when_s = max(loop.time() + delay_s, end._last_s)
        loop.call_at(when_s, end.end, fault, context=outside())

    def _forget(self) -> None:
        if not self.over:
            self.over = True
            self._network.links.pop(self, None)


class Network:
    """All hosts, and the links between them."""

    def __init__(self, loop: VirtualLoop, dice: Dice, marks: dict[str, int]) -> None:
        self.weather = Weather()
        self.dice = dice
        self.marks = marks
        self.links: dict[Link, None] = {}
        self.connected: Callable[[str, str], None] = lambda _one, _other: None
        """Told of every attempt to connect: caller, callee."""
        self._loop = loop
        self._hosts: dict[str, Host] = {}
        self._cut: set[frozenset[str]] = set()

    def add(self, host: Host) -> None:
        """Attach a host."""
        self._hosts[host.name] = host

    @asynccontextmanager
    async def connect(
        self, caller: str, who: Identity, target: str
    ) -> AsyncIterator[tuple[End, Identity]]:
        """A link to a host, which ends on the way out.

        Raises:
            PeerFailed: the host cannot be reached.
        """
        _demand_alive()
        self.connected(caller, target)
        await asyncio.sleep(self.delay_s())
        if self.is_cut(caller, target):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise PeerFailed(f"{target} did not answer in time")
        host = self._hosts[target]
        there = host.identity
        if there is None:
            raise PeerFailed(f"{target} cannot be reached")
        link = Link(self, caller, target)
        self.links[link] = None
        try:
            outside().run(host.accept, link.callee, who)
            await asyncio.sleep(self.delay_s())
            yield link.caller, there
        finally:
            life = current_life()
            if life is None or not life.ended:
                link.caller.close(PeerFailed("the peer is gone"))

    def drop_links(self, host: str) -> None:
        """A host is gone."""
        for link in list(self.links):
            if link.touches(host):
                link.drop(host)

    def cut(self, hosts: set[str]) -> None:
        """Let nothing through between some hosts and all others."""
        for host in hosts:
            for other in self._hosts.keys() - hosts:
                self._cut.add(frozenset((host, other)))
        for link in list(self.links):
            if link.is_cut():
                self._loop.call_later(KEEPALIVE_S, self._doubt, link, context=outside())

    def heal(self) -> None:
        """Let everything through again."""
        self._cut.clear()

    def is_cut(self, one: str, other: str) -> bool:
        """Does nothing get through between two hosts?"""
        return bool(self._cut) and frozenset((one, other)) in self._cut

    def delay_s(self) -> float:
        """How long a frame takes."""
        return _SHORTEST_S + 2 * self.weather.delay_s * self.dice.random() ** 2

    def _doubt(self, link: Link) -> None:
        if not link.over and link.is_cut():
            link.break_off()


def outside() -> Context:
    """A context that belongs to no process: what the world does goes on when a process dies."""
    return Context()


def _demand_alive() -> None:
    life = current_life()
    if life is not None:
        life.demand()
