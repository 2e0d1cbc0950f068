"""Peers that do not keep to the protocol: raw calls, and a server that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from reconcile.ids import END, LOWEST, SyncIds
from reconcile.session import PayloadFrame, ReconcileSession, Result, Role, SessionConfig
from store.domain.ports import PeerAddress
from store.sync.session.exchange import RECONCILE, TRANSFER
from storenode.client.messages import hash_of
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.peers.harness import PeerNode
from tests.integration.rpc.harness import within
from tests.support.reconcile_pair import Node, memory_view

METADATA = (
    ("storenode-node-id", "hostile.example"),
    ("storenode-store-id", "hostile-store"),
    ("storenode-version", "6.6.6"),
)
SESSION_ID = "0123456789abcdef0123456789abcdef"
LARGEST = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def ids_of(messages: Sequence[WakuMessageAndTopic]) -> SyncIds:
    """Return their IDs, in order."""
    return SyncIds.of(sorted((each.message.timestamp, hash_of(each)) for each in messages))


class Honest:
    """An honest side of a reconciliation, over frames as bytes."""

    def __init__(self, role: Role, messages: Sequence[WakuMessageAndTopic]) -> None:
        window = (LOWEST, (END[0], LOWEST[1])) if role is Role.INITIATOR else None
        session = ReconcileSession(role, SessionConfig(cluster=1, shards=(), window=window))
        self._node = Node(session, memory_view(ids_of(messages)), checks=False)

    @property
    def result(self) -> Result | None:
        """The differences; None until the session has ended."""
        return self._node.results[0] if self._node.results else None

    def first(self) -> ReconcileFrame:
        """Return the initiator's first frame."""
        frame = _encoded(self._node.begin())
        assert frame is not None
        return frame

    def answer(self, frame: ReconcileFrame) -> ReconcileFrame | None:
        """Return the answer to a frame; None when there is none."""
        return _encoded(self._node.give(PayloadFrame(frame.ranges_data, refusal=frame.refusal)))


def _encoded(frame: PayloadFrame | None) -> ReconcileFrame | None:
    return None if frame is None else ReconcileFrame(ranges_data=frame.payload, count=frame.count)


@dataclass
class RawCall:
    """A call of a node, frame by frame."""

    call: Any

    async def write(self, frame: bytes | ReconcileFrame | TransferFrame) -> None:
        """Send a frame."""
        data = frame if isinstance(frame, bytes) else frame.SerializeToString()
        await within(self.call.write(data))

    async def read_reconcile(self) -> ReconcileFrame | None:
        """Return the next frame; None at the end."""
        data = await self._read()
        return None if data is None else ReconcileFrame.FromString(data)

    async def read_transfer(self) -> TransferFrame | None:
        """Return the next frame; None at the end."""
        data = await self._read()
        return None if data is None else TransferFrame.FromString(data)

    async def _read(self) -> bytes | None:
        try:
            data = await within(self.call.read())
        except grpc.aio.AioRpcError:
            return None
        return data if isinstance(data, bytes) else None

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """Return how the call ended; what comes until then is passed over."""
        while await self._read() is not None:
            continue
        code = await within(self.call.code())
        return code, await self.call.details() or ""


@dataclass
class RawPeer:
    """Calls a node with metadata of one's choice."""

    channel: Any
    metadata: Sequence[tuple[str, str]] = METADATA

    def begin(self, method: str, metadata: Sequence[tuple[str, str]] | None = None) -> RawCall:
        """Open a call."""
        identity = tuple(self.metadata if metadata is None else metadata)
        return RawCall(self.channel.stream_stream(method)(metadata=identity))

    async def reconcile(self, messages: Sequence[WakuMessageAndTopic]) -> tuple[str, Result]:
        """Reconcile by the book; return the name of the session, and what is found."""
        call, honest = self.begin(RECONCILE), Honest(Role.INITIATOR, messages)
        frame: ReconcileFrame | None = honest.first()
        session_id = ""
        while frame is not None and honest.result is None:
            await call.write(frame)
            answer = await call.read_reconcile()
            assert answer is not None, await call.status()
            session_id = session_id or answer.session_id
            frame = honest.answer(answer)
        if frame is not None:
            await call.write(frame)
        await call.call.done_writing()
        assert (await call.status())[0] is grpc.StatusCode.OK
        assert honest.result is not None
        return session_id, honest.result

    def transfer(self) -> RawCall:
        """Open a transfer."""
        return self.begin(TRANSFER)


