"""The streams of a node: at most one with each peer, which either side may begin.

One frame of a stream is read at a time and handed over before the next is, and none while the
driver does not listen, so that flow control holds the peer back; one is written at a time.

Where both sides connect, the stream that the lower node ID began stays, on both sides. A stream
that its peer begins anew replaces the one before, which may be dead without either side knowing.

Places are shared out by `store.domain.places`. A stream that this node began is trusted and keeps
its place; one of a peer waits as long as it brings no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from store.domain.environment import Environment
from store.domain.places import FREE, Caller, Places, Standing
from store.domain.ports import PeerAddress, PeerFailed
from store.gossip.driver.ports import GossipConnector, GossipStream
from store.gossip.events import Bodies, FrameIn, FrameOut
from store.gossip.limits import (
    LARGE_FRAME_IDS,
    LEAST_WAIT_NS,
    MAX_PEERS,
    RESERVED_PEERS,
    USEFUL_NS,
    WAIT_PATIENCE_NS,
)
from storenode.common.backoff import Backoff

if TYPE_CHECKING:
    from store.gossip.driver.driver import GossipDriver

WRITE_TIMEOUT_S: Final = 60.0
"""A peer that takes no frame for so long hangs."""


FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 5.0
"""Pauses after a peer that could not be reached, or that ended the stream."""

REFUSED_PAUSE_S: Final = 30.0
"""The pause after a peer that refuses, or that this node has turned away."""

STEADY_S: Final = 10.0
"""A stream that has lasted for so long makes the next pause the first again."""

PLACES: Final = Places(MAX_PEERS, RESERVED_PEERS, WAIT_PATIENCE_NS, LEAST_WAIT_NS)


class PeerStalledError(PeerFailed):
    """The peer takes no frames: it hangs, or the connection is dead."""


class PeerRefusedError(PeerFailed):
    """The peer will not exchange messages with this node, now or at all."""


class PeerHasStreamError(PeerFailed):
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
    """The machine failed, which is a fault of this node."""


class NodeStoppingError(StreamClosedError):
    """The node is stopping."""


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
                user.rejected(self, str(fault))
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


class PeerStreams:
    """The streams there are; one object per node."""

    def __init__(
        self,
        node_id: str,
        driver: GossipDriver,
        connector: GossipConnector,
        steady_ns: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._steady_ns = steady_ns
        self._driver = driver
        self._connector = connector
        self._streams: dict[str, PeerStream] = {}
        self._closed: StreamClosedError | None = None

    def __len__(self) -> int:
        """Count the streams."""
        return len(self._streams)

    @property
    def queued_frames(self) -> int:
        """Frames of all streams that wait to be written."""
        return sum(stream.queued_frames for stream in self._streams.values())

    async def serve(self, frames: GossipStream, caller: Caller) -> None:
        """Pass the frames of a stream on that a peer began, until it ends.

        Raises:
            PeerFailed, FrameRejectedError, StreamClosedError: see `PeerStream.run`.
        """
        peer, now_ns = caller.node_id, self._steady_ns()
        await self._run(
            PeerStream(frames, peer, caller.store_id, peer, caller=caller, began_ns=now_ns)
        )

    async def connect(self, peer: PeerAddress) -> None:
        """Begin a stream, and pass its frames on until it ends.

        Raises:
            PeerFailed, FrameRejectedError, StreamClosedError: see `PeerStream.run`.
        """
        async with self._connector.connect(peer, self._driver.greeting) as made:
            await self._run(PeerStream(made.stream, made.node_id, made.store_id, self._node_id))

    async def absence(self, peer: PeerAddress) -> None:
        """Wait until there is no stream with a peer, if its ID is known."""
        while (stream := self._streams.get(self._connector.node_id(peer))) is not None:
            await stream.ended()

    def has(self, peer: PeerAddress) -> bool:
        """Return True while there is a stream with a peer."""
        return self._connector.node_id(peer) in self._streams

    def close(self, reason: StreamClosedError) -> None:
        """End all streams for this reason, and those that would begin later."""
        self._closed = reason
        for stream in list(self._streams.values()):
            self._remove(stream)
            stream.close(reason)

    async def _run(self, stream: PeerStream) -> None:
        if self._closed is not None:
            raise self._closed
        self._replace(stream)
        self._make_room(stream)
        self._streams[stream.peer] = stream
        self._driver.joined(stream)
        try:
            await stream.run(self._driver)
        finally:
            self._remove(stream)

    def _make_room(self, stream: PeerStream) -> None:
        now_ns, holders = self._steady_ns(), list(self._streams.values())
        standings = [_standing(now_ns, each) for each in holders]
        place = PLACES.choose(_standing(now_ns, stream), standings)
        if place is None:
            raise TurnedAwayError(
                f"limit of {PLACES.limit} peers, of which {PLACES.reserved} are for "
                "those that prove who they are, is reached: try again later"
            )
        if place != FREE:
            other = holders[place]
            self._remove(other)
            other.close(
                TurnedAwayError("the stream brought nothing, and its place went to another")
            )

    def _replace(self, stream: PeerStream) -> None:
        other = self._streams.get(stream.peer)
        if other is None:
            return
        if (
            other.initiator < stream.initiator
            or other.initiator == stream.initiator == self._node_id
        ):
            raise StreamSupersededError("there is a stream of gossip between the two already")
        self._remove(other)
        other.close(StreamSupersededError("another stream takes the place of this"))

    def _remove(self, stream: PeerStream) -> None:
        if self._streams.get(stream.peer) is stream:
            del self._streams[stream.peer]
            self._driver.left(stream)


def _standing(now_ns: int, stream: PeerStream) -> Standing:
    caller, brought_ns = stream.caller, stream.brought_ns
    if caller is None:
        return Standing(trusted=True, useful=True, address="")
    useful = brought_ns is not None and now_ns - brought_ns < USEFUL_NS
    waits_ns = now_ns - (stream.began_ns if brought_ns is None else brought_ns)
    return Standing(caller.trusted, useful, caller.address, waits_ns)


class PeerConnection:
    """A task that keeps a stream with one peer, unless the peer keeps one with this node."""

    def __init__(self, peer: PeerAddress, streams: PeerStreams, environment: Environment) -> None:
        self._peer = peer
        self._streams = streams
        self._environment = environment
        self._logged = ""
        self._is_refused = False
        self._absent_ns = 0

    def observe_absence(self) -> int:
        """Look for the stream, and return when there was first none; 0 while there is one.

        A peer that refuses streams is not absent.
        """
        if self._is_refused or self._streams.has(self._peer):
            self._absent_ns = 0
        else:
            self._absent_ns = self._absent_ns or self._environment.now_ns()
        return self._absent_ns

    async def run(self) -> None:
        """Connect until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            await self._streams.absence(self._peer)
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
            await self._streams.connect(self._peer)
            self._is_refused = False
        except (PeerHasStreamError, StreamSupersededError):
            return 0.0
        except (PeerRefusedError, TurnedAwayError, FrameRejectedError) as error:
            self._is_refused = True
            self._log(str(error))
            return REFUSED_PAUSE_S
        except (PeerFailed, StreamClosedError) as error:
            self._is_refused = False
            self._log(str(error))
            return 0.0
        self._logged = ""
        return 0.0

    def _log(self, sentence: str) -> None:
        """Log why there is no stream, once for each reason."""
        if sentence != self._logged:
            self._logged = sentence
            self._environment.log.warning(
                "gossip_dial_failed", peer=str(self._peer), error=sentence
            )
