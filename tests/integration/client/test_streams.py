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
)
from storenode.client.node import NodeClient, connect
from storenode.client.retry import Retry
from storenode.connection.errors import NodeError
from storenode.wire.storenode.v1.store_pb2 import PublishRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.support.node import NodeProcess
from tests.support.postgres import copy_cluster

PUBSUB_TOPIC = "/waku/2/rs/1/0"
PATIENT = Retry(attempts=200, first_delay_s=0.05, max_delay_s=0.25)
ACKNOWLEDGED = {"STORED", "DUPLICATE"}
PAYLOAD_BYTES = 20_000
"""Large enough that the stream's buffers hold a fraction of what is sent."""


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    """Return a node that the test may kill; messages may get old before it is back."""
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


async def test_calls_go_on_after_the_node_was_killed(own_node: NodeProcess) -> None:
    messages = made("/test/1/killed/proto", 6_000)
    large = made("/test/1/killed/proto", 1_000, PAYLOAD_BYTES)
    hashes = [hash_of(message) for message in (*messages, *large)]
    acknowledged: list[WakuMessageAndTopic] = []
    async with connect(own_node.listen, retry=PATIENT) as client:
        async for message, result in client.publish_all([*messages, *large]):
            if not acknowledged:
                await restart(own_node)
            assert outcome_name(result) in ACKNOWLEDGED
            assert result.message_hash == hash_of(message)
            acknowledged.append(message)
        assert acknowledged == [*messages, *large]
        scanned: list[bytes] = []
        async with aclosing(client.scan(page_size=10)) as pages:
            async for page in pages:
                if not scanned:
                    await restart(own_node)
                scanned += [item.message_hash for item in page.messages]
        assert scanned == hashes
        late = made("/test/1/killed/proto", 10)
        followed: list[bytes] = []
        async with aclosing(client.follow(from_beginning=True)) as feed:
            async for new in feed:
                if not followed:
                    await restart(own_node)
                    await store(client, late)
                followed += [item.message_hash for item in new.messages]
                if len(followed) >= len(hashes) + len(late):
                    break
        assert len(followed) == len(set(followed))
        assert set(followed) == {*hashes, *map(hash_of, late)}
        await asyncio.to_thread(own_node.kill)
        patient = Retry(attempts=None, first_delay_s=0.05, max_delay_s=0.25, at_start=True)
        async with connect(own_node.listen, retry=patient) as early:
            publishing = asyncio.create_task(store(early, made("/test/1/late/proto", 3)))
            await asyncio.to_thread(own_node.start)
            await publishing


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


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """Serve a node that ends every stream of requests while they are on their way."""

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


async def test_a_refusal_is_reported_although_requests_are_on_their_way() -> None:
    requests = [new_request([each]) for each in made("/test/1/refused/proto", 30)]
    async with refusing() as address, connect(address) as client:
        for _ in range(20):
            with pytest.raises(NodeError, match="publish more slowly") as caught:
                await anext(client.publish_stream(requests))
            assert caught.value.code == "RESOURCE_EXHAUSTED"
