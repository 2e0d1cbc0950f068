"""Connections to peers: names, rights, certificates, and failures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from chaos.ports import ReservedPort
from store.domain.ports import PeerAddress
from store.rpc.identity import PeerRules
from store.serving.tls import TlsFiles
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.peers.harness import PeerNode, items, peer_node
from tests.integration.peers.test_gossip_hostile import stream
from tests.support.credentials import Pki, token_file
from tests.support.fleet import Fleet
from tests.support.node import NodeProcess


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def files(pki: Pki, *names: str, authority: trustme.CA | None = None) -> TlsFiles:
    """Return files of a certificate with these names that trust this authority."""
    return TlsFiles(*pki.issue(*names, file=names[0], authority=authority), pki.ca)


@pytest.fixture
async def callee(new_database: Callable[[], str], pki: Pki) -> AsyncIterator[PeerNode]:
    """Serve a node with a certificate for b.example and 127.0.0.1 that lets a.example in."""
    rules = PeerRules(tls=True, allowed=frozenset({"a.example"}))
    shown = files(pki, "b.example", "127.0.0.1")
    async with peer_node("b.example", new_database(), peers=rules, tls=shown) as node:
        await node.hold(items(range(5)))
        yield node


@asynccontextmanager
async def caller(
    new_database: Callable[[], str], files: TlsFiles | None, name: str = "a.example"
) -> AsyncIterator[PeerNode]:
    """Serve a node that shows a certificate."""
    rules = PeerRules(tls=files is not None)
    async with peer_node(name, new_database(), peers=rules, tls=files) as node:
        yield node


def named(callee: PeerNode) -> PeerAddress:
    """Return the address of a node with its ID."""
    return replace(callee.address, node_id="b.example")


async def test_nodes_that_know_each_other_synchronize(
    new_database: Callable[[], str], pki: Pki, callee: PeerNode
) -> None:
    async with caller(new_database, files(pki, "a.example")) as node:
        peer = named(callee)
        outcome = await node.call(peer)
        assert outcome.error == ""
        assert outcome.in_sync
        assert node.caller.node_id(peer) == "b.example"
        assert await node.hashes() == await callee.hashes()


STRANGER = "of another authority"
WRONG: list[tuple[str | None, str, str, tuple[str, ...]]] = [
    ("c.example", "c.example", "b.example", ("--allow-peer", "PERMISSION_DENIED")),
    ("c.example", "a.example", "b.example", ("does not name c.example",)),
    (STRANGER, "a.example", "b.example", ()),
    (None, "a.example", "b.example", ("could not be reached",)),
    ("a.example", "a.example", "c.example", ("could not be reached", "Hostname Verification")),
    # It would pass for any node else: the certificate was verified for the host alone.
    ("a.example", "a.example", "", ("is b.example instead of 127.0.0.1",)),
]
"""The certificate and the name of a caller, the name of its callee, and the error."""


async def test_callers_and_callees_with_other_names_or_certificates_are_refused(
    new_database: Callable[[], str], pki: Pki, callee: PeerNode
) -> None:
    for shown, name, node_id, words in WRONG:
        authority = trustme.CA() if shown == STRANGER else None
        own = "a.example" if shown == STRANGER else shown
        identity = None if own is None else files(pki, own, authority=authority)
        async with caller(new_database, identity, name) as node:
            outcome = await node.call(replace(callee.address, node_id=node_id))
        assert (bool(outcome.error), outcome.in_sync) == (True, False), (shown, name)
        assert all(word in outcome.error for word in words), outcome.error
        assert shown != STRANGER or "PERMISSION_DENIED" not in outcome.error
        assert callee.observer.sessions == [] or node_id != "b.example"


async def test_a_renewed_certificate_is_shown_without_a_restart(
    new_database: Callable[[], str], pki: Pki, callee: PeerNode
) -> None:
    async with caller(new_database, files(pki, "a.example", authority=trustme.CA())) as node:
        assert (await node.call(named(callee))).error
        files(pki, "a.example")
        while (await node.call(named(callee))).error:
            pass  # for a second at most
        (pki.directory / "a.example.pem").write_text("damaged")
        assert (await node.call(named(callee))).in_sync


async def test_no_call_in_clear_goes_beyond_loopback(first: PeerNode) -> None:
    outcome = await first.call(PeerAddress("192.0.2.1", 7420))
    assert "--insecure peer" in outcome.error
    outcome = await first.call(PeerAddress("node.invalid", 7420))
    assert "--insecure peer" in outcome.error


async def test_a_peer_that_comes_back_is_reached_at_once(
    new_database: Callable[[], str], first: PeerNode
) -> None:
    # The pauses between gRPC's own attempts are not waited for.
    url, port = new_database(), ReservedPort()
    async with peer_node("b.example", url, port=port.number) as node:
        address = node.address
        assert (await first.call(address)).in_sync
        assert first.caller.connected(address)
    assert "could not be reached" in (await first.call(address)).error
    async with peer_node("b.example", url, port=port.number):
        assert (await first.call(address)).in_sync
    await first.caller.close()
    assert "shutting down" in (await first.call(address)).error


METADATA = (
    ("storenode-node-id", "stranger"),
    ("storenode-store-id", "store-of-stranger"),
    ("storenode-version", "6.6.6"),
)
QUERY = "/storenode.v1.Store/Query"


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
    path = tmp_path / "tokens.toml"
    path.write_text(token_file({"a": "rights = ['read', 'publish']"}))
    tokens = ("--client-token-file", str(path), "--gossip", "on")
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
