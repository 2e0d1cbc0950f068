"""A connection of a client, from its first byte to its last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from store.domain.quota import Bucket
from store.gateway import mplex, noise, yamux
from store.gateway.clients import ClientAddress, charge
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import FRAMES_PER_S, IDLE_TIMEOUT_S, REQUEST_TIMEOUT_S, SEND_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics
from store.gateway.multiplexing import (
    Aborted,
    Credit,
    DataReceived,
    Event,
    Finished,
    Multiplexer,
    Opened,
    Pong,
)
from store.gateway.multistream import ByteReader, Pipe, negotiate, propose
from store.gateway.noise import SecurePipe, StaticKey, secure
from store.gateway.streams import Stream
from store.observe.logging import get_logger

Handler = Callable[[Stream, ByteReader, "WakuConnection"], Awaitable[None]]
"""A function that answers on one stream of a connection; what it raises resets the stream."""

_MULTIPLEXERS: Final[dict[str, Callable[[], Multiplexer]]] = {
    yamux.PROTOCOL: yamux.Yamux,
    mplex.PROTOCOL: mplex.Mplex,
}
_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The state that all connections share. ``max_streams`` is for one connection."""

    key: StaticKey
    handlers: Mapping[str, Handler]
    metrics: GatewayMetrics
    max_streams: int


@dataclass(frozen=True, slots=True)
class Secured:
    """A connection after its handshake."""

    pipe: SecurePipe
    reader: ByteReader
    multiplexer: Multiplexer


async def shake_hands(link: Pipe, key: StaticKey) -> Secured:
    """Negotiate encryption and a multiplexer.

    Raises:
        StreamEndedError: The client has gone.
        RefusalError: It speaks something else.
    """
    reader = ByteReader(link)
    await negotiate(reader, link, (noise.PROTOCOL,))
    pipe = await secure(reader, link, key)
    inner = ByteReader(pipe)
    chosen = await negotiate(inner, pipe, _MULTIPLEXERS)
    return Secured(pipe, inner, _MULTIPLEXERS[chosen]())


async def begin_handshake(link: Pipe, key: StaticKey, peer_id: str) -> Secured:
    """Negotiate encryption and yamux with a peer that was connected to.

    Raises:
        StreamEndedError: The peer has gone.
        RefusalError: It speaks something else, or is another peer.
    """
    reader = ByteReader(link)
    await propose(reader, link, noise.PROTOCOL)
    pipe = await noise.initiate(reader, link, key)
    if pipe.peer_id != peer_id:
        raise RefusalError("identity", f"the peer is {pipe.peer_id}, not {peer_id}")
    inner = ByteReader(pipe)
    await propose(inner, pipe, yamux.PROTOCOL)
    return Secured(pipe, inner, yamux.Yamux(is_outbound=True))


