"""The process of a gateway: failures to start, answers, strangers and limits, the end."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import AsyncMock

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from chaos.ports import ReservedPort
from store.gateway.addresses import parse_listen_address
from store.gateway.clients import Clients
from store.gateway.connection import Surroundings
from store.gateway.faults import GatewayError
from store.gateway.filter import FILTER_SUBSCRIBE
from store.gateway.metrics import GatewayMetrics
from store.gateway.node import UpstreamNode
from store.gateway.noise import Identity, kept_identity
from store.gateway.server import Server, bind
from store.gateway.services import LEGACY_LIGHT_PUSH, LIGHT_PUSH, StoreQuery
from store.gateway.wire import delimited
from storenode.client.blocking_client import Client
from storenode.client.message import Message
from storenode.message.varint import varint
from storenode.wire.storenode.internal.v1 import waku_protocols_pb2 as wire
from storenode.wire.storenode.internal.v1.message_raw_pb2 import RawMessage
from storenode.wire.waku.message.v1.message_pb2 import WakuMessage
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.integration.gateway.messages import CLUSTER, NETWORK, NODE_PAGE, PUBSUB, SHARD, TOPICS
from tests.support.command import Command
from tests.support.gateway import GatewayProcess, running_gateway
from tests.support.node import NodeProcess, running_node
from tests.support.polling import PAUSE_S, eventually
from tests.support.waku_attacks import GONE, HOSTILE, HOSTILE_WEBSOCKETS, until_closed
from tests.support.waku_client import (
    MPLEX,
    PING,
    STORE_QUERY,
    YAMUX,
    RawClient,
    StreamResetError,
    WakuClient,
    line,
    push_request,
)

TOPIC: Final = "/push/1/a/proto"
HOUR_NS: Final = 3_600 * 10**9
METADATA = "/vac/waku/metadata/1.0.0"
ANY = "/ip4/127.0.0.1/tcp/0"
ANY_ADDRESS: Final = parse_listen_address(ANY)
OK: Final = StoreQueryResponse(request_id="honest", status_code=200)
ASKED = StoreQueryRequest(request_id="r-1", pagination_limit=1)


def refused(folder: Path, *options: str) -> tuple[int, str]:
    """Exit code and words of a gateway that does not start."""
    if "--key-file" not in options:
        options = (*options, "--key-file", str(folder / "gateway.key"))
    ended = Command()("gateway", *options)
    assert ended.out == ""
    assert "Traceback" not in ended.err
    return ended.code, " ".join(ended.err.split())


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (("--listen", "127.0.0.1:8000"), 2, "'127.0.0.1:8000' is not a multiaddr of TCP"),
        (("--listen", "/ip4/127.0.0.1/udp/1/quic-v1"), 2, "is not a multiaddr of TCP"),
        (("--listen", "/ip4/127.0.0.1/tcp/0/quic"), 2, "a transport that the gateway does not"),
        (("--listen", f"{ANY}/tls/ws"), 2, "needs a certificate: give --wss-cert and --wss-key"),
        (("--listen", ANY, "--wss-cert", "x.pem"), 2, "--wss-cert and --wss-key go together"),
        (("--listen", "/ip4/192.0.2.1/tcp/0"), 1, "/ip4/192.0.2.1/tcp/0 cannot be bound"),
        (("--listen", ANY, "--key-file", "/nowhere/key"), 1, "let this user read and write it"),
        (
            ("--listen", f"{ANY}/tls/ws", "--wss-cert", "none.pem", "--wss-key", "none.key"),
            1,
            "none.pem cannot be read (No such file or directory)",
        ),
    ],
)
def test_it_says_why_it_does_not_start(
    tmp_path: Path, options: tuple[str, ...], code: int, sentence: str
) -> None:
    found, said = refused(tmp_path, *options)
    assert (found, sentence in said) == (code, True), said


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listen = f"/ip4/127.0.0.1/tcp/{port}"
        code, said = refused(tmp_path, "--listen", listen)
        assert (code, f"--listen {listen} cannot be bound" in said) == (1, True), said
        metrics = f"127.0.0.1:{port}"
        code, said = refused(tmp_path, "--listen", ANY, "--metrics-listen", metrics)
        assert (code, f"--metrics-listen {metrics} cannot be bound" in said) == (1, True), said


def test_a_key_that_is_open_damaged_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    path = tmp_path / "a.key"
    for content, mode, sentence in (
        (b"no key", 0o600, "holds no Ed25519 key"),
        (other, 0o600, "holds no Ed25519 key"),
        (b"", 0o777, r"is open to everybody \(mode 0777\): run `chmod 600"),
    ):
        path.write_bytes(content)
        path.chmod(mode)
        with pytest.raises(GatewayError, match=sentence):
            kept_identity(path)
        assert path.read_bytes() == content


async def asked(gateway: GatewayProcess) -> tuple[int, str, str]:
    """Query the gateway, and return the status, the sentence and the request ID of the answer."""
    async with WakuClient.connected(gateway.address("tcp")) as client:
        answer = await client.query(ASKED)
    return answer.status_code, answer.status_desc, answer.request_id


def test_an_unreachable_node_is_reported_and_found_again(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    port = ReservedPort()
    node = NodeProcess(tmp_path / "node", database_url=new_store(), ports={"--listen": port})
    with running_gateway(tmp_path, port.address) as gateway:
        try:
            for _ in range(2):
                unready = f"the node at {port.address} is not connected"
                eventually(lambda: unready in gateway.get("/readyz")[1])  # noqa: B023
                assert gateway.get("/readyz")[0] == 503
                assert gateway.get("/healthz")[0] == 200
                # The gateway watches the connection and notices this without a query.
                eventually(lambda: gateway.counted("node_reachable") == 0)
                status, sentence, request_id = asyncio.run(asked(gateway))
                assert (status, request_id) == (503, "r-1")
                assert "cannot be reached: try again later" in sentence
                assert port.address not in sentence, "strangers are not told the node's address"
                node.start()
                eventually(lambda: gateway.get("/readyz")[0] == 200)
                eventually(lambda: gateway.counted("node_reachable") == 1)
                assert asyncio.run(asked(gateway))[0] == 200
                assert node.terminate() == 0
        finally:
            node.close()
        assert gateway.counted('queries_total{by="gateway"}') == 2
        assert gateway.counted('queries_total{by="node"}') == 2
        log = gateway.log.read_text(encoding="utf-8")
    assert "node_unreachable" in log
    assert log.count("node_connected") == 2


async def test_the_next_node_serves_when_one_does_not(
    tmp_path: Path, new_store: Callable[[], str]
) -> None:
    url = new_store()
    with (
        running_node(tmp_path / "a", database_url=url) as first,
        running_node(tmp_path / "b", database_url=url) as second,
        running_gateway(tmp_path, first.listen, "--node", second.listen, *NETWORK) as gateway,
    ):
        async with WakuClient.connected(gateway.address("tcp")) as client:
            for payload in (b"one", b"two"):
                assert await status_of(client, request(message(payload))) == (b"r", 200)
                await asyncio.to_thread(first.kill)
            found = await client.query(StoreQueryRequest(include_data=True))
            assert [each.message.payload for each in found.messages] == [b"one", b"two"]
        assert gateway.get("/readyz")[0] == 200
        log = gateway.log.read_text(encoding="utf-8")
    (line_of_log,) = (each for each in log.splitlines() if "node_changed" in each)
    assert first.listen in line_of_log
    assert second.listen in line_of_log


@pytest.mark.parametrize("multiplexer", [MPLEX, YAMUX])
async def test_it_stops_with_streams_open_and_keeps_its_peer_id(
    tmp_path: Path, node: NodeProcess, multiplexer: str
) -> None:
    with running_gateway(tmp_path, node.listen) as gateway:
        silent = await RawClient.connect(gateway.address("ws"))
        client = await WakuClient.connect(gateway.address("tcp"), multiplexer)
        assert (await client.query(ASKED)).status_code == 200
        for protocol, begun in ((STORE_QUERY, varint(100) + b"a"), (PING, b"a")):
            number = client.open()
            client.raw.send(
                client.data(number, line("/multistream/1.0.0") + line(protocol) + begun)
            )
        assert (await client.query(ASKED)).status_code == 200
        assert gateway.counted("open_connections") == 2
        assert gateway.counted('queries_total{by="node"}') == 2
        assert gateway.get("/nothing")[0] == 404
        assert await asyncio.to_thread(gateway.stop) == 0
        for each in (client.raw, silent):
            while await each.reader.read(4096):
                pass
            each.close()
        log = gateway.log.read_text(encoding="utf-8")
    assert ("gateway_stopping" in log, "Traceback" in log) == (True, False)
    with running_gateway(tmp_path, node.listen) as again:
        assert again.peer_id == gateway.peer_id
    assert (tmp_path / "gateway.key").stat().st_mode & 0o077 == 0


async def test_metadata_and_the_largest_page_are_those_of_the_node(
    gateway: GatewayProcess, messages: list[Message]
) -> None:
    async with WakuClient.connected(gateway.address("tcp"), YAMUX) as client:
        most = await client.query(StoreQueryRequest(pagination_limit=5_000))
        metadata = await client.ask(METADATA, b"\x00")
    # The node's own limit, 1,000 messages and 4 MiB, not that of other stores.
    assert (len(most.messages), most.HasField("pagination_cursor")) == (len(messages), False)
    known = wire.WakuMetadata(cluster_id=CLUSTER, shards=[SHARD])
    assert metadata == delimited(known.SerializeToString())


async def test_queries_are_answered_as_nwaku_answers_them(
    gateway: GatewayProcess, messages: list[Message]
) -> None:
    stored = sorted((each.timestamp, each.hash) for each in messages)
    at_ns, digest = stored[350]
    at_once = [each for time_ns, each in stored if time_ns == at_ns]
    about = {each.hash for each in messages if each.content_topic == TOPICS[0]}
    topic = [each for _, each in stored if each in about]
    other = stored[0][1]
    asked: list[tuple[dict[str, Any], list[bytes]]] = [
        ({}, [each for _, each in stored[:NODE_PAGE]]),
        ({"pagination_limit": 0}, [each for _, each in stored[:NODE_PAGE]]),
        ({"time_start": at_ns, "time_end": at_ns}, []),
        ({"time_start": at_ns, "time_end": at_ns + 1}, at_once[:NODE_PAGE]),
        ({"time_end": stored[0][0]}, []),
        ({"time_end": 2**63 - 1}, [each for _, each in stored[:NODE_PAGE]]),
        ({"content_topics": [TOPICS[0], ""]}, topic[:NODE_PAGE]),
        ({"content_topics": [""]}, []),
        ({"content_topics": ["a\0b"]}, []),
        ({"pubsub_topic": ""}, []),
        ({"message_hashes": [digest, other], "time_start": at_ns}, [digest]),
        ({"message_hashes": [digest, other], "time_end": at_ns}, [other]),
        ({"message_hashes": [digest], "time_start": at_ns, "time_end": at_ns + 1}, [digest]),
        ({"message_hashes": [digest], "time_start": 2, "time_end": 1}, []),
    ]
    async with WakuClient.connected(gateway.address("tcp")) as client:
        for fields_of, expected in asked:
            answer = await client.query(StoreQueryRequest(pagination_forward=True, **fields_of))
            found = [each.message_hash for each in answer.messages]
            assert (answer.status_code, found) == (200, expected), fields_of
        many = [other, digest, *(b"%032d" % number for number in range(200))]
        query = StoreQueryRequest(message_hashes=many, time_start=at_ns)
        assert [each.message_hash for each in (await client.query(query)).messages] == [digest]
        unknown = await client.query(StoreQueryRequest(pagination_cursor=bytes(32)))
    assert (unknown.status_code, "begin again without one" in unknown.status_desc) == (400, True)


async def test_an_answer_has_every_field_that_nwaku_requires(
    gateway: GatewayProcess, messages: list[Message]
) -> None:
    asked = StoreQueryRequest(include_data=True, pagination_limit=1_000, pagination_forward=True)
    empty = 0
    async with WakuClient.connected(gateway.address("tcp")) as client:
        for status in (200, 400):
            answer = await client.ask(STORE_QUERY, delimited(asked.SerializeToString()))
            encoded = answer[len(varint(len(answer))) :]
            head, page = wire.WakuResponse.FromString(encoded), wire.QueriedPage.FromString(encoded)
            assert head.HasField("request_id")
            assert head.status_description
            assert head.status_code == status
            for each in page.messages:
                assert each.message_hash
                assert each.pubsub_topic
                message = RawMessage.FromString(each.message)
                assert message.HasField("payload")
                assert message.HasField("content_topic")
                empty += message.payload == b""
            asked.pagination_cursor = b"no cursor"
    assert empty == sum(not each.payload for each in messages) > 0


def message(payload: bytes = b"text", **more: Any) -> bytes:  # noqa: ANN401 - its fields
    given = {"content_topic": TOPIC, "timestamp": time.time_ns(), **more}
    encoded = WakuMessage(payload=payload, **given).SerializeToString()
    return encoded if payload else b"\x0a\x00" + encoded


def request(encoded: bytes | None, topic: str | None = PUBSUB) -> bytes:
    return push_request(encoded, topic)


def legacy(encoded: bytes, topic: str = PUBSUB) -> bytes:
    inner = wire.LegacyPushRequest(pubsub_topic=topic, message=encoded)
    return wire.LegacyLightPush(request_id=b"r", request=inner).SerializeToString()


async def status_of(client: WakuClient, asked: bytes) -> tuple[bytes, int]:
    """Return the request ID and the status of the response."""
    answer = await client.ask(LIGHT_PUSH, delimited(asked))
    response = wire.WakuResponse.FromString(answer[1 if answer[0] < 0x80 else 2 :])
    assert bool(response.relay_peers) == (response.status_code == 200)
    assert bool(response.status_description) == (response.status_code != 200)
    return response.request_id, response.status_code


def cases(again: bytes) -> Iterator[tuple[bytes, tuple[bytes, int]]]:
    """Yield requests with the request ID and the status of their responses."""
    not_utf8 = RawMessage(payload=b"x", content_topic=b"\xff\xfe", timestamp=1)
    for encoded, status in (
        *((again, 200), (again, 200), (message(b""), 200), (message(ephemeral=True), 200)),
        (message(timestamp=None), 420),
        (message(timestamp=time.time_ns() - HOUR_NS), 420),
        (message(timestamp=time.time_ns() + HOUR_NS), 420),
        *((not_utf8.SerializeToString(), 420), (message(bytes(150 * 1024)), 413)),
    ):
        yield request(encoded), (b"r", status)
    yield request(message(), None), (b"r", 421)
    yield request(message(), "/waku/2/rs/1/7"), (b"r", 421)
    unreadable = request(None), request(b""), request(message(meta=bytes(65))), b"\xff\xff", b""
    yield from ((asked, (b"N/A", 400)) for asked in unreadable)


async def test_each_request_has_its_status(tmp_path: Path, new_store: Callable[[], str]) -> None:
    # The clock drift is longer than the test, however busy the machine.
    drift = ("--max-clock-drift", "10m")
    expected = [b"", b""]
    with running_node(tmp_path / "node", *drift, database_url=new_store()) as node:
        with running_gateway(tmp_path, node.listen, *NETWORK) as gateway:
            for multiplexer in (MPLEX, YAMUX):
                payloads = [f"{multiplexer} {each}".encode() for each in ("again", "old", "last")]
                expected += payloads
                async with WakuClient.connected(gateway.address("tcp"), multiplexer) as client:
                    for asked, answered in cases(message(payloads[0])):
                        assert await status_of(client, asked) == answered, asked[:100]
                    old = delimited(legacy(message(payloads[1])))
                    done = wire.LegacyPushResponse(is_success=True, info="OK")
                    answer = wire.LegacyLightPush(request_id=b"r", response=done)
                    expects = delimited(answer.SerializeToString())
                    assert await client.ask(LEGACY_LIGHT_PUSH, old) == expects
                    with pytest.raises(StreamResetError):
                        await client.ask(LIGHT_PUSH, delimited(bytes(300 * 1024)))
                    assert await status_of(client, request(message(payloads[2]))) == (b"r", 200)
        with running_gateway(tmp_path, node.listen, "--no-light-push", "--no-filter") as gateway:
            async with WakuClient.connected(gateway.address("tcp")) as client:
                for protocol in (LIGHT_PUSH, LEGACY_LIGHT_PUSH, FILTER_SUBSCRIBE):
                    with pytest.raises((StreamResetError, AssertionError)):
                        await client.ask(protocol, delimited(request(message())))
        with Client([node.listen]) as reader:
            assert sorted(each.payload for each in reader.scan()) == sorted(expected)
        with running_gateway(tmp_path, node.listen, *NETWORK) as gateway:
            assert await asyncio.to_thread(node.terminate) == 0
            async with WakuClient.connected(gateway.address("tcp")) as client:
                assert await status_of(client, request(message())) == (b"r", 503)


ATTACKS: Final = 300
GROWTH_BYTES: Final = 12 * 1024 * 1024


def honest_query(limit: int = 20) -> StoreQueryRequest:
    """Return the query of an honest client."""
    return StoreQueryRequest(
        request_id="honest",
        include_data=True,
        pubsub_topic=PUBSUB,
        content_topics=TOPICS,
        pagination_limit=limit,
        pagination_forward=True,
    )


async def require_service(gateway: GatewayProcess, multiplexer: str = MPLEX) -> None:
    """Check that an honest client is answered."""
    async with WakuClient.connected(gateway.address("tcp"), multiplexer) as client:
        response = await client.query(honest_query())
        assert (response.status_code, len(response.messages)) == (200, 20)


async def attacked(gateway: GatewayProcess, count: int, rng: random.Random) -> None:
    """Run attacks of all kinds, some at a time, between which honest clients are answered."""
    places = asyncio.Semaphore(8)
    kinds = [
        *((each, gateway.address("tcp")) for each in HOSTILE),
        *((each, gateway.address("ws")) for each in HOSTILE_WEBSOCKETS),
    ]

    async def attack(number: int) -> None:
        hostile, address = kinds[number % len(kinds)]
        async with places:
            with suppress(*GONE):
                await hostile(address, rng)
            if number % 50 == 0:
                await require_service(gateway)

    async with asyncio.timeout(240), asyncio.TaskGroup() as attacks:
        for number in range(count):
            attacks.create_task(attack(number))


async def test_malformed_input_costs_no_memory_and_no_honest_client(
    gateway: GatewayProcess,
) -> None:
    rng = random.Random(7)
    # What a process needs for the first time, it keeps.
    await attacked(gateway, 10 * len(HOSTILE), rng)
    before = gateway.resident_bytes()
    await attacked(gateway, ATTACKS, rng)
    assert gateway.resident_bytes() - before < GROWTH_BYTES
    await require_service(gateway)
    # The loop must run meanwhile: it closes the sockets of the clients.
    await asyncio.to_thread(eventually, lambda: gateway.counted("open_connections") == 0)
    for reason in ("malformed", "identity", "too_large", "no_protocol", "streams", "flood"):
        assert gateway.counted(f'refusals_total{{reason="{reason}"}}') > 0, reason
    assert "Traceback" not in gateway.log.read_text(encoding="utf-8")


@asynccontextmanager
async def serving(
    clients: Clients, max_connections: int = 100
) -> AsyncIterator[tuple[str, GatewayMetrics]]:
    """Serve queries in this process; yield the address, and what is counted."""
    metrics = GatewayMetrics("0")
    node = cast("UpstreamNode", AsyncMock())
    cast("AsyncMock", node).query.return_value = OK.SerializeToString()
    handlers = {STORE_QUERY: StoreQuery(node, metrics, 1_000).serve}
    around = Surroundings(Identity(Ed25519PrivateKey.generate()), handlers, metrics, 8)
    server = Server(around, clients, None, max_connections)
    address, listening = bind(ANY_ADDRESS)
    assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "silence is not probed"
    accepting = asyncio.create_task(server.accept(address, listening))
    try:
        yield str(address), metrics
    finally:
        accepting.cancel()
        await server.drain(0)
        listening.close()


def refusals(metrics: GatewayMetrics, reason: str) -> float:
    return cast("float", metrics.refusals.labels(reason)._value.get())


async def test_one_address_has_its_share() -> None:
    async with serving(Clients(3, 1_000, 5)) as (address, metrics):
        clients = [await WakuClient.connect(address) for _ in range(3)]
        with pytest.raises(GONE):
            await WakuClient.connect(address)
        codes = {(await clients[0].query(honest_query(1))).status_code for _ in range(50)}
        assert codes == {200, 429}
        clients.pop().close()
        while metrics.open_connections._value.get() > 2:  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
        clients.append(await WakuClient.connect(address))
        assert refusals(metrics, "connections_of_address") == 1
        assert refusals(metrics, "request_rate") > 0
        for each in clients:
            each.close()


async def test_new_connections_have_a_rate() -> None:
    async with serving(Clients(64, 1, 5)) as (address, metrics), WakuClient.connected(address):
        refused = 0
        for _ in range(20):
            try:
                (await WakuClient.connect(address)).close()
            except GONE:
                refused += 1
        assert refused
        assert refusals(metrics, "connection_rate") == refused


async def test_when_full_those_without_a_handshake_make_room() -> None:
    async with serving(Clients(64, 1_000, 100), max_connections=2) as (address, _):
        silent = await RawClient.connect(address)
        async with WakuClient.connected(address), WakuClient.connected(address) as client:
            await until_closed(silent)
            with pytest.raises(GONE):
                await WakuClient.connect(address)
            assert (await client.query(honest_query(1))).status_code == 200
