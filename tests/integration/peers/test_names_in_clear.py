"""Nodes without TLS that have a token file: metadata alone do not authenticate a peer."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc

from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.peers.test_gossip_hostile import stream
from tests.support.fleet import Fleet
from tests.support.node import NodeProcess

METADATA = (
    ("storenode-node-id", "stranger"),
    ("storenode-store-id", "store-of-stranger"),
    ("storenode-version", "6.6.6"),
)
QUERY = "/storenode.v1.Store/Query"


def token_file(directory: Path) -> str:
    path = directory / "tokens.toml"
    rights = "rights = ['read', 'publish']"
    path.write_text(f"[clients.a]\ntoken_sha256 = '{sha256(b'token').hexdigest()}'\n{rights}\n")
    return str(path)


async def refusal(node: NodeProcess) -> tuple[grpc.StatusCode, str]:
    """Query a node as a caller that names itself in metadata, and return the status and details."""
    async with grpc.aio.insecure_channel(node.listen) as channel:
        request = StoreQueryRequest(include_data=True).SerializeToString()
        try:
            query: Any = channel.unary_unary
            await query(QUERY)(request, metadata=METADATA)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_with_a_token_file_a_name_in_clear_makes_no_peer(
    fleet: Fleet, tmp_path: Path
) -> None:
    tokens = ("--client-token-file", token_file(tmp_path), "--gossip", "on")
    node = fleet.start(*tokens)
    code, sentence = await refusal(node)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "token" in sentence
    async with stream(node.listen, "stranger") as pushing:
        code, sentence = await pushing.ending()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "give both nodes certificates" in sentence
    separate = fleet.start(*tokens, "--peer-listen", "127.0.0.1:0")
    async with stream(separate.peer, "stranger") as pushing:
        assert (await pushing.ending())[0] is grpc.StatusCode.PERMISSION_DENIED
    named = fleet.start(*tokens, "--allow-peer", "stranger")
    assert (await refusal(named))[0] is grpc.StatusCode.OK, "the operator said so"
