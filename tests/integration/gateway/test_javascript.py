"""js-waku and js-libp2p, as npm has them: every answer is that of a naive model."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from storenode.client.message import Message
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from tests.integration.gateway.javascript_clients import (
    SOURCES,
    JavaScriptClient,
    running_client,
)
from tests.integration.gateway.messages import (
    CLUSTER,
    PUBSUB,
    SHARD,
    TOPICS,
    Query,
    drawn,
    expected,
)
from tests.support.gateway import GatewayProcess

pytestmark = pytest.mark.timeout(900)  # the first test installs the clients

QUERIES = 100


@pytest.fixture(scope="module")
def js_waku(clients: Path, gateway: GatewayProcess) -> Iterator[JavaScriptClient]:
    """Run @waku/sdk over a WebSocket with mplex."""
    settings = json.dumps({"cluster": CLUSTER, "shard": SHARD})
    with running_client(clients, "waku", gateway.address("ws"), settings) as client:
        yield client


@pytest.fixture(scope="module")
def js_libp2p(clients: Path, gateway: GatewayProcess) -> Iterator[JavaScriptClient]:
    """Run js-libp2p over TCP with yamux."""
    with running_client(clients, "libp2p", gateway.address("tcp")) as client:
        yield client


def test_random_queries_of_js_waku_find_what_the_model_finds(
    js_waku: JavaScriptClient, messages: list[Message]
) -> None:
    rng = random.Random(36)
    for number in range(QUERIES):
        query = drawn(rng, messages)
        assert js_waku.ask(asdict(query)) == {"pages": expected(query, messages)}, (number, query)


def test_js_waku_receives_the_reason_of_a_refusal(js_waku: JavaScriptClient) -> None:
    unknown = Query(TOPICS, None, None, None, forward=True, limit=1, cursor="00" * 32, most=1)
    answer = js_waku.ask(asdict(unknown))
    assert answer["error"].startswith("Store query failed with status code: 400, description: ")


def test_js_libp2p_reads_pages_over_tcp_with_yamux(
    js_libp2p: JavaScriptClient, messages: list[Message]
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


def test_js_libp2p_identifies_and_pings_the_gateway(
    js_libp2p: JavaScriptClient, gateway: GatewayProcess
) -> None:
    identity = js_libp2p.ask({"identity": True})
    assert {"/vac/waku/store-query/3.0.0", "/vac/waku/metadata/1.0.0"} < {*identity["protocols"]}
    assert identity["agentVersion"].startswith("storenode/")
    assert [f"{each}/p2p/{gateway.peer_id}" for each in identity["addresses"]] == gateway.listen
    assert js_libp2p.ask({"pings": True})["milliseconds"] >= 0


def test_the_lock_of_npm_has_hashes_and_names_no_host() -> None:
    text = (SOURCES / "package-lock.json").read_text(encoding="utf-8")
    packages = {name: each for name, each in json.loads(text)["packages"].items() if name}
    assert packages
    assert all("integrity" in each and "resolved" not in each for each in packages.values())
    assert "://" not in text


def test_hashes_are_looked_up_with_the_pubsub_topic(
    js_waku: JavaScriptClient, messages: list[Message]
) -> None:
    # So does `missing_message_retriever` of the SDK: hashes of another shard are not found.
    hashes = tuple(each.hash.hex() for each in messages[:50])
    query = Query(TOPICS, None, None, hashes, forward=True, limit=100, cursor=None, most=1)
    (page,) = js_waku.ask(asdict(query))["pages"]
    own = {each.hash.hex() for each in messages[:50] if each.pubsub_topic == PUBSUB}
    assert {*page} == own != {*hashes}
