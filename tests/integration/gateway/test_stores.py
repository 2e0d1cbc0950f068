"""Stores behind gateways: relay between them, and reconciliation in nwaku's dialect."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest

from store.gateway.noise import kept_identity
from store.gateway.services import LIGHT_PUSH
from store.gateway.wire import delimited
from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_NWAKU,
    PublishRequest,
    PublishResult,
)
from storenode.wire.storenode.v1.store_pb2_grpc import StoreStub
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.gateway.messages import NETWORK, PUBSUB, RIGHTS
from tests.support.credentials import write_tokens
from tests.support.gateway import GatewayProcess, running_gateway
from tests.support.node import NodeProcess
from tests.support.polling import eventually
from tests.support.waku_client import WakuClient, push_request

TOPIC: Final = "/relay/1/chat/proto"
ROUTER: Final = ("--relay", "router")


@dataclass
class World:
    """Starts nodes and gateways, which end with the test."""

    stack: ExitStack
    folder: Path
    new_store: Callable[[], str]

    def node(self, name: str, *options: str) -> NodeProcess:
        """Start a node with a store and a token file of its own."""
        write_tokens(self.folder / name, RIGHTS)
        tokens = ("--client-token-file", str(self.folder / name / "clients.toml"))
        node = NodeProcess(self.folder / name / "node", (*tokens, *options), self.new_store())
        self.stack.callback(node.close)
        return node.start()

    def gateway(
        self, name: str, node: NodeProcess, *options: str, client: str = "gateway"
    ) -> GatewayProcess:
        """Start a gateway in front of a node, as one of the node's clients."""
        token = node.data_dir.with_name(f"{client}.token")
        options = (*NETWORK, "--token-file", str(token), *options)
        return self.stack.enter_context(running_gateway(self.folder / name, node.listen, *options))


@pytest.fixture
def world(tmp_path: Path, new_store: Callable[[], str]) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, tmp_path, new_store)


def writer_of(node: NodeProcess) -> Client:
    return Client([node.listen], token="token-of-writer")


def stored(node: NodeProcess) -> list[bytes]:
    with writer_of(node) as client:
        return sorted(each.payload for each in client.scan())


def publish(node: NodeProcess, payload: bytes, pubsub: str = PUBSUB) -> None:
    with writer_of(node) as client:
        client.publish(Message(payload, TOPIC, pubsub))


async def test_messages_reach_each_store_of_the_network_once_and_a_leaf_accepts_no_strangers(
    world: World,
) -> None:
    node_a, node_b, leaf = (world.node(name) for name in "abd")
    gateway_a = world.gateway("a", node_a, *ROUTER)
    to_a = ("--relay-peer", gateway_a.address("tcp"))
    gateway_b = world.gateway("b", node_b, *ROUTER, *to_a)
    gateway_d = world.gateway("d", leaf, "--relay", "leaf", *to_a)
    # A second gateway at the same store sends nothing twice. The leaf does not know it.
    gateway_c = world.gateway("c", node_b, *ROUTER, *to_a, "--relay-peer", gateway_d.address("tcp"))
    eventually(lambda: gateway_a.counted("relay_peers") == 3)
    eventually(lambda: gateway_b.counted("relay_peers") == gateway_d.counted("relay_peers") == 1)
    eventually(lambda: gateway_d.counted('refusals_total{reason="identity"}') >= 1)

    expected = [b"from a", b"from b", b"now", *(b"%d" % number for number in range(20))]
    publish(node_a, b"from a")
    publish(node_b, b"from b")
    publish(node_b, b"old", "/waku/2/rs/9/9")
    async with WakuClient.connected(gateway_b.address("tcp")) as client:
        for payload in expected[2:]:
            message = WakuMessage(payload=payload, content_topic=TOPIC, timestamp=time.time_ns())
            message.ephemeral = payload == b"now"
            request = push_request(message.SerializeToString(), PUBSUB)
            await client.ask(LIGHT_PUSH, delimited(request))
    expected.remove(b"now")
    eventually(lambda: stored(node_a) == stored(leaf) == sorted(expected))
    eventually(lambda: stored(node_b) == sorted([*expected, b"old"]))
    received = 'relay_messages_total{outcome="received"}'
    eventually(lambda: gateway_a.counted(received) == 22)
    eventually(lambda: gateway_d.counted(received) == 23)
    for gateway in (gateway_a, gateway_b, gateway_c, gateway_d):
        assert gateway.counted('relay_messages_total{outcome="invalid"}') == 0
    for gateway in (gateway_a, gateway_b, gateway_d):
        assert gateway.counted('refusals_total{reason="relay_peer"}') == 0
    assert gateway_d.counted("relay_peers") == 1
    _, page = gateway_d.get("/status")
    assert f"{gateway_a.peer_id} at 127.0.0.1 (--relay-peer)" in page
    assert "1 common topics" in page
    assert "problems: 0" in page
    assert "Traceback" not in gateway_d.log.read_text(encoding="utf-8")

    # Messages wait at the gateways while their node is away, here for longer than its drift.
    assert node_b.terminate() == 0
    before = [(each, each.counted(received)) for each in (gateway_b, gateway_c)]
    publish(node_a, b"meanwhile")
    eventually(lambda: all(each.counted(received) > count for each, count in before))
    node_b.args = (*node_b.args, "--max-clock-drift", "300ms")
    node_b.start()
    eventually(lambda: b"meanwhile" in stored(node_b))


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


def test_two_stores_get_what_either_lacks_and_strangers_get_nothing(world: World) -> None:
    node_a, node_b = world.node("a"), world.node("b")
    now_ns = time.time_ns()
    both = {b"both %d" % number: 100.0 + number for number in range(300)}
    of_b = {b"of b %d" % number: 150.0 + number for number in range(200)}
    # Of the last 20 seconds, and of the oldest part of the range, nothing is compared.
    backfill(node_a, now_ns, both | {b"of a": 1_000, b"": 40, b"new": 1, b"older": 7_000})
    backfill(node_b, now_ns, both | of_b)
    named = kept_identity(world.folder / "a" / "gateway.key").peer_id
    answering = world.gateway("b", node_b, "--nwaku-sync-peer", f"/p2p/{named}")
    to_b = ("--nwaku-sync-peer", answering.address("tcp"), "--nwaku-sync-interval", "2s")
    stranger = world.gateway("c", node_a, *to_b, client="timid")
    refused = 'sync_sessions_total{outcome="refused",role="initiator"}'
    eventually(lambda: refused in stranger.get("/metrics")[1])
    assert answering.counted('refusals_total{reason="identity"}') >= 1
    assert stored(node_b) == sorted([*both, *of_b])

    beginning = world.gateway("a", node_a, *to_b)
    everything = {*both, *of_b, b"of a", b""}
    eventually(lambda: stored(node_b) == sorted(everything))
    eventually(lambda: stored(node_a) == sorted({*everything, b"new", b"older"}))
    done = 'sync_sessions_total{outcome="done",role="%s"}'
    eventually(lambda: beginning.counted(done % "initiator") >= 2)
    assert answering.counted(done % "responder") >= 1
    sent = 'sync_messages_total{outcome="%s"}'
    assert beginning.counted(sent % "sent") == answering.counted(sent % "stored") == 2
    assert answering.counted(sent % "sent") == beginning.counted(sent % "stored") == 200
    assert beginning.counted(sent % "missing") == 200
    for gateway in (beginning, answering):
        assert gateway.counted(sent % "rejected") == 0
        assert "Traceback" not in gateway.log.read_text(encoding="utf-8")
