"""Streams of the client library go on when their node was away, and lose and repeat nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from storenode.client.messages import (
    hash_of,
    new_message,
    new_request,
    outcome_name,
    publish_requests,
    query_request,
)
from storenode.client.node import NodeClient, connect, content_filter
from storenode.client.retry import Retry
from storenode.connection.errors import NodeError
from storenode.wire.storenode.v1.store_pb2 import PublishRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.node import NodeProcess
from tests.support.postgres import copy_cluster

PUBSUB_TOPIC = "/waku/2/rs/1/0"
PATIENT = Retry(attempts=200, first_delay_s=0.05, max_delay_s=0.25)
HASTY = Retry(attempts=2, first_delay_s=0.01, max_delay_s=0.01)
ACKNOWLEDGED = {"STORED", "DUPLICATE"}
PAYLOAD_BYTES = 20_000
"""Large enough that the stream's buffers hold a fraction of what is sent."""


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that the test may kill; messages may get old before it is back."""
    process = NodeProcess(copy_cluster(tmp_path / "node"), ("--max-clock-drift", "off"))
    try:
        yield process.start()
    finally:
        process.close()


def made(topic: str, count: int, payload_bytes: int = 10) -> list[WakuMessageAndTopic]:
    start_ns = time.time_ns()
    return [
        new_message(bytes(payload_bytes), topic, PUBSUB_TOPIC, start_ns + number)
        for number in range(count)
    ]


async def restart(node: NodeProcess) -> None:
    """Kill a node as a power cut would, and start it again at the same addresses."""
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)


async def store(client: NodeClient, messages: list[WakuMessageAndTopic]) -> None:
    async for _, result in client.publish_all(messages):
        assert outcome_name(result) in ACKNOWLEDGED


async def test_publishing_goes_on_after_the_node_was_killed(own_node: NodeProcess) -> None:
    messages = made("/test/1/killed/proto", 6_000)
    acknowledged: list[WakuMessageAndTopic] = []
    async with connect(own_node.listen, retry=PATIENT) as client:
        async for message, result in client.publish_all(messages):
            if not acknowledged:
                await restart(own_node)
            assert outcome_name(result) in ACKNOWLEDGED
            assert result.message_hash == hash_of(message)
            acknowledged.append(message)
        held = [item async for page in client.scan() for item in page.messages]
    assert acknowledged == messages
    assert [item.message for item in held] == [message.message for message in messages]


async def test_a_scan_goes_on_after_the_node_was_killed(own_node: NodeProcess) -> None:
    messages = made("/test/1/killed/proto", 1_000, PAYLOAD_BYTES)
    found: list[bytes] = []
    async with connect(own_node.listen, retry=PATIENT) as client:
        await store(client, messages)
        async with aclosing(client.scan(page_size=10)) as pages:
            async for page in pages:
                if not found:
                    await restart(own_node)
                found += [item.message_hash for item in page.messages]
    assert found == [hash_of(message) for message in messages]


async def test_a_follower_goes_on_after_the_node_was_killed(own_node: NodeProcess) -> None:
    first = made("/test/1/killed/proto", 1_000, PAYLOAD_BYTES)
    late = made("/test/1/killed/proto", 10)
    wanted = {hash_of(message) for message in (*first, *late)}
    found: list[bytes] = []
    async with connect(own_node.listen, retry=PATIENT) as client:
        await store(client, first)
        async with aclosing(client.follow(from_beginning=True)) as pages:
            async for page in pages:
                if not found:
                    await restart(own_node)
                    await store(client, late)
                found += [item.message_hash for item in page.messages]
                if len(found) >= len(wanted):
                    break
    assert len(found) == len(set(found))
    assert set(found) == wanted


async def test_a_client_may_be_told_to_wait_for_a_node_that_is_not_there_yet(
    own_node: NodeProcess,
) -> None:
    await asyncio.to_thread(own_node.kill)
    patient = Retry(attempts=None, first_delay_s=0.05, max_delay_s=0.25, at_start=True)
    async with connect(own_node.listen, retry=patient) as client:
        publishing = asyncio.create_task(store(client, made("/test/1/late/proto", 3)))
        await asyncio.to_thread(own_node.start)
        await publishing
        page = await client.query(query_request())
    assert len(page.messages) == 3


async def test_attempts_are_bounded(own_node: NodeProcess) -> None:
    async with connect(own_node.listen, retry=HASTY) as client:
        pages = client.follow()
        await anext(pages)
        await asyncio.to_thread(own_node.kill)
        with pytest.raises(NodeError) as error:
            await anext(pages)
        assert error.value.unreachable
        for attempt in (client.scan(), client.follow(), client.publish_stream([PublishRequest()])):
            with pytest.raises(NodeError) as error:
                await anext(attempt)
            assert error.value.unreachable


async def test_answers_come_in_the_order_of_the_requests(node: NodeProcess, topic: str) -> None:
    messages = made(topic, 2_500)
    requests = list(publish_requests(messages))
    async with connect(node.listen) as client:
        pairs = [pair async for pair in client.publish_stream(requests)]
    assert [request for request, _ in pairs] == requests
    hashes = [result.message_hash for _, response in pairs for result in response.results]
    assert hashes == [hash_of(message) for message in messages]


async def test_an_error_of_the_source_comes_after_the_answers_to_what_it_gave(
    node: NodeProcess, topic: str
) -> None:
    async def source() -> AsyncIterator[PublishRequest]:
        for message in made(topic, 3):
            yield PublishRequest(messages=[message])
        raise LookupError("the source is broken")

    async with connect(node.listen) as client:
        answers = client.publish_stream(source())
        for _ in range(3):
            await anext(answers)
        with pytest.raises(LookupError, match="the source is broken"):
            await anext(answers)


async def test_nothing_to_publish_is_no_error(node: NodeProcess) -> None:
    async with connect(node.listen) as client:
        assert [pair async for pair in client.publish_stream([])] == []


async def test_a_malformed_request_ends_the_stream_after_the_answers_before_it(
    node: NodeProcess, topic: str
) -> None:
    too_many = PublishRequest(messages=made(topic, 5_001))
    requests = [PublishRequest(messages=made(topic, 1)), too_many]
    async with connect(node.listen) as client:
        answers = client.publish_stream(requests)
        await anext(answers)
        with pytest.raises(NodeError, match=r"5,?000"):
            await anext(answers)


async def test_a_stream_that_is_closed_early_leaves_the_client_usable(
    node: NodeProcess, topic: str
) -> None:
    async with connect(node.listen) as client:
        await store(client, made(topic, 50))
        wanted = content_filter(PUBSUB_TOPIC, [topic])
        async with aclosing(client.scan(filter=wanted, page_size=10)) as pages:
            first = await anext(pages)
        async with aclosing(client.follow(filter=wanted)) as follower:
            assert (await anext(follower)).live
        (page,) = [page async for page in client.scan(filter=wanted, page_size=1_000)]
    assert len(first.messages) == 10
    assert len(page.messages) == 50


async def test_one_batch_is_published_by_a_single_call(node: NodeProcess, topic: str) -> None:
    messages = made(topic, 3)
    async with connect(node.listen) as client:
        results = await client.publish([*messages, messages[0]])
    assert [outcome_name(result) for result in results] == [*(["STORED"] * 3), "DUPLICATE"]


async def test_query_pages_leave_the_request_as_it_was(node: NodeProcess, topic: str) -> None:
    request = query_request(pubsub_topic=PUBSUB_TOPIC, content_topics=[topic], limit=2)
    before = request.SerializeToString()
    async with connect(node.listen) as client:
        await store(client, made(topic, 5))
        sizes = [len(page.messages) async for page in client.query_pages(request)]
    assert sizes == [2, 2, 1]
    assert request.SerializeToString() == before


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """Where a node would be that ends every stream of requests while they are on their way."""

    async def refuse(_: object, context: Any) -> None:  # noqa: ANN401 - grpc.aio's
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details("10 messages per second are allowed: publish more slowly")

    server = grpc.aio.server()
    method = {"PublishStream": grpc.stream_stream_rpc_method_handler(refuse)}
    handler = grpc.method_handlers_generic_handler("storenode.v1.Store", method)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(0)


async def test_a_refusal_is_told_although_requests_are_on_their_way() -> None:
    requests = [new_request([each]) for each in made("/test/1/refused/proto", 30)]
    async with refusing() as address, connect(address) as client:
        for _ in range(20):
            with pytest.raises(NodeError, match="publish more slowly") as caught:
                await anext(client.publish_stream(requests))
            assert caught.value.code == "RESOURCE_EXHAUSTED"
