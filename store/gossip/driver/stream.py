"""A stream of gossip: frames of a peer to the driver, and frames of the driver to the peer.

One frame is read at a time and handed over before the next is, and none while the driver does not
listen, so that flow control holds the peer back; one is written at a time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from store.domain.places import Caller
from store.gossip.driver.errors import FrameRejectedError, PeerStalledError, StreamClosedError
from store.gossip.driver.ports import GossipStream
from store.gossip.events import Bodies, FrameIn, FrameOut
from store.gossip.limits import LARGE_FRAME_IDS

if TYPE_CHECKING:
    from store.gossip.driver.driver import GossipDriver

WRITE_TIMEOUT_S: Final = 60.0
"""A peer that takes no frame for so long hangs."""


class PeerStream:
    """A stream with the node ``peer``, which was begun by the node ``initiator``.

    ``caller``: the peer that began it; None where this node did. ``began_ns``: when that was.
    ``brought_ns``: when the peer's last message came.
    """

    def __init__(
        self,
        frames: GossipStream,
        peer: str,
        store_id: str,
        initiator: str,
        *,
        caller: Caller | None = None,
        began_ns: int = 0,
    ) -> None:
        self.peer = peer
        self.store_id = store_id
        self.initiator = initiator
        self.caller = caller
        self.began_ns = began_ns
        self.brought_ns: int | None = None
        self._frames = frames
        self._listening = asyncio.Event()
        self._listening.set()
        self._to_send: asyncio.Queue[FrameOut] = asyncio.Queue()
        self.fault: FrameRejectedError | None = None
        """Why what the peer sent could not be read."""
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def queued_frames(self) -> int:
        """Frames that wait to be written."""
        return self._to_send.qsize()

    async def run(self, user: GossipDriver) -> None:
        """Pass frames on until the peer ends the stream, or this side does.

        Raises:
            PeerFailed: the stream broke, or the peer takes no frames.
            FrameRejectedError: what the peer sends cannot be read.
            StreamClosedError: the reason that `close` was given.
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

    def close(self, reason: StreamClosedError) -> None:
        """End the stream for this reason; nothing to do when it has ended."""
        if not self._closed.done():
            self._closed.set_exception(reason)
            # The task that runs the stream may be cancelled first; asyncio would then complain.
            self._closed.exception()

    async def _read(self, user: GossipDriver) -> None:
        while True:
            await self._listening.wait()
            try:
                frame = await self._frames.read()
            except FrameRejectedError as fault:
                self.fault = fault
                raise
            if frame is None:
                return
            if isinstance(frame, Bodies) or len(frame.ids) < LARGE_FRAME_IDS:
                self._hand_over(user, frame)
                continue
            # Other streams wait, so that many peers with many IDs do not delay clients.
            async with user.turns:
                self._hand_over(user, frame)
                await asyncio.sleep(0)

    def _hand_over(self, user: GossipDriver, frame: FrameIn) -> None:
        if not self._closed.done():
            user.received(self, frame)

    async def _write(self, user: GossipDriver) -> None:
        while True:
            frame = await self._to_send.get()
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._frames.write(frame)
            except TimeoutError:
                raise PeerStalledError(
                    f"the peer has taken no frame for {WRITE_TIMEOUT_S:.0f} s: it hangs, or the "
                    "connection is dead"
                ) from None
            if not self._closed.done():
                user.sent(self)
