"""A connection of a client or a peer, from its first byte to its last, and its streams."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from store.domain.quota import Bucket
from store.gateway import limits
from store.gateway.clients import ClientAddress, charge
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.metrics import GatewayMetrics
from store.gateway.multiplexing import Frame, FrameType, Mplex, Multiplexer, Yamux
from store.gateway.noise import PROTOCOL as NOISE
from store.gateway.noise import Identity, SecurePipe, secure
from store.gateway.pipes import Pipe, negotiate, propose
from store.gateway.wire import delimited
from store.observe.logging import get_logger
from store.serving.tasks import Endable

_MAX_WINDOW_BYTES: Final = 2**32 - 1
Handler = Callable[["Stream"], Awaitable[object]]
"""A function that answers on one stream of a connection; what it raises resets the stream."""

Join = Callable[["WakuConnection"], object]
"""A service that uses each connection of a peer."""

_MULTIPLEXERS: Final[dict[str, Callable[[], Multiplexer]]] = {
    Yamux.PROTOCOL: Yamux,
    Mplex.PROTOCOL: Mplex,
}
_log = get_logger("store.gateway")


class Stream(Pipe):
    """A stream; its connection calls `feed`, `finish`, `fail` and `credit` for what it received."""

    def __init__(self, number: int, connection: WakuConnection) -> None:
        super().__init__()
        self.number = number
        self.connection = connection
        self.has_failed = False
        self._unread = bytearray()
        self._counted_bytes = 0
        self._finished = False
        self._window_bytes = connection.multiplexer.window_bytes
        self._changed = asyncio.Event()

    def feed(self, data: bytes) -> None:
        """Take in what has arrived; raise RefusalError if more is unread than may be."""
        if self._finished or self.has_failed:
            return
        if len(self._unread) + len(data) > limits.MAX_STREAM_UNREAD_BYTES:
            raise RefusalError("too_large", "a client sends more on a stream than is asked for")
        self.connection.client.unread.take(len(data))
        self._counted_bytes += len(data)
        self._unread += data
        self._changed.set()

    def finish(self) -> None:
        """Note that the client sends no more."""
        self._finished = True
        self._changed.set()

    def fail(self) -> None:
        """Note that the client gave the stream up."""
        self.has_failed = True
        self._changed.set()

    def credit(self, size_bytes: int) -> None:
        """Grow the window of what may be sent; raise RefusalError if it gets too large."""
        if self._window_bytes is not None:
            self._window_bytes += size_bytes
            if self._window_bytes > _MAX_WINDOW_BYTES:
                raise RefusalError("malformed", "the window of a stream is too large")
            self._changed.set()

    def release(self) -> None:
        """Return the budget of what was read: its reader needs it no longer."""
        unused_bytes = len(self._unread) + len(self._received)
        self.connection.client.unread.give(self._counted_bytes - unused_bytes)
        self._counted_bytes = unused_bytes

    def discard(self) -> None:
        """Drop what was not read, and release all."""
        self._unread.clear()
        self._received.clear()
        self.release()

    async def receive(self) -> bytes:
        """Return what has arrived; nothing at the end."""
        while not self._unread and not self._finished:
            await self._change()
        data = bytes(self._unread)
        self._unread.clear()
        if data and not self._finished:
            await self.connection.send(FrameType.CREDIT, self.number, value=len(data))
        return data

    async def request(self, most_bytes: int) -> bytes:
        """Return a delimited request.

        js-waku opens streams long before it uses them: there is no deadline for the first bytes.
        """
        size_bytes = await self.length(most_bytes)
        async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
            return await self.exactly(size_bytes)

    async def send(self, data: bytes) -> None:
        """Send, and wait while the client does not read.

        A window smaller than a usual frame is not used until it has grown: a client that opens it
        byte by byte would cause a frame for each.
        """
        at = 0
        while at < len(data):
            size = min(limits.CHUNK_BYTES, len(data) - at)
            if self._window_bytes is not None:
                while self._window_bytes < min(size, limits.MIN_CHUNK_BYTES):
                    await self._change()
                size = min(size, self._window_bytes)
                self._window_bytes -= size
            if self.has_failed:
                raise StreamEndedError
            await self.connection.send(FrameType.DATA, self.number, data[at : at + size])
            at += size

    async def send_delimited(self, data: bytes) -> None:
        """Send bytes behind their length."""
        async with asyncio.timeout(limits.SEND_TIMEOUT_S):
            await self.send(delimited(data))

    async def _change(self) -> None:
        if self.has_failed:
            raise StreamEndedError
        self._changed.clear()
        await self._changed.wait()


class SendQueue:
    """Frames for one client, on streams that the gateway opens, until the client takes none on one.

    Their bytes count as unsent bytes of its address. A client that does not speak the protocol, or
    does not read, is counted as refused. ``on_end`` is called in the end, also after `stop`, and at
    the end of the connection; the frames that wait are then dropped. Each stream after the first
    begins with ``greeting``.
    """

    def __init__(
        self,
        connection: WakuConnection,
        protocol: str,
        max_frames: int,
        metrics: GatewayMetrics,
        on_end: Callable[[], None],
        *,
        greeting: bytes = b"",
    ) -> None:
        self.connection = connection
        self._protocol = protocol
        self._max_frames = max_frames
        self._metrics = metrics
        self._on_end = on_end
        self._greeting = greeting
        self._frames: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._sending = connection.start(self._run())
        self._sending.add_done_callback(self._end)

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False if too many wait."""
        if len(self._frames) >= self._max_frames:
            return False
        try:
            self.connection.client.unsent.take(len(frame))
        except RefusalError:
            return False
        self._frames.append(frame)
        self._filled.set()
        return True

    def stop(self) -> None:
        """Send no more."""
        self._sending.cancel()

    def _end(self, _sending: asyncio.Future[None]) -> None:
        while self._frames:
            self._drop_first()
        self._on_end()

    async def _run(self) -> None:
        with count_end(self._metrics, "queue_failed", self.connection.client):
            greeting = b""
            while await self._send_on_one_stream(greeting):
                greeting = self._greeting

    async def _send_on_one_stream(self, greeting: bytes) -> bool:
        count = 0
        await self._filled.wait()
        try:
            async with self.connection.opened(self._protocol) as stream:
                while True:
                    await self._filled.wait()
                    async with asyncio.timeout(limits.SEND_TIMEOUT_S):
                        await stream.send(greeting + self._frames[0])
                    greeting = b""
                    self._drop_first()
                    count += 1
        except StreamEndedError:
            return count > 0

    def _drop_first(self) -> None:
        self.connection.client.unsent.give(len(self._frames.popleft()))
        if not self._frames:
            self._filled.clear()


