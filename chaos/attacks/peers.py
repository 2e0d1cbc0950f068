"""Peers with invented names: reconciliations, transfers and streams of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc

from reconcile.ids import END, LOWEST, SyncIds
from reconcile.index import IndexView
from reconcile.session import (
    PayloadFrame,
    ReconcileSession,
    Role,
    SessionConfig,
    SessionStep,
    SessionWork,
    advance,
)
from storenode.wire.storenode.v1.peer_pb2 import ReconcileFrame, TransferFrame

PEER: Final = "/storenode.v1.Peer/"
_ANSWER_S: Final = 20.0
_CONFIG: Final = SessionConfig(cluster=1, shards=(), window=(LOWEST, END))


@asynccontextmanager
async def channel_to(address: str) -> AsyncIterator[Any]:
    """Open the connection of one caller."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


def begin(channel: Any, method: str, name: str) -> Any:  # noqa: ANN401 - grpc.aio's
    """Call a method of the peers under a name."""
    metadata = (
        ("storenode-node-id", name),
        ("storenode-store-id", f"store-of-{name}"),
        ("storenode-version", "6.6.6"),
    )
    return channel.stream_stream(PEER + method)(metadata=metadata)


async def answer(call: Any) -> bytes | None:  # noqa: ANN401 - grpc.aio's
    """Return the next frame; None if there is none in time."""
    try:
        data = await asyncio.wait_for(call.read(), _ANSWER_S)
    except (grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
        return None
    return data if isinstance(data, bytes) else None


def opening() -> bytes:
    """Return the first frame of a reconciliation of an empty store."""
    work = ReconcileSession(Role.INITIATOR, _CONFIG).begin()
    frame = _frame(work, IndexView.of(SyncIds.empty()))
    assert frame is not None
    return frame.SerializeToString()


async def reconcile(channel: Any, name: str, ids: SyncIds | None = None) -> str:  # noqa: ANN401
    """Reconcile a store, which is empty by default.

    Returns:
        The ID of the session, or "" if it was refused.
    """
    call, session_id = begin(channel, "Reconcile", name), ""
    session, view = ReconcileSession(Role.INITIATOR, _CONFIG), IndexView.of(ids or SyncIds.empty())
    frame = _frame(session.begin(), view)
    try:
        while frame is not None:
            await call.write(frame.SerializeToString())
            data = await answer(call)
            if data is None:
                break
            came = ReconcileFrame.FromString(data)
            session_id = session_id or came.session_id
            count = came.count if came.HasField("count") else None
            given = PayloadFrame(came.ranges_data, count, came.refusal)
            frame = _frame(session.receive(given), view)
        await call.done_writing()
        code = await asyncio.wait_for(call.code(), _ANSWER_S)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        return ""
    return session_id if code is grpc.StatusCode.OK else ""


def _frame(work: SessionWork, view: IndexView) -> ReconcileFrame | None:
    """Return the frame that a session sends, if any."""
    found = advance(work)
    while not isinstance(found, SessionStep):
        found = advance(work, view.answer(found))
    sent = found.frame
    return None if sent is None else ReconcileFrame(ranges_data=sent.payload, count=sent.count)


async def transfer(channel: Any, name: str, session_id: str) -> bool:  # noqa: ANN401 - grpc.aio's
    """Begin the transfer of a session; return True once the node has sent something."""
    call = begin(channel, "Transfer", name)
    try:
        await call.write(TransferFrame(session_id=session_id).SerializeToString())
        return await answer(call) is not None
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    finally:
        call.cancel()
