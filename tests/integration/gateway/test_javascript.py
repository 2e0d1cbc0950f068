"""js-waku and js-libp2p, as npm has them: queries by a model, pushes, channels, relay, TLS."""

from __future__ import annotations

import base64
import json
import random
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.integration.gateway.messages import (
    CLUSTER,
    NETWORK,
    PUBSUB,
    SHARD,
    TOPICS,
    Query,
    drawn,
    expected,
)
from tests.support.credentials import TIMEOUT_S, Pki, check_renewal, serial
from tests.support.gateway import GatewayProcess, running_gateway
from tests.support.javascript import JavaScriptClient, running
from tests.support.node import NodeProcess, running_node, shared_node
from tests.support.polling import eventually
from tests.support.waku_client import address_of

pytestmark = pytest.mark.timeout(900)  # the first test installs the clients

QUERIES: Final = 100
TOPIC: Final = "/light/1/chat/proto"
DAY_NS: Final = 86_400 * 10**9


def running_client(
    clients: Path, kind: str, address: str, settings: object = None, **env: str
) -> AbstractContextManager[JavaScriptClient]:
    """Run a client of ``clients.mjs``."""
    return running(clients, "clients.mjs", kind, address, json.dumps(settings), **env)


def waku(
    clients: Path, kind: str, gateway: GatewayProcess, transport: str = "ws", **settings: str
) -> AbstractContextManager[JavaScriptClient]:
    """Run a client of @waku/sdk, over a WebSocket with mplex."""
    given = {"cluster": CLUSTER, "shard": SHARD, "topic": TOPIC, **settings}
    return running_client(clients, kind, gateway.address(transport), given)


# The store behind a gateway


@pytest.fixture(scope="module")
def js_waku(clients: Path, gateway: GatewayProcess) -> Iterator[JavaScriptClient]:
    with waku(clients, "waku", gateway) as client:
        yield client


@pytest.fixture(scope="module")
def js_libp2p(clients: Path, gateway: GatewayProcess) -> Iterator[JavaScriptClient]:
    """Run js-libp2p over TCP with yamux."""
    with running_client(clients, "libp2p", gateway.address("tcp")) as client:
        yield client


def check_queries(client: JavaScriptClient, messages: list[Message], count: int) -> None:
    """Check that random queries find what the model finds."""
    rng = random.Random(36)
    for number in range(count):
        query = drawn(rng, messages)
        assert client.ask(asdict(query)) == {"pages": expected(query, messages)}, (number, query)


def test_random_queries_of_js_waku_find_what_the_model_finds(
    js_waku: JavaScriptClient, messages: list[Message]
) -> None:
    check_queries(js_waku, messages, QUERIES)
    unknown = Query(TOPICS, None, None, None, forward=True, limit=1, cursor="00" * 32, most=1)
    answer = js_waku.ask(asdict(unknown))
    assert answer["error"].startswith("Store query failed with status code: 400, description: ")


def test_js_libp2p_reads_pages_identifies_and_pings_over_tcp_with_yamux(
    js_libp2p: JavaScriptClient, gateway: GatewayProcess, messages: list[Message]
) -> None:
    request = StoreQueryRequest(request_id="all", include_data=True, pagination_forward=True)
    request.pagination_limit = 1_000
    found = []
    while True:
        encoded = base64.b64encode(request.SerializeToString()).decode()
        answer = base64.b64decode(js_libp2p.ask({"request": encoded})["answer"])
        response = StoreQueryResponse.FromString(answer)
        assert (response.status_code, response.request_id) == (200, "all")
        found += [each.message_hash for each in response.messages]
        if not response.HasField("pagination_cursor"):
            break
        request.pagination_cursor = response.pagination_cursor
    in_order = sorted(messages, key=lambda each: (each.timestamp, each.hash))
    assert found == [each.hash for each in in_order]
    identity = js_libp2p.ask({"identity": True})
    assert {"/vac/waku/store-query/3.0.0", "/vac/waku/metadata/1.0.0"} < {*identity["protocols"]}
    assert identity["agentVersion"].startswith("storenode/")
    assert [f"{each}/p2p/{gateway.peer_id}" for each in identity["addresses"]] == gateway.listen
    assert js_libp2p.ask({"pings": True})["milliseconds"] >= 0


