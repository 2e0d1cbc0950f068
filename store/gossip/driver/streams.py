"""A stream with a peer, and the task that keeps one.

One frame of a stream is read at a time and handed over before the next is, and none while the
driver does not listen, so that flow control holds the peer back; one is written at a time.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from store.domain.environment import Environment
from store.domain.places import Caller
from store.domain.ports import PeerAddress, PeerError
from store.gossip.driver.ports import GossipStream
from store.gossip.events import Bodies, listed
from store.gossip.limits import LARGE_FRAME_IDS
from storenode.common.backoff import Backoff
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame

if TYPE_CHECKING:
    from store.gossip.driver.driver import GossipDriver

WRITE_TIMEOUT_S: Final = 60.0
"""A peer that takes no frame for so long hangs."""

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
"""Pauses after a peer that could not be reached, or that ended the stream."""

REFUSED_PAUSE_S: Final = 30.0
"""The pause after a peer that refuses, or that this node has refused."""

STEADY_S: Final = 10.0
"""A stream that has lasted for so long makes the next pause the first again."""


class PeerStalledError(PeerError):
    """The peer takes no frames: it hangs, or the connection is dead."""


class PeerRefusedError(PeerError):
    """The peer will not exchange messages with this node, now or at all."""


class PeerHasStreamError(PeerError):
    """The peer keeps another stream with this node."""


class FrameRejectedError(Exception):
    """A frame of the peer is malformed or beyond a limit; one sentence."""


class StreamClosedError(Exception):
    """The end of a stream by this side; one sentence for the peer."""


class TurnedAwayError(StreamClosedError):
    """The peer is cut off for a while."""


class StreamSupersededError(StreamClosedError):
    """A stream that gives way to another with the same peer."""


class DriverFailedError(StreamClosedError):
    """The end of all streams, since the machine failed, or the database has lost commits."""


class NodeStoppingError(StreamClosedError):
    """The node is stopping."""


_REFUSALS: Final = (PeerRefusedError, TurnedAwayError, FrameRejectedError)


class PeerStream:
    """A stream with the node ``peer``, which was begun by the node ``initiator``.

    ``caller``: the peer that began it; None where this node did. ``began_ns``: when that was.
    ``brought_ns``: when the peer's last message came. ``is_joined``: the machine has the peer.
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
        self.is_joined = False
        self._frames = frames
        self._listening = asyncio.Event()
        self._listening.set()
        self._to_send: asyncio.Queue[RawGossipFrame] = asyncio.Queue()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_closed(self) -> bool:
        """True when the stream has ended, or ends."""
        return self._closed.done()

    async def run(self, user: GossipDriver) -> None:
        """Pass frames on until the peer ends the stream, or this side does.

        Raises:
            PeerError: the stream broke, or the peer takes no frames.
            FrameRejectedError: what the peer sends cannot be read.
            StreamClosedError: the reason that `close` was given.
        """
        reader = asyncio.create_task(self._read(user))
        writer = asyncio.create_task(self._write(user))
        try:
            await asyncio.wait({reader, writer, self._closed}, return_when=asyncio.FIRST_COMPLETED)
            # A frame that cannot be read is the better reason: the driver closes the stream for it.
            for ended in (reader, self._closed, writer):
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

    def send(self, frame: RawGossipFrame) -> None:
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
                user.rejected(self, str(fault))
                raise
            if frame is None:
                return
            large = not isinstance(frame, Bodies) and len(listed(frame).ids) >= LARGE_FRAME_IDS
            # Other streams wait, so that many peers with many IDs do not delay clients.
            async with user.turns if large else nullcontext():
                if not self._closed.done():
                    user.received(self, frame)
                if large:
                    await asyncio.sleep(0)

    async def _write(self, user: GossipDriver) -> None:
        while True:
            frame = await self._to_send.get()
            if self._closed.done():  # the database may have lost what the frame announces
                return
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._frames.write(frame)
            except TimeoutError:
                raise PeerStalledError(
                    f"the peer has taken no frame for {WRITE_TIMEOUT_S:.0f} s: it hangs, or the "
                    "connection is dead"
                ) from None
            user.sent(self)


class PeerConnection:
    """A task that keeps a stream with one peer, unless the peer keeps one with this node."""

    def __init__(self, peer: PeerAddress, driver: GossipDriver, environment: Environment) -> None:
        self._peer = peer
        self._driver = driver
        self._environment = environment
        self._logged = ""
        self._is_refused = False
        self._absent_ns = 0

    def observe_absence(self) -> int:
        """Look for the stream, and return when there was first none; 0 while there is one.

        A peer that refuses streams is not absent.
        """
        if self._is_refused or self._driver.stream_with(self._peer) is not None:
            self._absent_ns = 0
        else:
            self._absent_ns = self._absent_ns or self._environment.now_ns()
        return self._absent_ns

    async def run(self) -> None:
        """Connect until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            while (stream := self._driver.stream_with(self._peer)) is not None:
                await stream.ended()
            began_s = loop.time()
            least_s = await self._connect()
            if loop.time() - began_s > STEADY_S:
                backoff.reset()
            # Both sides may connect at the same moment; they should not do so again and again.
            share = self._environment.random.uniform(0.5, 1.0)
            await asyncio.sleep(max(least_s, backoff.take()) * share)

    async def _connect(self) -> float:
        """Run one stream to its end; return the shortest pause after it, in seconds."""
        try:
            await self._driver.connect(self._peer)
            self._is_refused = False
            self._logged = ""
        except (PeerHasStreamError, StreamSupersededError):
            return 0.0
        except (PeerError, StreamClosedError, FrameRejectedError) as error:
            self._is_refused = isinstance(error, _REFUSALS)
            before, self._logged = self._logged, str(error)
            if before != self._logged:
                log = self._environment.log
                log.warning("gossip_dial_failed", peer=str(self._peer), error=self._logged)
        return REFUSED_PAUSE_S if self._is_refused else 0.0
