from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import grpc
import pytest
import trustme

from store.domain.access import Access, parse_token_file
from store.rpc.context import PeerRules
from tests.integration.rpc.harness import STORE, Metadata, Node, Rules, failure, serve, within

READS = ("Query", "Scan", "GetSdsMessages", "GetCausalHistory", "Follow")
CHANNEL = b"\x0a\x01c"


def token_file() -> Access:
    """One client that no test is."""
    return parse_token_file(
        f"[clients.a]\ntoken_sha256 = '{sha256(b'secret').hexdigest()}'\nrights = ['read']"
    )


async def call(node: Node, method: str, metadata: Metadata = ()) -> None:
    """A small request; for a stream, until its first page."""
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
    rules = Rules(access=token_file())
    async with serve(database_url, rules=rules, peers=PeerRules()) as node:
        for method in READS:
            await call(node, method, PEER)
        answering = node.channel.unary_unary(STORE + "Query")(b"", metadata=PEER)
        told = dict(await answering.initial_metadata())
        assert told["storenode-node-id"] == "node-a"
        assert told["storenode-store-id"] == "store-a"
        assert told["storenode-version"] == "1.2.3"
        for method in ("Publish", "PublishStream"):
            code, _ = await failure(call(node, method, PEER))
            assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_client_listener_without_peers_believes_nobody(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access=token_file())) as node:
        code, _ = await failure(call(node, "Query", PEER))
        assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "metadata",
    [PEER[:2], PEER[:1], (*PEER[1:], ("storenode-node-id", "a b")), (*PEER, PEER[0])],
    ids=["no version", "node ID alone", "malformed", "twice"],
)
async def test_malformed_metadata_of_a_peer(database_url: str, metadata: Metadata) -> None:
    async with serve(database_url, peers=PeerRules()) as node:
        code, sentence = await failure(call(node, "Query", metadata))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
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


class Certificates:
    """One authority, a node's server certificate, and what callers show."""

    def __init__(self) -> None:
        self.authority = trustme.CA()
        self._root = self.authority.cert_pem.bytes()
        self._server = self.authority.issue_cert("node-a")

    def server(self) -> grpc.ServerCredentials:
        """Credentials that demand a client certificate of this authority."""
        return grpc.ssl_server_credentials(
            [
                (
                    self._server.private_key_pem.bytes(),
                    b"".join(blob.bytes() for blob in self._server.cert_chain_pems),
                )
            ],
            root_certificates=self._root,
            require_client_auth=True,
        )

    @asynccontextmanager
    async def caller(
        self, address: str, *names: str, authority: trustme.CA | None = None
    ) -> AsyncIterator[Any]:
        """A channel that shows a certificate with these names, in this order."""
        shown = (authority or self.authority).issue_cert(*names)
        credentials = grpc.ssl_channel_credentials(
            self._root,
            shown.private_key_pem.bytes(),
            b"".join(blob.bytes() for blob in shown.cert_chain_pems),
        )
        options = [("grpc.ssl_target_name_override", "node-a")]
        channel = grpc.aio.secure_channel(address, credentials, options)
        yield channel
        await channel.close(None)


async def test_the_first_dns_name_of_a_certificate_is_the_node_id(database_url: str) -> None:
    certificates = Certificates()
    peers = PeerRules(tls=True, allowed=frozenset({"node-b", "node-c"}))
    async with serve(database_url, listener="peer", peers=peers, tls=certificates.server()) as node:

        async def query(channel: Any, node_id: str) -> None:  # noqa: ANN401 - grpc.aio's
            metadata = (("storenode-node-id", node_id), *PEER[1:])
            await channel.unary_unary(STORE + "Query")(b"", metadata=metadata, timeout=60)

        async with certificates.caller(node.address, "node-b", "node-c") as channel:
            await query(channel, "node-b")
            code, sentence = await failure(query(channel, "node-c"))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "node-b" in sentence
        async with certificates.caller(node.address, "node-d") as channel:
            code, sentence = await failure(query(channel, "node-d"))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "--allow-peer" in sentence
        async with certificates.caller(node.address, "10.0.0.1") as channel:
            code, sentence = await failure(query(channel, "10.0.0.1"))
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "no DNS name" in sentence
        async with certificates.caller(node.address, "node-b", authority=trustme.CA()) as channel:
            code, _ = await failure(query(channel, "node-b"))
            assert code is grpc.StatusCode.UNAVAILABLE
