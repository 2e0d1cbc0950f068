"""Tokens on the admin listener, and peers that read without a token."""

from __future__ import annotations

from typing import Final

import pytest

from store.rpc.identity import PeerRules
from tests.calls.conftest import CLIENTS, access_of
from tests.calls.test_refusals import REQUESTS
from tests.calls.transports import Grpc, RefusedError
from tests.integration.rpc.harness import ADMIN, Metadata, Node, Rules, failure, serve


async def test_only_the_open_admin_listener_serves_everybody(database_url: str) -> None:
    async def get_status(metadata: Metadata = ()) -> None:
        await node.unary(ADMIN + "GetStatus", b"", metadata)

    def bearer(name: str) -> Metadata:
        return (("authorization", f"Bearer token-of-{name}"),)

    async with serve(database_url, listener="admin", open_admin=True) as node:
        await get_status()
        node.rules.access = access_of(**CLIENTS)
        code, _ = await failure(get_status())
        assert code.name == "UNAUTHENTICATED"
        code, _ = await failure(get_status(bearer("everything")))
        assert code.name == "PERMISSION_DENIED"
        await get_status(bearer("operator"))
    async with serve(database_url, listener="admin") as node:
        code, sentence = await failure(get_status())
        assert code.name == "PERMISSION_DENIED"
        assert "token file" in sentence


# Peers

READS: Final = ("Query", "Scan", "GetSdsMessages", "GetCausalHistory", "Follow")
PEER: Final[Metadata] = (
    ("storenode-node-id", "node-b"),
    ("storenode-store-id", "store-b"),
    ("storenode-version", "1.0"),
)


class Peer(Grpc):
    """A peer in clear, which names itself by metadata."""

    sent: Metadata = PEER

    @property
    def authorization(self) -> list[tuple[str, str]]:
        """The metadata of a call."""
        return list(self.sent)


async def call(node: Node, method: str, metadata: Metadata = PEER) -> None:
    """Make a call with a small request, of a follower until it is live."""
    peer = Peer(node.address, "")
    peer.sent = metadata
    await peer.call(method, REQUESTS[method])


async def refusal(node: Node, method: str, metadata: Metadata = PEER) -> RefusedError:
    """Return the error of a call."""
    with pytest.raises(RefusedError) as refused:
        await call(node, method, metadata)
    return refused.value


async def test_a_peer_reads_without_a_token_and_learns_who_answers(database_url: str) -> None:
    rules = Rules(access=access_of(**CLIENTS))
    async with serve(database_url, rules=rules, peers=PeerRules()) as node:
        for method in READS:
            await call(node, method)
        answering = node.channel.unary_unary("/storenode.v1.Store/Query")(b"", metadata=PEER)
        metadata = dict(await answering.initial_metadata())
        assert metadata["storenode-node-id"] == "node-a"
        assert metadata["storenode-store-id"] == "store-a"
        assert metadata["storenode-version"] == "1.2.3"
        for method in ("Publish", "PublishStream"):
            assert (await refusal(node, method)).code == "UNAUTHENTICATED"
        nameless = (*PEER[1:], ("storenode-node-id", "a b"))
        for wrong in (PEER[:2], PEER[:1], nameless, (*PEER, PEER[0])):
            refused = await refusal(node, "Query", wrong)
            assert refused.code == "INVALID_ARGUMENT", wrong
            assert "storenode-" in refused.sentence
    async with serve(database_url, rules=rules) as without_peers:
        assert (await refusal(without_peers, "Query")).code == "UNAUTHENTICATED"


async def test_a_peer_listener_serves_reads_to_peers_only(database_url: str) -> None:
    peers = PeerRules(allowed=frozenset({"node-b"}))
    async with serve(database_url, listener="peer", peers=peers) as node:
        await call(node, "Query")
        assert (await refusal(node, "Query", ())).code == "INVALID_ARGUMENT"
        other = (("storenode-node-id", "node-c"), *PEER[1:])
        refused = await refusal(node, "Query", other)
        assert refused.code == "PERMISSION_DENIED"
        assert "--allow-peer" in refused.sentence
        assert (await refusal(node, "Publish")).code == "UNIMPLEMENTED"
