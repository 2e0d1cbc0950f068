"""Peers with invented names: reconciliations, transfers and streams of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from reconcile.session import Role
from storenode.wire.storenode.v1.peer_pb2 import TransferFrame
from tests.integration.peers.hostile import Honest, RawPeer

PEER: Final = "/storenode.v1.Peer/"
_ANSWER_S: Final = 20.0
_ENDED: Final = (AssertionError, asyncio.InvalidStateError, TimeoutError, grpc.aio.AioRpcError)
"""Errors of calls that a node has ended."""


def peer_named(channel: Any, name: str) -> RawPeer:  # noqa: ANN401 - grpc.aio's
    """Return a peer that calls itself by a name."""
    metadata = (
        ("storenode-node-id", name),
        ("storenode-store-id", f"store-of-{name}"),
        ("storenode-version", "6.6.6"),
    )
    return RawPeer(channel, metadata)


def begin_gossip(channel: Any, name: str) -> Any:  # noqa: ANN401 - grpc.aio's
    """Open a stream of gossip under a name."""
    return peer_named(channel, name).begin(f"{PEER}Gossip").call


async def answer(call: Any) -> bytes | None:  # noqa: ANN401 - grpc.aio's
    """Return the next frame; None if there is none in time."""
    try:
        data = await asyncio.wait_for(call.read(), _ANSWER_S)
    except (grpc.aio.AioRpcError, TimeoutError, asyncio.CancelledError):
        return None
    return data if isinstance(data, bytes) else None


def opening() -> bytes:
    """Return the first frame of a reconciliation of an empty store."""
    return Honest(Role.INITIATOR, ()).first().SerializeToString()


async def reconcile(channel: Any, name: str) -> str:  # noqa: ANN401 - grpc.aio's
    """Reconcile an empty store; return the ID of the session, or "" if it was refused."""
    try:
        session_id, _ = await peer_named(channel, name).reconcile(())
    except _ENDED:
        return ""
    return session_id


async def transfer(channel: Any, name: str, session_id: str) -> bool:  # noqa: ANN401 - grpc.aio's
    """Begin the transfer of a session; return True once the node has sent something."""
    call = peer_named(channel, name).transfer()
    try:
        await call.write(TransferFrame(session_id=session_id))
        return await answer(call.call) is not None
    except _ENDED:
        return False
    finally:
        call.call.cancel()
