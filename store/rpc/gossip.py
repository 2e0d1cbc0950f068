"""Gossip over gRPC: frames for `store.gossip.driver`, and translation of how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import grpc

from store.domain.admission import Admission
from store.domain.ports import FrameStream, PeerAddress
from store.gossip.driver.ports import GossipConnection
from store.gossip.driver.streams import (
    DriverFailedError,
    FrameRejectedError,
    NodeStoppingError,
    PeerHasStreamError,
    PeerRefusedError,
    PeerStalledError,
    PeerStreams,
    StreamClosedError,
    StreamSupersededError,
    TurnedAwayError,
)
from store.gossip.events import FrameIn, FrameOut
from store.rpc.call import RpcCall
from store.rpc.connector import Callee, PeerCall, PeerCallError, PeerConnector
from store.rpc.gossip_frames import decode_gossip, encode_gossip
from store.rpc.identity import CLUSTER
from store.rpc.limits import GREETING_GRACE_S, GREETING_PAUSE_S
from store.rpc.peer import CallerStream, calling_peer
from store.serving.failure import CallError, Code
from storenode.wire.storenode.v1 import peer_pb2

GOSSIP: Final = f"/{peer_pb2.DESCRIPTOR.services_by_name['Peer'].full_name}/Gossip"

_CODES: Final[dict[type[Exception], Code]] = {
    TurnedAwayError: Code.RESOURCE_EXHAUSTED,
    StreamSupersededError: Code.ABORTED,
    DriverFailedError: Code.INTERNAL,
    NodeStoppingError: Code.UNAVAILABLE,
    PeerStalledError: Code.DEADLINE_EXCEEDED,
}
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
    }
)


class _UnreadableFrameError(FrameRejectedError):
    """A frame that `decode_gossip` has refused."""

    def __init__(self, failure: CallError) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


class GossipFrames:
    """A call of ``Gossip`` as a `store.gossip.driver.ports.GossipStream`."""

    def __init__(self, stream: FrameStream, admission: Callable[[], Admission]) -> None:
        self._stream = stream
        self._admission = admission

    async def read(self) -> FrameIn | None:
        """Return the next frame, its messages judged; None after the last."""
        with _peer_failures():
            data = await self._stream.read()
        if data is None:
            return None
        try:
            return await decode_gossip(data, self._admission())
        except CallError as failure:
            raise _UnreadableFrameError(failure) from None

    async def write(self, frame: FrameOut) -> None:
        """Send a frame."""
        with _peer_failures():
            await self._stream.write(encode_gossip(frame))


class GossipTransport:
    """The transport of gossip streams: `store.gossip.driver.ports.GossipConnector`.

    ``admission`` judges the messages of one frame.
    """

    def __init__(self, connector: PeerConnector, admission: Callable[[], Admission]) -> None:
        self._connector = connector
        self._admission = admission

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that a peer gave when it last answered, or the configured one."""
        return self._connector.node_id(peer)

    @asynccontextmanager
    async def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[FrameOut]]
    ) -> AsyncIterator[GossipConnection]:
        """Call ``Gossip`` of a peer."""
        identify = partial(_introduced, greeting=greeting)
        with _peer_failures():
            async with self._connector.converse(peer, GOSSIP, identify) as (call, callee):
                frames = self.frames(call)
                yield GossipConnection(frames, callee.node_id, callee.store_id)

    def frames(self, stream: FrameStream) -> GossipFrames:
        """Return the frames of a call with a peer."""
        return GossipFrames(stream, self._admission)


class GossipService:
    """The handler of ``Gossip``; ``streams`` None: gossip is switched off."""

    def __init__(self, gossip: tuple[PeerStreams, GossipTransport] | None) -> None:
        self._gossip = gossip

    async def gossip(self, call: RpcCall) -> None:
        """Serve ``Gossip``."""
        if self._gossip is None:
            raise CallError(
                Code.FAILED_PRECONDITION,
                "this node exchanges nothing live: start it with --gossip on",
            )
        streams, transport = self._gossip
        theirs, own = call.fields.get(CLUSTER), call.node.identity.cluster
        if theirs is not None and own is not None and theirs != str(own):
            raise CallError(
                Code.FAILED_PRECONDITION,
                f"this node is of cluster {own} and the caller of another: give both one --cluster",
            )
        caller = calling_peer(call)
        frames = transport.frames(CallerStream(call))
        try:
            await streams.serve(frames, caller)
        except _UnreadableFrameError as error:
            raise error.failure from None
        except (StreamClosedError, PeerStalledError) as error:
            raise CallError(_CODES[type(error)], str(error)) from None


async def _introduced(call: PeerCall, greeting: Callable[[], Awaitable[FrameOut]]) -> Callee:
    """Identify the callee; one that names itself with its first answer is sent a greeting."""
    naming, sent, pause_s = asyncio.ensure_future(call.identify()), b"", GREETING_GRACE_S
    try:
        while not (await asyncio.wait({naming}, timeout=pause_s))[0]:
            pause_s = GREETING_PAUSE_S
            frame = encode_gossip(await greeting())
            if frame != sent:
                await call.write(frame)
                sent = frame
        return await naming
    finally:
        naming.cancel()


@contextmanager
def _peer_failures() -> Iterator[None]:
    """Translate the status that a peer ended a call with."""
    try:
        yield
    except PeerCallError as error:
        if error.code is grpc.StatusCode.ABORTED:
            raise PeerHasStreamError(str(error)) from error
        if error.code in _REFUSALS:
            raise PeerRefusedError(str(error)) from error
        raise
