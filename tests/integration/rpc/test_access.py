"""Tokens, rights and rates over gRPC, and peers that read without a token."""

from __future__ import annotations

from typing import Final

import grpc

from store.rpc.identity import PeerRules
from storenode.wire.storenode.v1.store_pb2 import (
    PublishResult,
)
from tests.calls.conftest import CLIENTS, access_of
from tests.integration.rpc.harness import (
    ADMIN,
    STORE,
    Metadata,
    Node,
    Rules,
    failure,
    serve,
    within,
)

STORED: Final = PublishResult.STORED
REJECTED: Final = PublishResult.REJECTED
EPHEMERAL: Final = PublishResult.EPHEMERAL


def bearer(name: str) -> Metadata:
    return (("authorization", f"Bearer token-of-{name}"),)


async def get_status(node: Node, metadata: Metadata = ()) -> None:
    await node.unary(ADMIN + "GetStatus", b"", metadata)


async def test_only_the_open_admin_listener_serves_everybody(database_url: str) -> None:
    async with serve(database_url, listener="admin", open_admin=True) as node:
        await get_status(node)
        node.rules.access = access_of(**CLIENTS)
        code, _ = await failure(get_status(node))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        code, _ = await failure(get_status(node, bearer("everything")))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        await get_status(node, bearer("operator"))
    async with serve(database_url, listener="admin") as node:
        code, sentence = await failure(get_status(node))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "token file" in sentence


# Peers

READS = ("Query", "Scan", "GetSdsMessages", "GetCausalHistory", "Follow")
CHANNEL = b"\x0a\x01c"


async def call(node: Node, method: str, metadata: Metadata = ()) -> None:
    """Make a call with a small request, of a stream until its first page."""
    if method in ("Query", "Publish"):
        await node.unary(STORE + method, b"", metadata)
    elif method == "Follow":
        stream = node.channel.unary_stream(STORE + method)(b"", metadata=metadata)
        await within(stream.read())
        stream.cancel()
    elif method == "PublishStream":
        stream = node.channel.stream_stream(STORE + method)(iter([b""]), metadata=metadata)
        await within(stream.read())
    else:
        await node.stream(STORE + method, b"" if method == "Scan" else CHANNEL, metadata)


PEER: Metadata = (
    ("storenode-node-id", "node-b"),
    ("storenode-store-id", "store-b"),
    ("storenode-version", "1.0"),
)


async def test_a_peer_reads_without_a_token_and_learns_who_answers(database_url: str) -> None:
    rules = Rules(access=access_of(**CLIENTS))
    async with serve(database_url, rules=rules, peers=PeerRules()) as node:
        for method in READS:
            await call(node, method, PEER)
        answering = node.channel.unary_unary(STORE + "Query")(b"", metadata=PEER)
        metadata = dict(await answering.initial_metadata())
        assert metadata["storenode-node-id"] == "node-a"
        assert metadata["storenode-store-id"] == "store-a"
        assert metadata["storenode-version"] == "1.2.3"
        for method in ("Publish", "PublishStream"):
            code, _ = await failure(call(node, method, PEER))
            assert code is grpc.StatusCode.UNAUTHENTICATED
        nameless = (*PEER[1:], ("storenode-node-id", "a b"))
        for wrong in (PEER[:2], PEER[:1], nameless, (*PEER, PEER[0])):
            code, sentence = await failure(call(node, "Query", wrong))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, wrong
            assert "storenode-" in sentence
    async with serve(database_url, rules=rules) as without_peers:
        code, _ = await failure(call(without_peers, "Query", PEER))
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_peer_listener_serves_reads_to_peers_only(database_url: str) -> None:
    peers = PeerRules(allowed=frozenset({"node-b"}))
    async with serve(database_url, listener="peer", peers=peers) as node:
        await call(node, "Query", PEER)
        code, _ = await failure(call(node, "Query"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        other = (("storenode-node-id", "node-c"), *PEER[1:])
        code, sentence = await failure(call(node, "Query", other))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "--allow-peer" in sentence
        code, _ = await failure(call(node, "Publish", PEER))
        assert code is grpc.StatusCode.UNIMPLEMENTED
