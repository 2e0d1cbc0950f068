"""Reconciliation in nwaku's dialect between two stores, each behind a gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import grpc

from store.gateway.identity import kept_identity
from storenode.client.blocking_client import Client
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_NWAKU,
    PublishRequest,
    PublishResult,
)
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD, access_files
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually

TOPIC: Final = "/sync/1/chat/proto"
NETWORK: Final = (*GENEROUS, "--cluster", str(CLUSTER), "--shard", str(SHARD))


def stored(node: NodeProcess) -> list[bytes]:
    with Client([node.listen], token="token-of-writer") as client:
        return sorted(each.payload for each in client.scan())


def backfill(node: NodeProcess, now_ns: int, ages_s: dict[bytes, float]) -> None:
    """Publish old messages, which takes the right."""
    request = PublishRequest(source=PUBLISH_SOURCE_NWAKU)
    for payload, age_s in ages_s.items():
        message = WakuMessage(payload=payload, content_topic=TOPIC)
        message.timestamp = now_ns - round(age_s * 1e9)
        request.messages.add(message=message, pubsub_topic=PUBSUB)
    with grpc.insecure_channel(node.listen) as channel:
        metadata = (("authorization", "Bearer token-of-writer"),)
        response = StoreStub(channel).Publish(request, metadata=metadata)
    assert {each.outcome for each in response.results} == {PublishResult.STORED}


def started(
    stack: ExitStack, folder: Path, new_store: Callable[[], str]
) -> tuple[NodeProcess, Callable[..., GatewayProcess]]:
    """Start a node, and return what starts a gateway in front of it with a client's token."""
    access_files(folder)
    options = ("--client-token-file", str(folder / "clients.toml"))
    node = stack.enter_context(running_node(folder / "node", *options, database_url=new_store()))

    def gateway(client: str, *more: str) -> GatewayProcess:
        token = ("--token-file", str(folder / client))
        return stack.enter_context(running_gateway(folder, node.listen, *NETWORK, *token, *more))

    return node, gateway


def test_two_stores_get_what_either_lacks(tmp_path: Path, new_store: Callable[[], str]) -> None:
    with ExitStack() as stack:
        node_a, gateway_a = started(stack, tmp_path / "a", new_store)
        node_b, gateway_b = started(stack, tmp_path / "b", new_store)
        now_ns = time.time_ns()
        both = {b"both %d" % number: 100.0 + number for number in range(300)}
        # Of the last 20 seconds, and of the oldest part of the range, nothing is compared.
        backfill(node_a, now_ns, both | {b"of a": 1_000, b"": 40, b"new": 1, b"older": 7_000})
        backfill(
            node_b, now_ns, both | {b"of b %d" % number: 150 + number for number in range(200)}
        )
        answering = gateway_b("gateway", "--nwaku-sync-peer", f"/p2p/{identity(tmp_path / 'a')}")
        beginning = gateway_a(
            "gateway",
            *("--nwaku-sync-peer", answering.address("tcp"), "--nwaku-sync-interval", "2s"),
        )
        everything = {*both, *(b"of b %d" % number for number in range(200)), b"of a", b""}
        eventually(lambda: stored(node_b) == sorted(everything))
        eventually(lambda: stored(node_a) == sorted({*everything, b"new", b"older"}))
        done = 'sync_sessions_total{outcome="done",role="%s"}'
        eventually(lambda: beginning.counted(done % "initiator") >= 2)
        assert answering.counted(done % "responder") >= 1
        sent, kept = 'sync_messages_total{outcome="%s"}', "stored"
        assert beginning.counted(sent % "sent") == answering.counted(sent % kept) == 2
        assert answering.counted(sent % "sent") == beginning.counted(sent % kept) == 200
        assert beginning.counted(sent % "missing") == 200
        for gateway in (beginning, answering):
            assert gateway.counted(sent % "rejected") == 0
            assert "Traceback" not in gateway.log.read_text(encoding="utf-8")


def test_peers_that_were_not_named_are_refused(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with ExitStack() as stack:
        node_a, gateway_a = started(stack, tmp_path / "a", new_store)
        node_b, gateway_b = started(stack, tmp_path / "b", new_store)
        backfill(node_a, time.time_ns(), {b"of a": 1_000})
        backfill(node_b, time.time_ns(), {b"of b": 1_000})
        strict = gateway_b("gateway", "--nwaku-sync-peer", "/p2p/16Uiu2HAmSomebodyElse")
        beginning = gateway_a("timid", "--nwaku-sync-peer", strict.address("tcp"))
        refused = 'sync_sessions_total{outcome="refused",role="initiator"}'
        eventually(lambda: refused in beginning.get("/metrics")[1])
        assert strict.counted('refusals_total{reason="identity"}') >= 1
        assert (stored(node_a), stored(node_b)) == ([b"of a"], [b"of b"])


def identity(folder: Path) -> str:
    """Make the key of a gateway before it starts, and return its peer ID."""
    return kept_identity(folder / "gateway.key").peer_id
