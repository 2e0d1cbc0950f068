"""A connection of a client or a peer, from its first byte to its last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from store.domain.quota import Bucket
from store.gateway import noise
from store.gateway.clients import ClientAddress, charge
from store.gateway.faults import RefusalError, StreamEndedError
from store.gateway.limits import FRAMES_PER_S, IDLE_TIMEOUT_S, REQUEST_TIMEOUT_S, SEND_TIMEOUT_S
from store.gateway.metrics import GatewayMetrics
from store.gateway.multiplexing import Frame, FrameType, Mplex, Multiplexer, Yamux
from store.gateway.multistream import Pipe, negotiate, propose
from store.gateway.noise import SecurePipe, StaticKey, secure
from store.gateway.streams import Stream
from store.observe.logging import get_logger

Handler = Callable[[Stream], Awaitable[None]]
"""A function that answers on one stream of a connection; what it raises resets the stream."""

_MULTIPLEXERS: Final[dict[str, Callable[[], Multiplexer]]] = {
    Yamux.PROTOCOL: Yamux,
    Mplex.PROTOCOL: Mplex,
}
_log = get_logger("store.gateway")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The state that all connections share. ``max_streams`` is for one connection."""

    key: StaticKey
    handlers: Mapping[str, Handler]
    metrics: GatewayMetrics
    max_streams: int


async def shake_hands(link: Pipe, key: StaticKey) -> tuple[SecurePipe, Multiplexer]:
    """Negotiate encryption and a multiplexer with a client that has connected.

    Raises:
        StreamEndedError: The client has gone.
        RefusalError: It speaks something else.
    """
    await negotiate(link, (noise.PROTOCOL,))
    pipe = await secure(link, key, is_initiator=False)
    chosen = await negotiate(pipe, _MULTIPLEXERS)
    return pipe, _MULTIPLEXERS[chosen]()


async def begin_handshake(
    link: Pipe, key: StaticKey, peer_id: str
) -> tuple[SecurePipe, Multiplexer]:
    """Negotiate encryption and yamux with a peer that was connected to.

    Raises:
        StreamEndedError: The peer has gone.
        RefusalError: It speaks something else, or is another peer.
    """
    await propose(link, noise.PROTOCOL)
    pipe = await secure(link, key, is_initiator=True)
    if pipe.peer_id != peer_id:
        raise RefusalError("identity", f"the peer is {pipe.peer_id}, not {peer_id}")
    await propose(pipe, Yamux.PROTOCOL)
    return pipe, Yamux(is_outbound=True)


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
        self._pipe = pipe
        self._around = around
        self._runner: asyncio.Task[None] | None = None
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
                    data = await self._pipe.any()
                if not data:
                    return
                # A message of Noise counts as a frame, since a head may come in twelve of them.
                charge(self._frames, time.monotonic_ns(), "flood")
                for number, frame in enumerate(self.multiplexer.decode(data)):
                    if number:
                        charge(self._frames, time.monotonic_ns(), "flood")
                    await self._receive(frame)
        except StreamEndedError:
            return
        finally:
            await self._end_streams()

    async def send(
        self, kind: FrameType, stream: int = 0, data: bytes = b"", value: int = 0
    ) -> None:
        """Send a frame, if the multiplexer has it, and wait while the client does not read."""
        encoded = self.multiplexer.encode(Frame(kind, stream, data, value))
        if encoded:
            await self._pipe.send(encoded)

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
        number = self.multiplexer.new_stream()
        stream = self._streams[number] = Stream(number, self)
        try:
            await self._send_in_time(FrameType.OPEN, number)
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await propose(stream, protocol)
            yield stream
            await self._send_in_time(FrameType.CLOSE, number)
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
        task = asyncio.create_task(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _feed(self, stream: Stream, data: bytes) -> None:
        try:
            stream.feed(data)
        except RefusalError as fault:
            self._around.metrics.refused(fault.reason)
            stream.fail()
            await self._send_in_time(FrameType.RESET, stream.number)

    async def _send_in_time(self, kind: FrameType, stream: int = 0, value: int = 0) -> None:
        """Send what no stream waits for; a client that does not read it is cut off."""
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await self.send(kind, stream, value=value)

    async def _serve(self, stream: Stream) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                protocol = await negotiate(stream, self._around.handlers)
            await self._around.handlers[protocol](stream)
            await self._send_in_time(FrameType.CLOSE, stream.number)
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

    async def _reset(self, stream: Stream) -> None:
        if not stream.has_failed:
            try:
                await self._send_in_time(FrameType.RESET, stream.number)
            except (StreamEndedError, OSError, TimeoutError):
                return

    async def _end_streams(self) -> None:
        tasks = self._tasks | self._background
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