@contextmanager
def count_end(metrics: GatewayMetrics, event: str, client: ClientAddress) -> Iterator[None]:
    """Count what ends a connection or a stream, and log what should not; nothing is raised."""
    try:
        yield
    except RefusalError as fault:
        metrics.refused(fault.reason)
        _log.debug("refused", client=client.network, reason=str(fault))
    except TimeoutError:
        metrics.refused("timeout")
    except OSError:
        pass
    except Exception:  # noqa: BLE001 - the others continue
        _log.exception(event, client=client.network)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The state that all connections share. ``max_streams`` is for one connection.

    ``named_peers`` are the IDs of peers that the operator named, which send more than clients do.
    """

    identity: Identity
    handlers: Mapping[str, Handler]
    metrics: GatewayMetrics
    max_streams: int
    named_peers: Collection[str] = ()


async def shake_hands(link: Pipe, identity: Identity) -> tuple[SecurePipe, Multiplexer]:
    """Negotiate encryption and a multiplexer with a client that has connected."""
    await negotiate(link, (NOISE,))
    pipe = await secure(link, identity, is_initiator=False)
    chosen = await negotiate(pipe, _MULTIPLEXERS)
    return pipe, _MULTIPLEXERS[chosen]()


async def begin_handshake(
    link: Pipe, identity: Identity, peer_id: str
) -> tuple[SecurePipe, Multiplexer]:
    """Negotiate encryption and yamux with a peer that was connected to.

    Raises:
        StreamEndedError: The peer has gone.
        RefusalError: It speaks something else, or is another peer.
    """
    await propose(link, NOISE)
    pipe = await secure(link, identity, is_initiator=True)
    if pipe.peer_id != peer_id:
        raise RefusalError("identity", f"the peer is {pipe.peer_id}, not {peer_id}")
    await propose(pipe, Yamux.PROTOCOL)
    return pipe, Yamux(is_outbound=True)


class _DroppedError(Exception):
    """A service has ended the connection."""


class WakuConnection:
    """The streams of a connection after its handshake."""

    def __init__(
        self,
        pipe: SecurePipe,
        multiplexer: Multiplexer,
        client: ClientAddress,
        around: Surroundings,
    ) -> None:
        self.multiplexer = multiplexer
        self.client = client
        self.peer_id = pipe.peer_id
        self.began_ns = time.monotonic_ns()
        self._pipe = pipe
        self._around = around
        self._block: Endable | None = None
        self._streams: dict[int, Stream] = {}
        self._requests = 0
        self._tasks: set[asyncio.Task[None]] = set()
        is_named = pipe.peer_id in around.named_peers
        rate = limits.PEER_FRAMES_PER_S if is_named else limits.FRAMES_PER_S
        self._frames = Bucket(rate, "frames")

    @property
    def busy(self) -> bool:
        """True while requests are being answered."""
        return self._requests > 0

    async def run(self, joins: Iterable[Join] = ()) -> None:
        """Serve until the client goes, or a service ends the connection.

        Each of ``joins`` is called when frames can be exchanged.

        Raises:
            RefusalError: The client breaks a rule.
            OSError: The connection broke, or nothing has arrived for too long.
        """
        try:
            with Endable() as self._block:
                await self._read_frames(joins)
        except StreamEndedError:
            return
        except (_DroppedError, asyncio.CancelledError) as cause:
            with suppress(OSError):
                async with asyncio.timeout(limits.GOODBYE_TIMEOUT_S):
                    await self.send(FrameType.GOODBYE)
            if isinstance(cause, asyncio.CancelledError):
                raise
        finally:
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait(self._tasks)
            for stream in self._streams.values():
                stream.discard()  # its task was cancelled before it began
            self._streams.clear()

    async def _read_frames(self, joins: Iterable[Join]) -> None:
        for join in joins:
            join(self)
        while True:
            async with asyncio.timeout(limits.IDLE_TIMEOUT_S):
                data = await self._pipe.any()
            if not data:
                return
            # A message of Noise counts as a frame, since a head may come in twelve of them.
            charge(self._frames, time.monotonic_ns(), "flood")
            for number, frame in enumerate(self.multiplexer.decode(data)):
                if number:
                    charge(self._frames, time.monotonic_ns(), "flood")
                await self._receive(frame)

    async def send(
        self, kind: FrameType, stream: int = 0, data: bytes = b"", value: int = 0
    ) -> None:
        """Send a frame, if the multiplexer has it, and wait while the client does not read."""
        encoded = self.multiplexer.encode(Frame(kind, stream, data, value))
        if encoded:
            await self._pipe.send(encoded)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work at the latest until the connection ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @asynccontextmanager
    async def opened(self, protocol: str) -> AsyncIterator[Stream]:
        """Open a stream to the client and agree on a protocol, for the length of a block."""
        number = self.multiplexer.new_stream()
        stream = self._streams[number] = Stream(number, self)
        try:
            await self._send_in_time(FrameType.OPEN, number)
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
                await propose(stream, protocol)
            yield stream
            await self._send_in_time(FrameType.CLOSE, number)
        except asyncio.CancelledError:
            self.start(self._reset(stream))
            raise
        except Exception:
            await self._reset(stream)
            raise
        finally:
            stream.discard()
            del self._streams[number]

    def end(self) -> None:
        """End the connection: `run` returns."""
        if self._block is not None:
            self._block.end(_DroppedError())

    async def _receive(self, frame: Frame) -> None:
        if frame.kind is FrameType.OPEN:
            await self._open(frame.stream)
        elif frame.kind is FrameType.PING:
            await self._send_in_time(FrameType.PONG, value=frame.value)
        elif (stream := self._streams.get(frame.stream)) is not None:
            match frame.kind:
                case FrameType.DATA:
                    await self._feed(stream, frame.data)
                case FrameType.CREDIT:
                    stream.credit(frame.value)
                case FrameType.CLOSE:
                    stream.finish()
                case FrameType.RESET:
                    stream.fail()

    async def _open(self, number: int) -> None:
        if number in self._streams:
            raise RefusalError("malformed", f"the client opens the stream {number} twice")
        if len(self._streams) >= self._around.max_streams:
            self._around.metrics.refused("streams")
            await self._send_in_time(FrameType.RESET, number)
            return
        stream = self._streams[number] = Stream(number, self)
        await self._send_in_time(FrameType.ACCEPT, number)
        self._requests += 1
        self.start(self._serve(stream))

    async def _feed(self, stream: Stream, data: bytes) -> None:
        try:
            stream.feed(data)
        except RefusalError as fault:
            self._around.metrics.refused(fault.reason)
            stream.fail()
            await self._send_in_time(FrameType.RESET, stream.number)

    async def _send_in_time(self, kind: FrameType, stream: int = 0, value: int = 0) -> None:
        """Send what no stream waits for; a client that does not read it is cut off."""
        async with asyncio.timeout(limits.SEND_TIMEOUT_S):
            await self.send(kind, stream, value=value)

    async def _serve(self, stream: Stream) -> None:
        is_answered = False
        try:
            with count_end(self._around.metrics, "stream_failed", self.client):
                async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
                    protocol = await negotiate(stream, self._around.handlers)
                await self._around.handlers[protocol](stream)
                await self._send_in_time(FrameType.CLOSE, stream.number)
                is_answered = True
            if not is_answered:
                await self._reset(stream)
        finally:
            self._requests -= 1
            stream.discard()
            del self._streams[stream.number]

    async def _reset(self, stream: Stream) -> None:
        if not stream.has_failed:
            with suppress(OSError):
                await self._send_in_time(FrameType.RESET, stream.number)
