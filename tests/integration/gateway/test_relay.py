"""Relay between stores, and with gossipsub of another implementation."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from store.gateway.light_push import LIGHT_PUSH
from store.gateway.wire import bytes_field, delimited
from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD, access_files
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually
from tests.support.waku_client import WakuClient

TOPIC: Final = "/relay/1/chat/proto"
NETWORK: Final = (*GENEROUS, "--cluster", str(CLUSTER), "--shard", str(SHARD))


def stored(node: NodeProcess, token: str | None = None) -> list[bytes]:
    with Client([node.listen], token=token) as client:
        return sorted(each.payload for each in client.scan())


def started(
    stack: ExitStack, folder: Path, new_store: Callable[[], str], *options: str
) -> tuple[NodeProcess, GatewayProcess]:
    folder.mkdir()
    node = stack.enter_context(running_node(folder / "node", database_url=new_store()))
    return node, stack.enter_context(running_gateway(folder, node.listen, *NETWORK, *options))


async def test_messages_reach_each_store_of_the_network_once(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with ExitStack() as stack:
        router = ("--relay", "router")
        node_a, gateway_a = started(stack, tmp_path / "a", new_store, *router)
        to_a = ("--relay-peer", gateway_a.address("tcp"))
        node_b, gateway_b = started(stack, tmp_path / "b", new_store, *router, *to_a)
        # A second gateway at the same store sends nothing twice.
        gateway_c = stack.enter_context(
            running_gateway(tmp_path / "c", node_b.listen, *NETWORK, *router, *to_a)
        )
        leaf, gateway_d = started(stack, tmp_path / "d", new_store, "--relay", "leaf", *to_a)
        eventually(lambda: gateway_a.counted("relay_peers") == 3)
        others = (gateway_b, gateway_c, gateway_d)
        eventually(lambda: all(each.counted("relay_peers") == 1 for each in others))

        expected = [b"from a", b"from b", b"now", *(b"%d" % number for number in range(20))]
        with Client([node_a.listen]) as client:
            client.publish(Message(b"from a", TOPIC, PUBSUB))
        with Client([node_b.listen]) as client:
            client.publish(Message(b"from b", TOPIC, PUBSUB))
            client.publish(Message(b"old", TOPIC, "/waku/2/rs/9/9"))
        async with WakuClient.connected(gateway_b.address("tcp")) as client:
            for payload in expected[2:]:
                message = WakuMessage(
                    payload=payload,
                    content_topic=TOPIC,
                    timestamp=time.time_ns(),
                    ephemeral=payload == b"now",
                )
                request = bytes_field(1, b"r") + bytes_field(20, PUBSUB.encode())
                request += bytes_field(21, message.SerializeToString())
                await client.ask(LIGHT_PUSH, delimited(request))
        expected.remove(b"now")
        eventually(lambda: stored(node_a) == sorted(expected))
        eventually(lambda: stored(leaf) == sorted(expected))
        eventually(lambda: stored(node_b) == sorted([*expected, b"old"]))
        received = 'relay_messages_total{outcome="received"}'
        eventually(lambda: gateway_a.counted(received) == 22)
        eventually(lambda: gateway_d.counted(received) == 23)
        for gateway in (gateway_a, *others):
            assert gateway.counted('relay_messages_total{outcome="invalid"}') == 0
            assert gateway.counted('refusals_total{reason="relay_peer"}') == 0
        _, page = gateway_d.get("/status")
        assert f"{gateway_a.peer_id} at 127.0.0.1 (--relay-peer)" in page
        assert "1 common topics" in page
        assert "problems: 0" in page
        log = gateway_d.log.read_text(encoding="utf-8")
        assert "Traceback" not in log


async def test_a_leaf_does_not_accept_strangers(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with ExitStack() as stack:
        _, hub = started(stack, tmp_path / "a", new_store, "--relay", "router")
        peer = ("--relay-peer", hub.address("tcp"))
        _, leaf = started(stack, tmp_path / "b", new_store, "--relay", "leaf", *peer)
        started(
            stack,
            tmp_path / "c",
            new_store,
            "--relay",
            "router",
            "--relay-peer",
            leaf.address("tcp"),
        )
        eventually(lambda: leaf.counted("relay_peers") == 1)
        eventually(lambda: leaf.counted('refusals_total{reason="identity"}') >= 1)
        assert leaf.counted("relay_peers") == 1


async def test_messages_are_stored_after_the_node_was_away_for_longer_than_its_drift(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with ExitStack() as stack:
        router = ("--relay", "router")
        node_a, gateway_a = started(stack, tmp_path / "a", new_store, *router)
        access_files(tmp_path / "b")
        options = [
            *("--client-token-file", str(tmp_path / "b" / "clients.toml")),
            *("--max-clock-drift", "300ms"),
        ]
        node_b = NodeProcess(tmp_path / "b" / "node", options, new_store())
        stack.callback(node_b.close)
        node_b.start()
        gateway_b = stack.enter_context(
            running_gateway(
                tmp_path / "b",
                node_b.listen,
                *NETWORK,
                *router,
                *("--token-file", str(tmp_path / "b" / "gateway")),
                *("--relay-peer", gateway_a.address("tcp")),
            )
        )
        eventually(lambda: gateway_a.counted("relay_peers") == 1)
        assert node_b.terminate() == 0
        with Client([node_a.listen]) as client:
            client.publish(Message(b"meanwhile", TOPIC, PUBSUB))
        eventually(lambda: gateway_b.counted('relay_messages_total{outcome="received"}') == 1)
        # To start takes the node longer than its drift.
        node_b.start()
        eventually(lambda: gateway_b.counted('relay_messages_total{outcome="stored"}') == 1)
        assert stored(node_b, "token-of-writer") == [b"meanwhile"]
