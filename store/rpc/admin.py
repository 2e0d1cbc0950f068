"""``storenode.v1.Admin``: what operators ask."""

from __future__ import annotations

from store.rpc.call import Call
from store.rpc.decode import decode
from wire.storenode.v1 import admin_pb2


async def get_status(call: Call, request: bytes) -> bytes:
    """Answer ``GetStatus``; a node that is not ready says so instead of failing."""
    decode(admin_pb2.GetStatusRequest, request)
    identity, state = call.node.identity, await call.node.state()
    return admin_pb2.NodeStatus(
        version=identity.version,
        node_id=identity.node_id,
        ready=state.ready,
        messages=state.messages,
        oldest_timestamp=state.oldest_timestamp_ns,
        newest_timestamp=state.newest_timestamp_ns,
        index_entries=state.index_entries,
    ).SerializeToString()
