"""Gossip over gRPC: frames for `store.gossip.driver`, and translation of how streams end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from store.domain.admission import Admission
from store.domain.ports import PeerAddress
from store.gossip.driver.ports import GossipConnection
from store.gossip.driver.streams import FrameRejectedError, PeerHasStreamError, PeerRefusedError
from store.gossip.events import Bodies, FrameIn, listed
from store.messages.fields import chunk_messages
from store.rpc.call import RpcCall
from store.rpc.identity import CLUSTER
from store.rpc.peer_calls import PeerCall, PeerCallError, PeerConnector
from store.serving.context import NodeIdentity
from store.serving.failure import CallError, Code, malformed, over_limit
from store.sync.peers import FrameStream
from storenode.message.limits import CONTENT_DIGEST_BYTES, HASH_BYTES
from storenode.message.rules import MALFORMED
from storenode.wire.storenode.internal.v1.gossip_raw_pb2 import RawGossipFrame
from storenode.wire.storenode.v1 import peer_pb2

GREETING_GRACE_S: Final = 0.25
GREETING_PAUSE_S: Final = 2.0
"""The silence of a callee of ``Gossip`` after which it is sent something to answer, repeatedly."""

GOSSIP: Final = f"/{peer_pb2.DESCRIPTOR.services_by_name['Peer'].full_name}/Gossip"

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


class _UnreadableFrameError(FrameRejectedError, CallError):
    """A frame that `decode_gossip` has refused."""

    def __init__(self, failure: CallError) -> None:
        CallError.__init__(self, failure.code, failure.sentence)


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

    async def write(self, frame: RawGossipFrame) -> None:
        """Send a frame."""
        with _peer_failures():
            await self._stream.write(frame.SerializeToString())


class GossipTransport:
    """The transport of gossip streams: `store.gossip.driver.ports.GossipConnector`.

    ``admission`` judges the messages of one frame.
    """

    def __init__(self, connector: PeerConnector, admission: Callable[[], Admission]) -> None:
        self._connector = connector
        self.admission = admission

    def node_id(self, peer: PeerAddress) -> str:
        """Return the ID that a peer gave when it last answered, or the configured one."""
        return self._connector.node_id(peer)

    @asynccontextmanager
    async def connect(
        self, peer: PeerAddress, greeting: Callable[[], Awaitable[RawGossipFrame]]
    ) -> AsyncIterator[GossipConnection]:
        """Call ``Gossip`` of a peer."""
        with _peer_failures():
            async with self._connector.call(peer, GOSSIP, patience_s=None) as call:
                callee = await _introduced(call, greeting)
                frames = GossipFrames(call, self.admission)
                yield GossipConnection(frames, callee.node_id, callee.store_id)


async def serve_gossip(call: RpcCall) -> None:
    """Exchange messages live with the peer that calls, until one side ends it."""
    caller = await call.begin_peer()
    if call.node.gossip is None:
        sentence = "this node exchanges nothing live: start it with --gossip on"
        raise CallError(Code.FAILED_PRECONDITION, sentence)
    driver, transport = call.node.gossip
    theirs, own = call.fields.get(CLUSTER), call.node.identity.cluster
    if theirs is not None and own is not None and theirs != str(own):
        raise CallError(
            Code.FAILED_PRECONDITION,
            f"this node is of cluster {own} and the caller of another: give both one --cluster",
        )
    await driver.serve(GossipFrames(call, transport.admission), caller)


async def _introduced(
    call: PeerCall, greeting: Callable[[], Awaitable[RawGossipFrame]]
) -> NodeIdentity:
    """Identify the callee; one that names itself with its first answer is sent a greeting."""
    naming, sent, pause_s = asyncio.ensure_future(call.identify()), b"", GREETING_GRACE_S
    try:
        while not (await asyncio.wait({naming}, timeout=pause_s))[0]:
            pause_s = GREETING_PAUSE_S
            frame = (await greeting()).SerializeToString()
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


MAX_GOSSIP_FRAME_BYTES: Final = 4 * 1024 * 1024
"""A ``GossipFrame``; a larger one ends the stream. What is in one: ``store.gossip.limits``."""

MAX_GOSSIP_ENTRIES: Final = 8_192
"""Messages or IDs in a ``GossipFrame``."""

_NO_FRAME: Final = "the frame is no GossipFrame: encode it as the schema says"


async def decode_gossip(frame: bytes, admission: Admission) -> FrameIn:
    """Read a frame; messages are judged, and others have a turn now and then.

    Raises:
        CallError: INVALID_ARGUMENT, it is none; RESOURCE_EXHAUSTED, it passes a limit.
    """
    if len(frame) > MAX_GOSSIP_FRAME_BYTES:
        raise over_limit(
            f"the frame has {len(frame):,} bytes: send {MAX_GOSSIP_FRAME_BYTES:,} at most"
        )
    try:
        raw = RawGossipFrame.FromString(frame)
    except DecodeError:
        raise malformed(_NO_FRAME) from None
    if raw.HasField("events"):
        return await _bodies(raw.events.messages, len(frame), admission)
    if raw.WhichOneof("kind") is None:
        raise malformed("the frame holds nothing that this version knows: send one of its kind")
    _check_ids(listed(raw))
    return raw


def _check_ids(inventory: peer_pb2.Inventory) -> None:
    ids, digests = inventory.ids, inventory.content_digests
    _check_count(len(ids))
    if set(map(len, ids)) - {HASH_BYTES}:
        raise malformed(f"an ID of the frame has not {HASH_BYTES} bytes: send message hashes")
    if digests and len(digests) != len(ids):
        raise malformed(
            f"the frame has {len(ids):,} IDs and {len(digests):,} content digests: send one for"
            " each ID, or none"
        )
    if set(map(len, digests)) - {0, CONTENT_DIGEST_BYTES}:
        raise malformed(
            f"a content digest of the frame has not {CONTENT_DIGEST_BYTES} bytes: send the first"
            " ones of the digest, or nothing for a message whose digest is not known"
        )
    if inventory.HasField("rest_xor") and len(inventory.rest_xor) != HASH_BYTES:
        raise malformed(f"rest_xor has {len(inventory.rest_xor)} bytes: send {HASH_BYTES}")


def _check_count(count: int) -> None:
    if count > MAX_GOSSIP_ENTRIES:
        raise over_limit(f"the frame has {count:,} entries: send {MAX_GOSSIP_ENTRIES:,} at most")


async def _bodies(messages: Sequence[bytes], size_bytes: int, admission: Admission) -> Bodies:
    """Judge the messages of a frame, which is malformed if none of them is a message."""
    count = len(messages)
    _check_count(count)
    step = chunk_messages(count, size_bytes)
    for start in range(0, count, step):
        if start:
            await asyncio.sleep(0)
        admission.admit(messages[start : start + step])
    published = admission.admitted
    if count and list(published.refusals.values()) == [MALFORMED] * count:
        raise malformed(_NO_FRAME)
    refused = [
        (published.hashes[index], refusal.label) for index, refusal in published.refusals.items()
    ]
    return Bodies(published.batch, refused, size_bytes)
