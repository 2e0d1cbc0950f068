"""The network between two nodes: a TCP proxy that stops at a frame, falls silent, cuts and delays.

It knows the outer form of HTTP/2 in clear (RFC 9113, sections 3.4 and 4.1), so that a test can name
a moment of a session: the third data frame that the callee sends in the second call. It holds
`MAX_HELD_BYTES` for each direction of a connection at most, and reads no more while it does.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeVar

PATIENCE_S: Final = 120.0
MAX_HELD_BYTES: Final = 1024 * 1024
_FRAME_HEADER_BYTES: Final = 9
_PREFACE_BYTES: Final = 24
_DATA: Final = 0
_HEADERS: Final = 1

_T = TypeVar("_T")


class Way(Enum):
    """A direction."""

    UP = "from the caller to the callee"
    DOWN = "from the callee to the caller"


BOTH: Final = (Way.UP, Way.DOWN)


@dataclass(frozen=True)
class Moment:
    """Just before a frame is passed on.

    ``call`` counts the calls through the proxy from 1 on. ``after_bytes`` of data in this direction
    of the call have been passed on; None: not even the headers that open the call, or answer it.
    """

    way: Way
    call: int
    after_bytes: int | None = 0


@dataclass
class Stop:
    """At its moment all traffic stops until the proxy is healed."""

    moment: Moment
    _reached: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    async def wait(self, session: asyncio.Task[Any]) -> None:
        """Wait for the moment, which must come before the end of what goes through."""
        session.add_done_callback(lambda _: self._over.set())
        await asyncio.to_thread(self._over.wait, PATIENCE_S)
        assert self._reached, f"{self.moment} has not come: {session}"

    def is_at(self, way: Way, call: int, passed_bytes: int | None) -> bool:
        """Has the moment come?"""
        moment = self.moment
        if (way, call) != (moment.way, moment.call):
            return False
        if moment.after_bytes is None or passed_bytes is None:
            return moment.after_bytes is passed_bytes
        return passed_bytes >= moment.after_bytes

    def happen(self) -> None:
        """Called by the proxy."""
        self._reached = True
        self._over.set()


class PeerProxy:
    """Listens on a port of 127.0.0.1 and connects to ``target``; lives in a thread of its own.

    ``target`` may change at any time; while it is empty, connections are broken at once.
    """

    def __init__(self, target: str = "") -> None:
        self.target = target
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._links: set[_Link] = set()
        self._refuses = False
        self.traffic = _Traffic()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    @property
    def connections(self) -> int:
        """How many connections there have been."""
        return self._do(lambda: self.traffic.connections)

    def stop_at(self, moment: Moment) -> Stop:
        """Stop all traffic at a moment to come, whose ``call`` counts from now on."""

        def add() -> Stop:
            later = replace(moment, call=self.traffic.calls + moment.call)
            self.traffic.stop = Stop(later)
            return self.traffic.stop

        return self._do(add)

    def silence(self, *ways: Way) -> None:
        """Pass nothing on; connections stay, and what is sent waits where it is."""
        self._do(lambda: self.traffic.silent.update(ways or BOTH))

    def lose(self) -> None:
        """Whatever comes on the connections there are now is lost, and nobody is told."""
        self._do(lambda: self._each(_Link.lose))

    def reset(self) -> None:
        """Break the connections; new ones are served."""
        self._do(lambda: self._each(_Link.abort))

    def cut(self) -> None:
        """Break the connections and refuse new ones."""

        def refuse() -> None:
            self._refuses = True
            self._each(_Link.abort)

        self._do(refuse)

    def delay(self, seconds: float) -> None:
        """Pass everything on later by this much."""

        def change() -> None:
            self.traffic.delay_s = seconds

        self._do(change)

    def heal(self) -> None:
        """Be a good network again; what waited is passed on."""

        def change() -> None:
            self._refuses = False
            self.traffic.stop, self.traffic.delay_s = None, 0.0
            self.traffic.silent.clear()
            self._each(_Link.pump)

        self._do(change)

    def close(self) -> None:
        """End everything."""
        self.cut()
        self._do(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        server = await self._loop.create_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def _accept(self) -> _End:
        link = _Link(self.traffic, self._links.discard)
        self._links.add(link)
        if self._refuses or not self.target:
            self._loop.call_soon(link.abort)
        else:
            self.traffic.connections += 1
            link.begin(self._loop.create_task(self._connect(link)))
        return link.caller

    async def _connect(self, link: _Link) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            await self._loop.create_connection(lambda: link.callee, host, int(port))
        except OSError:
            link.abort()
        link.pump()

    def _each(self, work: Callable[[_Link], None]) -> None:
        for link in tuple(self._links):
            work(link)

    def _do(self, work: Callable[[], _T]) -> _T:
        """Do something in the thread of the proxy, and wait until it is done."""

        async def done() -> _T:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE_S)


@contextmanager
def proxied(target: str = "") -> Iterator[PeerProxy]:
    """A proxy for the length of a ``with`` block."""
    proxy = PeerProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()


@dataclass
class _Traffic:
    """What all connections share: what is in their way, and what went through."""

    calls: int = 0
    connections: int = 0
    silent: set[Way] = field(default_factory=set)
    delay_s: float = 0.0
    stop: Stop | None = None

    def may_pass(self, way: Way, call: int, passed_bytes: int | None) -> bool:
        """Is a frame let through before which so much of its call was? None: it has headers."""
        if self.stop is not None and self.stop.is_at(way, call, passed_bytes):
            self.silent.update(BOTH)
            self.stop.happen()
        return way not in self.silent


class _Link:
    """A connection of a caller and the one that was made for it."""

    def __init__(self, traffic: _Traffic, gone: Callable[[_Link], None]) -> None:
        self._gone = gone
        self._connecting: asyncio.Task[None] | None = None
        self.broken = False
        self._calls: dict[int, int] = {}
        self.caller, self.callee = _End(self), _End(self)
        self._flows = (
            _Flow(traffic, Way.UP, self.caller, self.callee, self._calls),
            _Flow(traffic, Way.DOWN, self.callee, self.caller, self._calls),
        )
        self.caller.flow, self.callee.flow = self._flows

    def begin(self, connecting: asyncio.Task[None]) -> None:
        """Take the task that connects to the callee."""
        self._connecting = connecting

    def pump(self) -> None:
        """Pass on what may be."""
        for flow in self._flows:
            flow.pump()

    def lose(self) -> None:
        """Let everything vanish from now on."""
        for flow in self._flows:
            flow.lost = True

    def abort(self) -> None:
        """Break both connections."""
        self.broken = True
        self._gone(self)
        for end in (self.caller, self.callee):
            if end.transport is not None:
                end.transport.abort()


class _End(asyncio.Protocol):
    """One of the two sockets of a link."""

    flow: _Flow

    def __init__(self, link: _Link) -> None:
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if self._link.broken:
            transport.abort()
        else:
            self._link.pump()

    def data_received(self, data: bytes) -> None:
        self.flow.take(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._link.abort()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._link.pump()


class _Flow:
    """What comes from one end and goes to the other, frame by frame."""

    def __init__(
        self, traffic: _Traffic, way: Way, source: _End, sink: _End, calls: dict[int, int]
    ) -> None:
        self._traffic = traffic
        self._way = way
        self._source = source
        self._sink = sink
        self._calls = calls
        self._data_bytes: Counter[int] = Counter()
        self._late: deque[tuple[float, bytes]] = deque()
        self._held = bytearray()
        self._preface_left = _PREFACE_BYTES if way is Way.UP else 0
        self._frame_left = 0
        self.lost = False

    def take(self, data: bytes) -> None:
        """Bytes have come."""
        if self.lost:
            return
        loop = asyncio.get_running_loop()
        if self._traffic.delay_s or self._late:
            self._late.append((loop.time() + self._traffic.delay_s, data))
            loop.call_later(self._traffic.delay_s, self.pump)
        else:
            self._held += data
        self.pump()

    def pump(self) -> None:
        """Pass on what may be; read on when there is room."""
        now = asyncio.get_running_loop().time()
        while self._late and (not self._traffic.delay_s or self._late[0][0] <= now):
            self._held += self._late.popleft()[1]
        while self._sink.transport is not None and not self._sink.full and (size := self._next()):
            self._sink.transport.write(bytes(self._held[:size]))
            del self._held[:size]
        source = self._source.transport
        if source is not None and not source.is_closing():
            held = len(self._held) + sum(len(data) for _, data in self._late)
            (source.pause_reading if held > MAX_HELD_BYTES else source.resume_reading)()

    def _next(self) -> int:
        """How many bytes may be passed on now: the rest of a frame, or one that may begin."""
        if self._way in self._traffic.silent:
            return 0
        if self._preface_left:
            size = min(self._preface_left, len(self._held))
            self._preface_left -= size
            return size
        if not self._frame_left and len(self._held) >= _FRAME_HEADER_BYTES and self._begins():
            self._frame_left = _FRAME_HEADER_BYTES + self._length
        size = min(self._frame_left, len(self._held))
        self._frame_left -= size
        return size

    def _begins(self) -> bool:
        """Look at the header of a frame; False when it has to wait."""
        kind, stream = self._held[3], int.from_bytes(self._held[5:9], "big") & 0x7FFFFFFF
        if kind not in (_DATA, _HEADERS):
            return True
        opens = kind == _HEADERS and self._way is Way.UP and stream not in self._calls
        call = self._traffic.calls + 1 if opens else self._calls.get(stream, 0)
        passed = self._data_bytes[stream] if kind == _DATA else None
        if not self._traffic.may_pass(self._way, call, passed):
            return False
        if opens:
            self._traffic.calls += 1
            self._calls[stream] = call
        if kind == _DATA:
            self._data_bytes[stream] += self._length
        return True

    @property
    def _length(self) -> int:
        return int.from_bytes(self._held[:3], "big")