# Clients that have only a storenode

own_node = shared_node("light", "--max-clock-drift", "off", "--retention", "90d", scope="module")


@pytest.fixture(scope="module")
def own_gateway(
    tmp_path_factory: pytest.TempPathFactory, own_node: NodeProcess
) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("gateway")
    with running_gateway(directory, own_node.listen, *NETWORK) as process:
        yield process


def test_what_one_client_pushes_another_receives_and_finds_in_the_store(
    clients: Path, own_node: NodeProcess, own_gateway: GatewayProcess
) -> None:
    with waku(clients, "light", own_gateway) as alice, waku(clients, "light", own_gateway) as bob:
        assert bob.ask({"subscribe": True}) == {"done": True}
        for number in range(10):
            said = {"push": f"hello {number}", "legacy": number % 2 == 1}
            assert alice.ask(said) == {"successes": 1, "failures": []}
            assert bob.ask({}) == {"received": f"hello {number}"}
        assert alice.ask({"push": "now", "ephemeral": True}) == {"successes": 1, "failures": []}
        assert bob.ask({}) == {"received": "now"}
        refused = alice.ask({"push": "x" * 150 * 1024})
        assert (refused["successes"], len(refused["failures"])) == (0, 1)
        with Client([own_node.listen]) as client:
            client.publish(Message(b"from gRPC", TOPIC, PUBSUB))
        assert bob.ask({}) == {"received": "from gRPC"}
        stored = [f"hello {number}" for number in range(10)]
        assert alice.ask({"stored": True}) == {"stored": [*stored, "from gRPC"]}
        assert own_gateway.counted("filter_subscribers") == 1
        assert bob.ask({"unsubscribe": True}) == {"done": True}
        eventually(lambda: own_gateway.counted("filter_subscribers") == 0)
    for status, count in ((200, 11), (413, 1)):
        assert own_gateway.counted(f'light_pushes_total{{status="{status}"}}') == count
    assert own_gateway.counted("filter_pushes_total") == 12


def test_two_reliable_channels_talk_with_only_a_storenode_between_them(
    clients: Path, own_gateway: GatewayProcess
) -> None:
    settings = {"topic": "/light/1/talk/proto", "channel": "room"}
    with (
        waku(clients, "talk", own_gateway, sender="alice", **settings) as alice,
        waku(clients, "talk", own_gateway, sender="bob", **settings) as bob,
    ):
        for number in range(5):
            for name, talker in (("alice", alice), ("bob", bob)):
                assert talker.ask({"send": f"{name} {number}"})["id"]
        for other, talker in (("bob", alice), ("alice", bob)):
            assert talker.ask({"wait": 5}) == {"received": [f"{other} {n}" for n in range(5)]}
        for talker in (alice, bob):
            assert talker.ask({"acknowledge": 1})["received"]


def said(name: str, lamport: int, age_ns: int, *after: tuple[str, Message]) -> Message:
    """Return a message of a channel, which names earlier ones with their hashes as hints."""
    body = SdsMessage(
        sender_id="ada",
        message_id=name,
        channel_id="hall",
        lamport_timestamp=lamport,
        causal_history=[HistoryEntry(message_id=n, retrieval_hint=m.hash) for n, m in after],
        content=f"said in {name}".encode(),
    )
    stamp = time.time_ns() - age_ns
    return Message(body.SerializeToString(), "/light/1/hall/proto", PUBSUB, timestamp=stamp)


def test_missing_messages_of_a_channel_are_fetched_by_hints(
    clients: Path, own_node: NodeProcess, own_gateway: GatewayProcess
) -> None:
    # The SDK asks for the last 30 days when it connects, and for older messages by hints.
    first = said("m-1", 1, 60 * DAY_NS)
    second = said("m-2", 2, 50 * DAY_NS, ("m-1", first))
    third = said("m-3", 3, 3 * DAY_NS, ("m-2", second))
    with Client([own_node.listen]) as client:
        client.publish_many([first, second, third])
    settings = {"channel": "hall", "topic": "/light/1/hall/proto"}
    with waku(clients, "channel", own_gateway, **settings) as channel:
        received = [channel.ask({}) for _ in range(3)]
    assert received == [
        {"hash": message.hash.hex(), "text": f"said in {name}"}
        for name, message in (("m-3", third), ("m-2", second), ("m-1", first))
    ]


