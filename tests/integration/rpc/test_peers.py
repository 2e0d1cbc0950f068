import grpc

from store.rpc.identity import PeerRules
from tests.calls.conftest import access_of
from tests.integration.rpc.harness import STORE, Metadata, Node, Rules, failure, serve, within

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
