"""Requests of absurd sizes; broken ones to every method are sent by `chaos.fuzz.__main__`."""

import time
from collections.abc import Iterator
from io import StringIO
from typing import Any, Final

import grpc
import pytest
import structlog

from store.observe.logging import LOG_BURST_EVENTS, LOG_INTERVAL_S, configure
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
    GetCausalHistoryRequest,
    PublishRequest,
    PublishResult,
    ScanRequest,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from tests.integration.rpc.harness import ADMIN, STORE, Node, item, within

MIB: Final = 1024 * 1024
NOW_NS: Final = 1_763_625_600_000_000_000
DIGEST: Final = bytes(range(32))
ENTRIES: Final = [HistoryEntry(message_id="a", retrieval_hint=DIGEST), HistoryEntry(message_id="b")]

UNARY: Final = {"Publish", "Query"}
CLEAR: Final = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@pytest.fixture
def log() -> Iterator[StringIO]:
    stream = StringIO()
    configure("json", "info", stream)
    yield stream
    structlog.reset_defaults()


def assert_no_flood(log: StringIO, began_s: float) -> None:
    """Check that the log has no more lines of their one kind than it takes in this time."""
    intervals = 1 + (time.monotonic() - began_s) // LOG_INTERVAL_S
    assert len(log.getvalue().splitlines()) <= intervals * (LOG_BURST_EVENTS + 5)


async def poke(
    channel: Any,  # noqa: ANN401 - the stubs leave its calls half typed
    method: str,
    request: bytes,
) -> grpc.StatusCode:
    """Send a request, read the first answer, hang up: the status, OK for an answer."""
    path = STORE + method
    try:
        if method in UNARY:
            await within(channel.unary_unary(path)(request))
            return grpc.StatusCode.OK
        if method == "PublishStream":
            call = channel.stream_stream(path)(iter([request]))
        else:
            call = channel.unary_stream(path)(request)
        await within(call.read())
        if call.done():
            code: grpc.StatusCode = await call.code()
            return code
        call.cancel()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def absurd() -> Iterator[tuple[str, bytes]]:
    """Yield requests whose size or numbers are the attack."""
    many = 2 * MIB - 100
    yield "Publish", b"\x0a\x00" * (8 * MIB - 10)
    yield "PublishStream", b"\x0a\x00" * (8 * MIB - 10)
    yield "Publish", b"\x18\x00" * (8 * MIB - 10)
    yield "Publish", PublishRequest(messages=[item(b"x" * 15 * MIB)]).SerializeToString()
    yield "Query", b"\x5a\x00" * many
    yield "Query", b"\xa2\x01\x00" * (MIB + 100)
    yield "Query", StoreQueryRequest(message_hashes=[DIGEST] * 100_000).SerializeToString()
    yield "Query", StoreQueryRequest(request_id="r" * 3 * MIB).SerializeToString()
    yield "Query", StoreQueryRequest(pubsub_topic="/p" * MIB).SerializeToString()
    yield "Query", StoreQueryRequest(pagination_limit=2**64 - 1).SerializeToString()
    yield "Query", StoreQueryRequest(time_start=-(2**63), time_end=2**63 - 1).SerializeToString()
    yield "Scan", ScanRequest(cursor=b"x" * (MIB - 100)).SerializeToString()
    yield "Scan", ScanRequest(page_size=2**32 - 1, time_end=2**63 - 1).SerializeToString()
    topics = ContentFilter(content_topics=["t"] * 300_000)
    yield "Scan", ScanRequest(filter=topics).SerializeToString()
    yield "Follow", FollowRequest(filter=topics).SerializeToString()
    yield "Follow", FollowRequest(cursor=b"x" * 3 * MIB).SerializeToString()
    yield "GetSdsMessages", b"\x0a\x01c" + b"\x12\x00" * (MIB // 2 - 100)
    yield "GetSdsMessages", b"\x0a\x01c" + b"\x12\x00" * many
    yield "GetCausalHistory", b"\x0a\x01c" + b"\x1a\x00" * many
    yield "Query", b"\x5a\x00" * (8 * MIB - 10)
    yield "GetCausalHistory", b"\x12\x00" * (8 * MIB - 10)
    yield "GetCausalHistory", b"\x32\xf0\xff\xff\x07" + b"\x12\x00" * (8 * MIB - 8)
    deepest = GetCausalHistoryRequest(
        channel_id="c", heads=ENTRIES, max_messages=2**32 - 1, max_depth=2**32 - 1
    )
    yield "GetCausalHistory", deepest.SerializeToString()
    yield "Scan", b"\x0a\x00" * (3 * MIB)
    yield "Query", b"\x00" * (15 * MIB)
    yield "Query", b"\x00" * (17 * MIB)


async def test_absurd_sizes_get_a_clear_status(log: StringIO, node: Node) -> None:
    began_s = time.monotonic()
    for method, request in list(absurd()) * 2:
        assert await poke(node.channel, method, request) in CLEAR, (method, len(request))
    assert node.context.in_flight.used == 0
    assert_no_flood(log, began_s)
    (result,) = (await node.publish(item())).results
    assert result.outcome == PublishResult.STORED


async def test_unknown_fields_are_ignored_by_reads_and_dropped_from_messages(node: Node) -> None:
    unknown = b"\xfa\x7f\x03abc"
    published = item(timestamp=NOW_NS).SerializeToString()
    request = b"\x0a" + bytes([len(published) + 6]) + published + unknown + unknown
    await node.unary(STORE + "Publish", request)
    query = StoreQueryRequest(include_data=True).SerializeToString() + unknown
    response = await node.unary(STORE + "Query", query)
    assert item(timestamp=NOW_NS).message.SerializeToString() in response
    assert b"abc" not in response


async def test_methods_that_are_not_there_are_unimplemented(node: Node) -> None:
    for path in (STORE + "Nothing", "/a.B/C", ADMIN + "GetStatus", "/storenode.v1.Peer/Gossip"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node.unary(path, b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
