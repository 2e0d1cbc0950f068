"""Unmodified @waku/sdk and js-libp2p that have only a storenode: push, subscribe, talk, relay."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from tests.integration.gateway.javascript_clients import JavaScriptClient, running_client
from tests.integration.gateway.messages import CLUSTER, PUBSUB, SHARD
from tests.support.gateway import GENEROUS, GatewayProcess, running_gateway
from tests.support.node import NodeProcess, running_node
from tests.support.polling import eventually

pytestmark = pytest.mark.timeout(900)  # the first test installs the clients

TOPIC: Final = "/light/1/chat/proto"
SETTINGS: Final = {"cluster": CLUSTER, "shard": SHARD, "topic": TOPIC}
NETWORK: Final = ("--cluster", str(CLUSTER), "--shard", str(SHARD))


@pytest.fixture(scope="module")
def own_node(
    tmp_path_factory: pytest.TempPathFactory, new_store: Callable[[], str]
) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), database_url=new_store()) as process:
        yield process


@pytest.fixture(scope="module")
def own_gateway(
    tmp_path_factory: pytest.TempPathFactory, own_node: NodeProcess
) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("gateway")
    with running_gateway(directory, own_node.listen, *GENEROUS, *NETWORK) as process:
        yield process


def test_what_one_client_pushes_another_receives_and_finds_in_the_store(
    clients: Path, own_node: NodeProcess, own_gateway: GatewayProcess
) -> None:
    settings = json.dumps(SETTINGS)
    with (
        running_client(clients, "light", own_gateway.address("ws"), settings) as alice,
        running_client(clients, "light", own_gateway.address("ws"), settings) as bob,
    ):
        assert bob.ask({"subscribe": True}) == {"done": True}
        for number in range(10):
            said = {"push": f"hello {number}", "legacy": number % 2 == 1}
            assert alice.ask(said) == {"successes": 1, "failures": []}
            assert bob.ask({}) == {"received": f"hello {number}"}
        assert alice.ask({"push": "now", "ephemeral": True}) == {"successes": 1, "failures": []}
        assert bob.ask({}) == {"received": "now"}
        with Client([own_node.listen]) as client:
            client.publish(Message(b"from gRPC", TOPIC, PUBSUB))
        assert bob.ask({}) == {"received": "from gRPC"}
        stored = [f"hello {number}" for number in range(10)]
        assert alice.ask({"stored": True}) == {"stored": [*stored, "from gRPC"]}
        assert own_gateway.counted("filter_subscribers") == 1
        assert bob.ask({"unsubscribe": True}) == {"done": True}
        eventually(lambda: own_gateway.counted("filter_subscribers") == 0)
    assert own_gateway.counted('light_pushes_total{status="200"}') == 11
    assert own_gateway.counted("filter_pushes_total") == 12


def test_two_reliable_channels_talk_with_only_a_storenode_between_them(
    clients: Path, own_gateway: GatewayProcess
) -> None:
    with ExitStack() as stack:
        talkers = {}
        for name in ("alice", "bob"):
            settings = {**SETTINGS, "topic": "/light/1/talk/proto", "channel": "room"}
            address = own_gateway.address("ws")
            talkers[name] = stack.enter_context(
                running_client(clients, "talk", address, json.dumps({**settings, "sender": name}))
            )
        for number in range(5):
            for name, talker in talkers.items():
                assert talker.ask({"send": f"{name} {number}"})["id"]
        for name, other in (("alice", "bob"), ("bob", "alice")):
            expected = [f"{other} {number}" for number in range(5)]
            assert talkers[name].ask({"wait": 5}) == {"received": expected}
        for talker in talkers.values():
            assert talker.ask({"acknowledge": 1})["received"]


def test_a_push_fails_with_the_status_of_the_node_or_of_its_absence(
    clients: Path, tmp_path: Path, new_store: Callable[[], str]
) -> None:
    with ExitStack() as stack:
        options = ("--max-message-size", "1KiB")
        node = stack.enter_context(
            running_node(tmp_path / "node", *options, database_url=new_store())
        )
        gateway = stack.enter_context(running_gateway(tmp_path, node.listen, *GENEROUS, *NETWORK))
        settings = json.dumps(SETTINGS)
        client = stack.enter_context(
            running_client(clients, "light", gateway.address("ws"), settings)
        )
        refused = client.ask({"push": "x" * 2_000})
        assert (refused["successes"], len(refused["failures"])) == (0, 1)
        assert gateway.counted('light_pushes_total{status="420"}') == 1
        assert node.terminate() == 0
        refused = client.ask({"push": "x"})
        assert (refused["successes"], len(refused["failures"])) == (0, 1)
        assert gateway.counted('light_pushes_total{status="503"}') == 1


@pytest.mark.parametrize("dials", [True, False])
def test_js_libp2p_and_the_gateway_relay_to_each_other(
    clients: Path, tmp_path: Path, new_store: Callable[[], str], *, dials: bool
) -> None:
    def encoded(text: str) -> str:
        message = WakuMessage(payload=text.encode(), content_topic=TOPIC, timestamp=time.time_ns())
        return base64.b64encode(message.SerializeToString()).decode()

    def texts(client: JavaScriptClient, count: int) -> list[str]:
        found = [base64.b64decode(client.ask({})["received"]) for _ in range(count)]
        return sorted(WakuMessage.FromString(each).payload.decode() for each in found)

    options = ("--relay", "router", *GENEROUS, *NETWORK)
    settings = json.dumps({"topic": PUBSUB, "listen": not dials})
    with ExitStack() as stack:
        node = stack.enter_context(running_node(tmp_path / "node", database_url=new_store()))
        if dials:
            gateway = stack.enter_context(running_gateway(tmp_path, node.listen, *options))
            address = gateway.address("tcp")
            peer = stack.enter_context(running_client(clients, "relay", address, settings))
        else:
            peer = stack.enter_context(running_client(clients, "relay", "", settings))
            (address,) = peer.ask({"addresses": True})["addresses"]
            configured = ("--relay-peer", address)
            gateway = stack.enter_context(
                running_gateway(tmp_path, node.listen, *options, *configured)
            )
        eventually(lambda: gateway.counted("relay_peers") == 1)
        eventually(lambda: peer.ask({"subscribers": True}) == {"subscribers": 1})
        for number in range(10):
            assert peer.ask({"publish": encoded(f"js {number}")}) == {"recipients": 1}
        with Client([node.listen]) as client:
            for number in range(10):
                client.publish(Message(b"py %d" % number, TOPIC, PUBSUB))
            assert texts(peer, 10) == [f"py {number}" for number in range(10)]
            eventually(lambda: len(list(client.scan())) == 20)
            stored = sorted(each.payload.decode() for each in client.scan())
        said = [f"{who} {number}" for who in ("js", "py") for number in range(10)]
        assert stored == sorted(said)
        assert gateway.counted('relay_messages_total{outcome="invalid"}') == 0
