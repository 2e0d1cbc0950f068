import asyncio
from typing import Any

import grpc
import pytest

from store.db.writer import DatabaseWriter
from store.domain.ports import StoreUnavailableError
from store.serving.methods.decode import COUNTED_REQUEST_BYTES
from store.serving.methods.publish import RETRY_NS
from storenode.message.hashing import message_hash
from storenode.message.rules import Policy
from storenode.wire.storenode.v1.store_pb2 import PublishRequest, PublishResponse
from storenode.wire.storenode.v1.store_pb2 import PublishResult as Result
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.rpc.harness import CONTENT, PUBSUB, STORE, Node, failure, item, within

NOW_NS = 1_763_625_600_000_000_000


def outcomes(response: PublishResponse) -> list[int]:
    return [result.outcome for result in response.results]


async def stored_hashes(node: Node, *hashes: bytes) -> list[bytes]:
    response = await node.store.Query(StoreQueryRequest(message_hashes=hashes))
    return [entry.message_hash for entry in response.messages]


async def test_a_message_that_was_in_time_may_be_published_again_when_it_is_late(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, other = item(b"early", timestamp=NOW_NS), item(b"other", timestamp=NOW_NS)

    async def away(*_: object) -> None:
        raise StoreUnavailableError("the database does not answer: retry with backoff")

    with monkeypatch.context() as patch:
        patch.setattr(DatabaseWriter, "store", away)
        code, _ = await failure(node.publish(early))
    assert code is grpc.StatusCode.UNAVAILABLE
    node.rules.policy = Policy(max_drift_ns=20 * 10**9, horizon_ns=NOW_NS)
    response = await node.publish(early, other)
    assert outcomes(response) == [Result.STORED, Result.REJECTED]
    # A copy of a stored message is one as long as it may be published again.
    assert outcomes(await node.publish(early)) == [Result.DUPLICATE]
    node.rules.policy = Policy(max_drift_ns=20 * 10**9, horizon_ns=NOW_NS + 1)
    assert outcomes(await node.publish(early)) == [Result.REJECTED]
    node.rules.policy = Policy(max_drift_ns=20 * 10**9)
    (digest,) = node.context.unstored
    node.context.unstored[digest] -= RETRY_NS
    assert outcomes(await node.publish(early)) == [Result.REJECTED]


def requests(count: int, size: int = 3) -> list[PublishRequest]:
    return [
        PublishRequest(messages=[item(b"%d/%d" % (n, m)) for m in range(size)])
        for n in range(count)
    ]


async def test_a_stream_answers_every_request_in_order(node: Node) -> None:
    sent = requests(50)
    answers = [answer async for answer in node.store.PublishStream(iter(sent))]
    assert len(answers) == len(sent)
    for request, answer in zip(sent, answers, strict=True):
        assert outcomes(answer) == [Result.STORED] * 3
        first = request.messages[0]
        assert answer.results[0].message_hash == message_hash(
            PUBSUB, first.message.payload, CONTENT, None, first.message.timestamp
        )
    assert node.context.requests.used == 0


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a\x00" * 5_001, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_bad_request_ends_a_stream_after_the_answers_before_it(
    node: Node, bad: bytes, code: grpc.StatusCode
) -> None:
    good = [request.SerializeToString() for request in requests(5)]
    call = node.channel.stream_stream(STORE + "PublishStream")(iter([*good, bad, *good]))
    answers = [PublishResponse.FromString(await within(call.read())) for _ in range(5)]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await within(call.read())
    assert [outcomes(answer) for answer in answers] == [[Result.STORED] * 3] * 5
    assert caught.value.code() is code
    assert node.context.requests.used == 0


async def test_a_client_that_reads_no_answers_is_not_read_any_more(node: Node) -> None:
    # Answers of 5,000 rejections each fill what gRPC buffers; then the window is full. That is so
    # after about 50 requests.
    request, most = PublishRequest(messages=[WakuMessageAndTopic()] * 5_000), 5_000 * 200
    call = node.store.PublishStream()

    def rejected() -> float:
        name = "storenode_messages_rejected_total"
        return node.count(name, source="client", reason="missing_message")

    async def write() -> None:
        while rejected() < most:
            await asyncio.wait_for(call.write(request), 3)

    with pytest.raises(TimeoutError):
        await write()
    async with asyncio.timeout(90):
        while node.context.requests.used:
            await stored_hashes(node, bytes(32))
    assert rejected() < most
    call.cancel()
    assert outcomes(await node.publish(item())) == [Result.STORED]


async def test_a_node_with_too_much_under_way_refuses_calls_and_holds_streams(node: Node) -> None:
    memory = node.context.requests
    give_back = memory.take("another", memory.limit)
    code, sentence = await failure(node.publish(item()))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"{memory.limit:,} bytes" in sentence
    call = node.store.PublishStream()
    await call.write(requests(1)[0])
    waiting = asyncio.create_task(call.read())
    code, _ = await failure(node.publish(item()))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    code, _ = await failure(node.stream(STORE + "GetSdsMessages", bytes(COUNTED_REQUEST_BYTES + 1)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not waiting.done()
    give_back()
    assert outcomes(await within(waiting)) == [Result.STORED] * 3
    assert outcomes(await node.publish(item())) == [Result.STORED]
    call.cancel()


async def test_a_client_that_vanishes_leaves_nothing_behind(node: Node) -> None:
    channel: Any = grpc.aio.insecure_channel(node.address)
    call = channel.stream_stream(STORE + "PublishStream")()
    for request in requests(30, size=200):
        await call.write(request.SerializeToString())
    await channel.close()
    assert outcomes(await node.publish(item())) == [Result.STORED]
    await node.server.stop(20)
    assert node.context.requests.used == 0


async def test_followers_of_one_commit_are_sent_one_page(node: Node) -> None:
    followers = [node.channel.unary_stream(STORE + "Follow")(b"") for _ in range(2)]
    begun = [await within(each.read()) for each in followers]
    await node.publish(item())
    one, other = [await within(each.read()) for each in followers]
    assert one == other
    assert begun[0] != begun[1], "equal cursors would show that nothing was stored between"
    for each in followers:
        each.cancel()


async def test_unknown_fields_are_ignored_by_reads_and_dropped_from_messages(node: Node) -> None:
    unknown = b"\xfa\x7f\x03abc"
    published = item(timestamp=NOW_NS).SerializeToString()
    request = b"\x0a" + bytes([len(published) + 6]) + published + unknown + unknown
    await node.unary(STORE + "Publish", request)
    query = StoreQueryRequest(include_data=True).SerializeToString() + unknown
    response = await node.unary(STORE + "Query", query)
    assert item(timestamp=NOW_NS).message.SerializeToString() in response
    assert b"abc" not in response
