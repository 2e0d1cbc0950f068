"""One stream of gossip: frames of a peer to the node, and the node's to the peer.

One frame is read at a time and handed over before the next is, and none while the node does not
listen, so that gRPC's flow control holds the peer back; one is written at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from store.domain.admission import Admission
from store.domain.streams import FrameStream
from store.gossip.events import Events, FrameIn, FrameOut
from store.rpc.failure import RpcFailure
from store.rpc.gossip_frames import decode_gossip, encode_gossip
from store.rpc.gossip_limits import GOSSIP_WRITE_TIMEOUT_S
from store.sync.errors import PeerSilent

if TYPE_CHECKING:
    from store.observe.tracing import Tracing


class LinkUser(Protocol):
    """Whom the frames of a stream are for; all on the event loop's thread."""

    def received(self, link: Link, frame: FrameIn) -> None:
        """A frame has come."""
        ...

    def sent(self, link: Link) -> None:
        """The stream has taken the frame that was sent last."""
        ...


class Link:
    """A stream with the node ``peer``, which was begun by the node ``dialler``.

    ``admission`` makes what judges the messages of a frame.
    """

    def __init__(
        self,
        stream: FrameStream,
        peer: str,
        store_id: str,
        dialler: str,
        admission: Callable[[], Admission],
        *,
        tracing: Tracing | None = None,
    ) -> None:
        self.peer = peer
        self.store_id = store_id
        self.dialler = dialler
        self._stream = stream
        self._admission = admission
        self._tracing = tracing
        self._listening = asyncio.Event()
        self._listening.set()
        self._to_send: asyncio.Queue[FrameOut] = asyncio.Queue()
        self.fault: RpcFailure | None = None
        """Why what the peer sent could not be read."""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, user: LinkUser) -> None:
        """Pass frames on until the peer ends the stream, or this side does.

        Raises:
            PeerFailed: the stream broke, or the peer takes no frames.
            RpcFailure: what the peer sends cannot be read, or the reason that `close` was given.
        """
        reader = asyncio.create_task(self._read(user))
        writer = asyncio.create_task(self._write(user))
        try:
            await asyncio.wait({reader, writer, self._closed}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._closed, reader, writer):
                if ended.done():
                    ended.result()
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
            if not self._closed.done():
                self._closed.set_result(None)

    async def ended(self) -> None:
        """Wait until the stream has ended."""
        await asyncio.wait({self._closed})

    def send(self, frame: FrameOut) -> None:
        """Write a frame as soon as those before it are."""
        self._to_send.put_nowait(frame)

    def listen(self, *, reading: bool) -> None:
        """Read frames, or leave them where they are."""
        if reading:
            self._listening.set()
        else:
            self._listening.clear()

    def close(self, failure: RpcFailure) -> None:
        """End the stream for this reason; nothing to do when it has ended."""
        if not self._closed.done():
            self._closed.set_exception(failure)
            # Whoever runs the stream may be cancelled before it looks; asyncio would then complain.
            self._closed.exception()

    async def _read(self, user: LinkUser) -> None:
        while True:
            await self._listening.wait()
            data = await self._stream.read()
            if data is None:
                return
            try:
                frame = await decode_gossip(data, self._admission(), self._tracing)
            except RpcFailure as failure:
                self.fault = failure
                raise
            del data
            if not self._closed.done():
                user.received(self, frame)

    async def _write(self, user: LinkUser) -> None:
        while True:
            frame = await self._to_send.get()
            if self._tracing is None or not isinstance(frame, Events):
                await self._write_frame(encode_gossip(frame))
            else:
                with self._tracing.pushing(frame.messages, self.peer) as traces:
                    await self._write_frame(encode_gossip(frame, traces))
            if not self._closed.done():
                user.sent(self)

    async def _write_frame(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(GOSSIP_WRITE_TIMEOUT_S):
                await self._stream.write(data)
        except TimeoutError:
            raise PeerSilent(
                f"the peer has taken no frame for {GOSSIP_WRITE_TIMEOUT_S:.0f} s: it hangs, or "
                "the connection is dead"
            ) from None
