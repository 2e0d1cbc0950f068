"""Tokens, rights and rates over gRPC, and peers that read without a token."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

import grpc

from store.rpc.identity import PeerRules
from storenode.message.rules import Policy
from storenode.message.varint import varint
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_NWAKU,
    PUBLISH_SOURCE_RELAY,
    PUBLISH_SOURCE_UNSPECIFIED,
    PublishRequest,
    PublishResponse,
    PublishResult,
)
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.calls.conftest import access_of
from tests.integration.rpc.harness import (
    ADMIN,
    STORE,
    Metadata,
    Node,
    Rules,
    failure,
    item,
    serve,
    within,
)

STORED: Final = PublishResult.STORED
REJECTED: Final = PublishResult.REJECTED
EPHEMERAL: Final = PublishResult.EPHEMERAL


CLIENTS: Final = {
    "reader": 'rights = ["read"]',
    "publisher": 'rights = ["publish"]',
    "slow": 'rights = ["publish"]\nlimits = { messages_per_second = 10 }',
    "operator": 'rights = ["admin"]',
    "backfiller": 'rights = ["publish", "backfill"]',
    "everything": 'rights = ["read", "publish", "follow"]',
}


def at_one_moment() -> int:
    """Return a clock that stands, so that no second passes in which more may come."""
    return 0


def bearer(name: str) -> Metadata:
    return (("authorization", f"Bearer token-of-{name}"),)


async def test_old_messages_take_the_right_to_backfill(database_url: str) -> None:
    rules = Rules(policy=Policy(max_drift_ns=20 * 10**9), access=access_of(**CLIENTS))
    async with serve(database_url, rules=rules) as node:
        for number, (name, source, outcomes, counted_as) in enumerate(
            (
                ("publisher", PUBLISH_SOURCE_NWAKU, (REJECTED, STORED, EPHEMERAL), "client"),
                ("backfiller", PUBLISH_SOURCE_UNSPECIFIED, (REJECTED, STORED, EPHEMERAL), "client"),
                ("backfiller", PUBLISH_SOURCE_RELAY, (STORED, STORED, EPHEMERAL), "relay"),
                ("backfiller", PUBLISH_SOURCE_NWAKU, (STORED, STORED, REJECTED), "nwaku"),
                ("backfiller", 77, (REJECTED, STORED, EPHEMERAL), "client"),
            )
        ):
            old_ns, payload = time.time_ns() - 3600 * 10**9, b"%d" % number
            messages = [item(payload, timestamp=old_ns), item(payload), item(ephemeral=True)]
            request = PublishRequest(messages=messages)
            request.MergeFromString(varint(4 << 3) + varint(source))
            before = node.count("storenode_messages_stored_total", source=counted_as)
            answer = await node.unary(STORE + "Publish", request.SerializeToString(), bearer(name))
            results = PublishResponse.FromString(answer).results
            assert tuple(each.outcome for each in results) == outcomes, (name, source)
            stored = node.count("storenode_messages_stored_total", source=counted_as) - before
            assert stored == outcomes.count(STORED)


async def test_a_rate_ends_a_stream_after_the_answers_before_it(database_url: str) -> None:
    access = access_of(**CLIENTS)
    async with serve(database_url, rules=Rules(access, monotonic_ns=at_one_moment)) as node:
        request = PublishRequest(messages=[item()] * 6).SerializeToString()
        stream = node.channel.stream_stream(STORE + "PublishStream")(
            iter([request, request]), metadata=bearer("slow")
        )
        assert len(PublishResponse.FromString(await within(stream.read())).results) == 6
        code, sentence = await failure(stream.read())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "messages per second" in sentence


async def test_a_revoked_token_ends_a_stream_of_batches(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access_of(**CLIENTS))) as node:
        stream = node.channel.stream_stream(STORE + "PublishStream")(metadata=bearer("everything"))

        async def publish_on(message: WakuMessageAndTopic) -> None:
            with suppress(asyncio.InvalidStateError):  # its end is read below
                await within(stream.write(PublishRequest(messages=[message]).SerializeToString()))
            assert PublishResponse.FromString(await within(stream.read())).results

        await publish_on(item(b"before"))
        node.rules.access = access_of(publisher=CLIENTS["publisher"])
        code, _ = await failure(publish_on(item(b"too late")))
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_of_batches_needs_the_right_to_publish(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access=access_of(**CLIENTS))) as node:

        async def stream(*metadata: tuple[str, str]) -> None:
            call = node.channel.stream_stream(STORE + "PublishStream")(iter(()), metadata=metadata)
            await within(call.read())
            await within(call.code())

        await stream(*bearer("publisher"))
        for metadata, expected in (
            (bearer("reader"), grpc.StatusCode.PERMISSION_DENIED),
            ((), grpc.StatusCode.UNAUTHENTICATED),
            ([("authorization", "Basic eA==")], grpc.StatusCode.UNAUTHENTICATED),
            ((*bearer("publisher"), *bearer("publisher")), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            code, _ = await failure(stream(*metadata))
            assert code is expected
        node.rules.unready = "starting"
        code, _ = await failure(stream(*bearer("publisher")))
        assert code is grpc.StatusCode.UNAVAILABLE


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
    rules = Rules(access=access_of(a='rights = ["read"]'))
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


async def test_a_client_listener_without_peers_accepts_no_name(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access=access_of(a='rights = ["read"]'))) as node:
        code, _ = await failure(call(node, "Query", PEER))
        assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_malformed_metadata_of_a_peer(database_url: str) -> None:
    no_version, node_id_alone, twice = PEER[:2], PEER[:1], (*PEER, PEER[0])
    malformed = (*PEER[1:], ("storenode-node-id", "a b"))
    async with serve(database_url, peers=PeerRules()) as node:
        for metadata in (no_version, node_id_alone, malformed, twice):
            code, sentence = await failure(call(node, "Query", metadata))
            assert code is grpc.StatusCode.INVALID_ARGUMENT, metadata
            assert "storenode-" in sentence


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