class WakuConnection:
    """The streams of a connection after its handshake."""

    def __init__(self, secured: Secured, client: ClientAddress, around: Surroundings) -> None:
        self.multiplexer = secured.multiplexer
        self.client = client
        self.peer_id = secured.pipe.peer_id
        self._secured = secured
        self._runner: asyncio.Task[None] | None = None
        self._around = around
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._frames = Bucket(FRAMES_PER_S, "frames")

    @property
    def busy(self) -> bool:
        """True while requests are being answered."""
        return bool(self._tasks)

    async def run(self) -> None:
        """Serve until the client goes.

        Raises:
            RefusalError: The client breaks a rule.
            OSError, TimeoutError: The connection broke, or nothing has arrived for too long.
        """
        self._runner = asyncio.current_task()
        try:
            while True:
                async with asyncio.timeout(IDLE_TIMEOUT_S):
                    data = await self._secured.reader.any()
                if not data:
                    return
                for event in self.multiplexer.feed(data):
                    sentence = f"the client sends more than {self._frames.rate:,} frames a second"
                    charge(self._frames, time.monotonic_ns(), "flood", sentence)
                    await self._on(event)
        except StreamEndedError:
            return
        finally:
            await self._end_streams()

    async def send(self, frame: bytes) -> None:
        """Send a frame, and wait while the client does not read."""
        await self._secured.pipe.send(frame)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run work beside the requests, at the latest until the connection ends."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    @asynccontextmanager
    async def opened(self, protocol: str) -> AsyncIterator[Stream]:
        """Open a stream to the client and agree on a protocol, for the length of a block.

        Raises:
            RefusalError: The client does not speak the protocol.
            StreamEndedError, OSError, TimeoutError: The client has gone, or does not answer.
        """
        number, frame = self.multiplexer.open()
        stream = self._streams[number] = Stream(number, self, self.client.unread)
        try:
            await self._say(frame)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await propose(ByteReader(stream), stream, protocol)
            yield stream
            await self._say(self.multiplexer.finished(number))
        except (StreamEndedError, RefusalError, OSError, TimeoutError):
            await self._reset(stream)
            raise
        finally:
            stream.discard()
            del self._streams[number]

    def end(self) -> None:
        """End the connection, and the task that runs it."""
        if self._runner is not None:
            self._runner.cancel()

    def allow_frames(self, frames_per_s: int) -> None:
        """Set the rate of frames for a peer that is expected to send more than clients do."""
        self._frames = Bucket(frames_per_s, "frames")

    async def say_goodbye(self) -> None:
        """Send the frame that ends the connection."""
        frame = self.multiplexer.goodbye()
        if frame:
            await self._say(frame)

    async def _on(self, event: Event) -> None:
        match event:
            case Opened(number):
                await self._open(number)
            case DataReceived(number, data):
                await self._receive(number, data)
            case Finished(number) if number in self._streams:
                self._streams[number].finish()
            case Aborted(number) if number in self._streams:
                self._streams[number].fail()
            case Credit(number, size_bytes) if number in self._streams:
                self._streams[number].credit(size_bytes)
            case Pong(data):
                await self._say(data)

    async def _open(self, number: int) -> None:
        if number in self._streams:
            raise RefusalError("malformed", f"the client opens the stream {number} twice")
        if len(self._streams) >= self._around.max_streams:
            self._around.metrics.refused("streams")
            await self._say(self.multiplexer.aborted(number))
            return
        stream = self._streams[number] = Stream(number, self, self.client.unread)
        accepted = self.multiplexer.accepted(number)
        if accepted:
            await self._say(accepted)
        task = asyncio.create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        try:
            stream.feed(data)
        except RefusalError as fault:
            self._around.metrics.refused(fault.reason)
            stream.fail()
            await self._say(self.multiplexer.aborted(number))

    async def _say(self, frame: bytes) -> None:
        """Send what no stream waits for; a client that does not read it is cut off."""
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self.send(frame)

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._handle(stream)
        except RefusalError as fault:
            self._around.metrics.refused(fault.reason)
            await self._reset(stream)
        except TimeoutError:
            self._around.metrics.refused("timeout")
            await self._reset(stream)
        except (StreamEndedError, OSError):
            await self._reset(stream)
        except Exception:  # noqa: BLE001 - the connection and the others go on
            _log.exception("stream_failed", client=self.client.network)
            await self._reset(stream)
        finally:
            stream.discard()
            del self._streams[stream.number]

    async def _handle(self, stream: Stream) -> None:
        reader = ByteReader(stream)
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            protocol = await negotiate(reader, stream, self._around.handlers)
        self._around.metrics.streams.labels(protocol).inc()
        await self._around.handlers[protocol](stream, reader, self)
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self.send(self.multiplexer.finished(stream.number))

    async def _reset(self, stream: Stream) -> None:
        if not stream.has_failed:
            try:
                await self._say(self.multiplexer.aborted(stream.number))
            except (StreamEndedError, OSError, TimeoutError):
                return

    async def _end_streams(self) -> None:
        tasks = self._tasks | self._background
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
