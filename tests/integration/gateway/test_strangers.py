"""Malformed input, crowds and limits: refused and counted, while honest clients are answered."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from storenode.client.message import Message
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.gateway.messages import PUBSUB, TOPICS
from tests.support.gateway import GatewayProcess, running_gateway
from tests.support.node import NodeProcess
from tests.support.polling import PAUSE_S
from tests.support.waku_attacks import GONE, HOSTILE, HOSTILE_WEBSOCKETS, until_closed
from tests.support.waku_client import MPLEX, YAMUX, RawClient, WakuClient

CROWD: Final = 100
IN_TURN: Final = 200
ATTACKS: Final = 300
GROWTH_BYTES: Final = 12 * 1024 * 1024


def request(limit: int = 20) -> StoreQueryRequest:
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
        response = await client.query(request())
        assert (response.status_code, len(response.messages)) == (200, 20)


async def until_open(gateway: GatewayProcess, count: int) -> None:
    """Wait until so few connections are open."""
    while gateway.counted("open_connections") > count:  # noqa: ASYNC110
        await asyncio.sleep(PAUSE_S)


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
    for reason in ("malformed", "identity", "too_large", "no_protocol", "streams", "flood"):
        assert gateway.counted(f'refusals_total{{reason="{reason}"}}') > 0, reason
    assert "Traceback" not in gateway.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("multiplexer", [MPLEX, YAMUX])
async def test_a_crowd_is_answered_at_the_same_time(
    gateway: GatewayProcess, multiplexer: str, messages: list[Message]
) -> None:
    clients = [await WakuClient.connect(gateway.address("tcp"), multiplexer) for _ in range(CROWD)]
    try:
        assert gateway.counted("open_connections") >= CROWD
        responses = await asyncio.gather(*(each.query(request()) for each in clients))
    finally:
        for each in clients:
            each.close()
    in_order = sorted(
        (each.timestamp, each.hash) for each in messages if each.pubsub_topic == PUBSUB
    )
    page = [digest for _, digest in in_order[:20]]
    for response in responses:
        assert [each.message_hash for each in response.messages] == page


async def test_connections_one_after_the_other_leave_nothing_behind(
    gateway: GatewayProcess,
) -> None:
    async def come_and_go(count: int) -> None:
        for _ in range(count):
            async with WakuClient.connected(gateway.address("tcp")) as client:
                assert (await client.query(request(1))).status_code == 200

    await come_and_go(100)
    before = gateway.resident_bytes()
    await come_and_go(IN_TURN)
    assert gateway.resident_bytes() - before < GROWTH_BYTES
    await until_open(gateway, 0)


async def test_one_address_has_its_share(tmp_path: Path, node: NodeProcess) -> None:
    limits = (
        *("--max-connections-per-address", "3", "--max-new-connections-per-s", "1000"),
        *("--max-requests-per-s", "5"),
    )
    with running_gateway(tmp_path, node.listen, *limits) as gateway:
        address = gateway.address("tcp")
        clients = [await WakuClient.connect(address) for _ in range(3)]
        with pytest.raises(GONE):
            await WakuClient.connect(address)
        codes = {(await clients[0].query(request(1))).status_code for _ in range(50)}
        assert codes == {200, 429}
        clients.pop().close()
        await until_open(gateway, 2)
        clients.append(await WakuClient.connect(address))
        assert gateway.counted('refusals_total{reason="connections_of_address"}') == 1
        assert gateway.counted('refusals_total{reason="request_rate"}') > 0
        for each in clients:
            each.close()


async def test_new_connections_have_a_rate(tmp_path: Path, node: NodeProcess) -> None:
    with running_gateway(tmp_path, node.listen, "--max-new-connections-per-s", "1") as gateway:
        address = gateway.address("tcp")
        async with WakuClient.connected(address):
            refused = 0
            for _ in range(20):
                try:
                    (await WakuClient.connect(address)).close()
                except GONE:
                    refused += 1
            assert refused
            assert gateway.counted('refusals_total{reason="connection_rate"}') == refused


async def test_when_full_those_without_a_handshake_make_room(
    tmp_path: Path, node: NodeProcess
) -> None:
    limits = ("--max-connections", "2", "--max-new-connections-per-s", "1000")
    with running_gateway(tmp_path, node.listen, *limits) as gateway:
        address = gateway.address("tcp")
        silent = await RawClient.connect(address)
        async with WakuClient.connected(address), WakuClient.connected(address) as client:
            await until_closed(silent)
            with pytest.raises(GONE):
                await WakuClient.connect(address)
            assert (await client.query(request(1))).status_code == 200