def test_js_libp2p_and_the_gateway_relay_to_each_other_in_either_direction(
    clients: Path, tmp_path: Path, new_store: Callable[[], str]
) -> None:
    def encoded(text: str) -> str:
        message = WakuMessage(payload=text.encode(), content_topic=TOPIC, timestamp=time.time_ns())
        return base64.b64encode(message.SerializeToString()).decode()

    def texts(client: JavaScriptClient, count: int) -> list[str]:
        found = [base64.b64decode(client.ask({})["received"]) for _ in range(count)]
        return sorted(WakuMessage.FromString(each).payload.decode() for each in found)

    options = (*NETWORK, "--relay", "router", "--relay-peer")
    with (
        running_node(tmp_path / "node", database_url=new_store()) as node,
        running_client(clients, "relay", "", {"topic": PUBSUB, "listen": True}) as listening,
        running_gateway(
            tmp_path, node.listen, *options, listening.ask({"addresses": True})["addresses"][0]
        ) as gateway,
        running_client(clients, "relay", gateway.address("tcp"), {"topic": PUBSUB}) as connecting,
        Client([node.listen]) as client,
    ):
        peers = {"listening": listening, "connecting": connecting}
        eventually(lambda: gateway.counted("relay_peers") == 2)
        for peer in peers.values():
            eventually(lambda asked=peer: asked.ask({"subscribers": True}) == {"subscribers": 1})  # type: ignore[misc]
        for number in range(10):
            for name, peer in peers.items():
                assert peer.ask({"publish": encoded(f"{name} {number}")}) == {"recipients": 1}
            client.publish(Message(b"node %d" % number, TOPIC, PUBSUB))
        sent = {name: [f"{name} {n}" for n in range(10)] for name in (*peers, "node")}
        for name, peer in peers.items():
            others = [text for who, each in sent.items() if who != name for text in each]
            assert texts(peer, 20) == sorted(others)
        eventually(lambda: len(list(client.scan())) == 30)
        stored = sorted(each.payload.decode() for each in client.scan())
        assert stored == sorted(text for each in sent.values() for text in each)
        assert gateway.counted('relay_messages_total{outcome="invalid"}') == 0


# Secure WebSockets


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """Make the authority of the gateway's certificates, and its first one."""
    made = Pki(tmp_path_factory.mktemp("certificates"))
    made.issue("127.0.0.1", file="wss")
    return made


@pytest.fixture(scope="module")
def secure(pki: Pki, node: NodeProcess) -> Iterator[GatewayProcess]:
    """Run a gateway with a listener of each kind."""
    files = pki.directory
    options = (
        *("--listen", "/ip4/127.0.0.1/tcp/0/tls/ws", *NETWORK),
        *("--wss-cert", str(files / "wss.pem"), "--wss-key", str(files / "wss.key")),
    )
    with running_gateway(files, node.listen, *options) as process:
        yield process


def test_js_waku_reads_over_a_secure_websocket(
    clients: Path, secure: GatewayProcess, pki: Pki, messages: list[Message]
) -> None:
    address, trusted = secure.address("wss"), str(pki.ca)
    settings = {"cluster": CLUSTER, "shard": SHARD}
    with running_client(clients, "waku", address, settings, NODE_EXTRA_CA_CERTS=trusted) as client:
        check_queries(client, messages, QUERIES // 10)


def test_a_renewed_certificate_is_shown_and_what_is_no_tls_is_refused(
    secure: GatewayProcess, pki: Pki, tmp_path: Path
) -> None:
    def renew() -> None:
        Pki(tmp_path, pki.authority).issue("127.0.0.1", file="wss")
        for name in ("wss.key", "wss.pem"):
            shutil.move(tmp_path / name, pki.directory / name)

    host, port = address_of(secure.address("wss"))
    trust = ssl.create_default_context(cafile=str(pki.ca))
    check_renewal(f"{host}:{port}", trust, renew)
    with socket.create_connection((host, port), TIMEOUT_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while plain.recv(4096):
            pass
    with pytest.raises(ssl.SSLCertVerificationError):
        serial(f"{host}:{port}", ssl.create_default_context(cafile=None))
    assert "Traceback" not in secure.log.read_text(encoding="utf-8")
