"""Small limits on requests and responses: each is enforced on its path."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from store.domain.query import RequestLimits
from storenode.client.messages import hash_of, new_message, outcome_name, query_request
from storenode.client.node import NodeClient, connect, content_filter
from storenode.client.sds_messages import sds_payload
from storenode.connection.errors import NodeError
from storenode.message.rules import Policy
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.rpc.harness import Rules, serve

KIB = 1024
PUBSUB_TOPIC = "/waku/2/rs/1/0"
TOPIC = "/test/1/limits/proto"
EARLIER_TOPIC = "/test/1/earlier/proto"
CHANNEL = "channel"
CONTENT_BYTES = 10 * KIB
CHAIN = 20
MAX_RESPONSE_BYTES = 88 * KIB
MESSAGES_OF_A_PAGE = 2
SMALL = RequestLimits(
    response_bytes=MAX_RESPONSE_BYTES,
    batch_messages=21,
    default_page_messages=3,
    page_messages=6,
    query_hashes=150,
    query_topics=2,
    sds_entries=20,
    sds_claimants=4,
    causal_heads=2,
    causal_known_ids=3,
    causal_messages=15,
)


LimitedNode = tuple[str, list[bytes], bytes]
"""The address of a node with small limits, and the hashes of a chain of SDS messages and of one
message from before the limits."""


def said(message_id: str, parents: Sequence[str], timestamp_ns: int, size: int) -> bytes:
    named = [(parent, None) for parent in parents]
    return sds_payload(CHANNEL, message_id, bytes(size), lamport=timestamp_ns, parents=named)


def made(start_ns: int) -> list[WakuMessageAndTopic]:
    payloads = [
        said(f"m{n}", [f"m{n - 1}"] if n else [], start_ns + n, CONTENT_BYTES) for n in range(CHAIN)
    ]
    return [
        new_message(payload, TOPIC, PUBSUB_TOPIC, start_ns + n)
        for n, payload in enumerate(payloads)
    ]


async def publish(address: str, messages: Sequence[WakuMessageAndTopic]) -> None:
    async with connect(address) as client:
        results = await client.publish(messages)
    assert [outcome_name(result) for result in results] == ["STORED"] * len(messages)


@pytest.fixture
async def limited_node(database_url: str) -> AsyncIterator[LimitedNode]:
    """Start a node with small limits, one of whose messages is larger than it would accept."""
    start_ns = time.time_ns()
    earlier = new_message(bytes(100 * KIB), EARLIER_TOPIC, PUBSUB_TOPIC, start_ns - 1)
    chain = made(start_ns)
    async with serve(database_url) as ordinary:
        await publish(ordinary.address, [earlier])
    rules = Rules(policy=Policy(max_drift_ns=None, max_message_bytes=20 * KIB))
    async with serve(database_url, rules=rules, limits=SMALL) as limited:
        await publish(limited.address, chain)
        yield limited.address, [hash_of(each) for each in chain], hash_of(earlier)


@pytest.fixture
async def client(limited_node: LimitedNode) -> AsyncIterator[NodeClient]:
    """Connect a client to the node with small limits."""
    async with connect(limited_node[0]) as opened:
        yield opened


def assert_cut(pages: Sequence[Any], least: int) -> None:
    assert len(pages) >= least
    assert max(page.ByteSize() for page in pages) <= MAX_RESPONSE_BYTES


async def all_of(pages: AsyncIterable[Any]) -> list[Any]:
    return [page async for page in pages]


async def refused(pages: AsyncIterable[Any]) -> NodeError:
    with pytest.raises(NodeError) as caught:
        await all_of(pages)
    return caught.value


async def test_pages_of_queries_fit_into_a_response(
    client: NodeClient, limited_node: LimitedNode
) -> None:
    by_topic = query_request(pubsub_topic=PUBSUB_TOPIC, content_topics=[TOPIC], forward=True)
    few = query_request(message_hashes=limited_node[1], forward=True)
    unknown = [bytes([n]) * 32 for n in range(130)]
    many = query_request(message_hashes=[*limited_node[1], *unknown], forward=True)
    for request in (by_topic, few, many):
        request.pagination_limit = 6
        pages = [page async for page in client.query_pages(request)]
        assert_cut(pages, CHAIN // MESSAGES_OF_A_PAGE)
        assert [each.message_hash for page in pages for each in page.messages][:CHAIN] == (
            limited_node[1]
        )


async def test_pages_of_followers_fit_into_a_response(
    client: NodeClient, limited_node: LimitedNode
) -> None:
    """Follow the backlog, and then a live commit that is too large for one page."""
    start_ns = time.time_ns()
    live = [
        new_message(bytes(CONTENT_BYTES), TOPIC, PUBSUB_TOPIC, start_ns + n) for n in range(CHAIN)
    ]
    wanted = content_filter(PUBSUB_TOPIC, [TOPIC])
    stored = [*limited_node[1], *map(hash_of, live)]
    followed: list[bytes] = []
    pages = []
    async with aclosing(client.follow(filter=wanted, from_beginning=True)) as arriving:
        async for page in arriving:
            pages.append(page)
            followed += [each.message_hash for each in page.messages]
            if len(followed) == CHAIN and page.live:
                await publish(limited_node[0], live)
            if len(followed) == len(stored):
                break
    assert_cut(pages, 2 * CHAIN // MESSAGES_OF_A_PAGE)
    assert followed == stored


async def test_missing_entries_fit_into_a_response(client: NodeClient) -> None:
    absent = [(f"absent-{n}", bytes(10 * KIB)) for n in range(10)]
    for pages in (
        [page async for page in client.get_sds(CHANNEL, absent)],
        [page async for page in client.causal_history(CHANNEL, absent[:2])],
    ):
        assert max(page.ByteSize() for page in pages) <= MAX_RESPONSE_BYTES
    too_large = [("absent", bytes(30 * KIB))]
    for refusal in (client.get_sds(CHANNEL, too_large), client.causal_history(CHANNEL, too_large)):
        error = await refused(refusal)
        assert error.code == "RESOURCE_EXHAUSTED"
        assert "an entry of 30726 bytes: at most 24576" in error.sentence


async def test_a_message_from_before_the_limits_is_sent_alone(
    client: NodeClient, limited_node: LimitedNode
) -> None:
    topics = [EARLIER_TOPIC, TOPIC]
    digest = limited_node[2]
    for request in (
        query_request(pubsub_topic=PUBSUB_TOPIC, content_topics=topics, forward=True),
        query_request(message_hashes=[digest, *limited_node[1]], forward=True),
    ):
        first = await client.query(request)
        assert [each.message_hash for each in first.messages] == [digest]
        request.pagination_cursor = first.pagination_cursor
        assert (await client.query(request)).messages[0].message_hash == limited_node[1][0]