@asynccontextmanager
async def raw_peer(node: PeerNode) -> AsyncIterator[RawPeer]:
    """Connect to a node."""
    channel = grpc.aio.insecure_channel(node.listener.address, options=LARGEST)
    yield RawPeer(channel)
    await channel.close(None)


Script = Callable[[Any], Awaitable[None]]


@dataclass
class Scripts:
    """The scripts of a hostile server by call; each is given the servicer's context."""

    reconcile: Script | None = None
    transfer: Script | None = None
    scan: Script | None = None
    metadata: Sequence[tuple[str, str]] = METADATA
    transfer_metadata: Sequence[tuple[str, str]] | None = None
    late: bool = False
    """True if the metadata come with the first answer, the default of servers."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Late:
    """A servicer's context whose metadata go with its first answer."""

    def __init__(self, context: Any, metadata: Sequence[tuple[str, str]]) -> None:  # noqa: ANN401
        self._context = context
        self._metadata: Sequence[tuple[str, str]] | None = metadata
        self.read = context.read

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        if self._metadata is not None:
            await self._context.send_initial_metadata(tuple(self._metadata))
            self._metadata = None
        await self._context.write(frame)


@asynccontextmanager
async def hostile_server(scripts: Scripts) -> AsyncIterator[PeerAddress]:
    """Serve ``Peer`` by scripts; ``ended`` is set when one of them has ended."""

    async def play(
        script: Script | None,
        context: Any,  # noqa: ANN401 - grpc.aio's
        metadata: Sequence[tuple[str, str]],
    ) -> None:
        assert script is not None, "nobody expected this call"
        try:
            if scripts.late:
                context = Late(context, metadata)
            else:
                await context.send_initial_metadata(tuple(metadata))
            await script(context)
        finally:
            scripts.ended.set()

    async def reconcile(_: object, context: Any) -> None:  # noqa: ANN401
        await play(scripts.reconcile, context, scripts.metadata)

    async def transfer(_: object, context: Any) -> None:  # noqa: ANN401
        metadata = scripts.transfer_metadata or scripts.metadata
        await play(scripts.transfer, context, metadata)

    async def scan(_: object, context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        await play(scripts.scan, context, scripts.metadata)

    server = grpc.aio.server(options=LARGEST)
    reads = {"Scan": grpc.unary_stream_rpc_method_handler(scan)}
    handlers = {
        "Reconcile": grpc.stream_stream_rpc_method_handler(reconcile),
        "Transfer": grpc.stream_stream_rpc_method_handler(transfer),
    }
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("storenode.v1.Peer", handlers),
            grpc.method_handlers_generic_handler("storenode.v1.Store", reads),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield PeerAddress("127.0.0.1", port)
    await server.stop(0)


def honest_reconcile(messages: Sequence[WakuMessageAndTopic]) -> Script:
    """Return a responder by the book that claims to hold these messages."""

    async def script(context: Any) -> None:  # noqa: ANN401
        honest, session_id = Honest(Role.RESPONDER, messages), SESSION_ID
        while honest.result is None:
            data = await context.read()
            if not isinstance(data, bytes):
                return
            answer = honest.answer(ReconcileFrame.FromString(data))
            if answer is not None:
                answer.session_id = session_id
                session_id = ""
                await context.write(answer.SerializeToString())

    return script


def frames(*sent: bytes | ReconcileFrame | TransferFrame, read_first: bool = True) -> Script:
    """Read one frame, send these, then wait for the end of the call."""

    async def script(context: Any) -> None:  # noqa: ANN401
        if read_first:
            await context.read()
        for frame in sent:
            data = frame if isinstance(frame, bytes) else frame.SerializeToString()
            await context.write(data)
        while isinstance(await context.read(), bytes):
            continue

    return script
