"""Publishing over gRPC: streams, retries, backfill, unknown fields, clients that do not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest
import pytest_asyncio

from store.db.writer import DatabaseWriter
from store.domain.ports import StoreUnavailableError
from store.serving.answers import COPIES, AnswerSender
from store.serving.methods.decode import COUNTED_REQUEST_BYTES
from store.serving.methods.publish import RESULT_BYTES, RETRY_NS, UNCOUNTED_RESULTS
from storenode.client.messages import hash_of
from storenode.message.rules import Policy
from storenode.message.varint import varint
from storenode.wire.storenode.v1 import store_pb2
from storenode.wire.storenode.v1.store_pb2 import (
    ContentFilter,
    FollowRequest,
    PublishRequest,
    PublishResponse,
)
from storenode.wire.storenode.v1.store_pb2 import PublishResult as Result
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.calls.conftest import CLIENTS, access_of, check_all_is_given_back
from tests.integration.rpc.harness import STORE, Metadata, Node, failure, item, within

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW_NS = 1_763_625_600_000_000_000
NAMES: dict[int, str] = {number: name for name, number in Result.Outcome.items()}


@pytest_asyncio.fixture(loop_scope="module")
async def node(open_node: Node) -> AsyncIterator[Node]:
    """Yield the open node; a test leaves nothing under way."""
    yield open_node
    await check_all_is_given_back(open_node)


def outcomes(response: PublishResponse) -> list[int]:
    return [result.outcome for result in response.results]


async def test_a_message_that_was_in_time_may_be_published_again_when_it_is_late(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node.rules.policy
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
    node.rules.policy = before


def requests(count: int, size: int = 3) -> list[PublishRequest]:
    return [
        PublishRequest(messages=[item(b"%d/%d" % (n, m)) for m in range(size)])
        for n in range(count)
    ]


async def test_a_bad_request_ends_a_stream_after_the_answers_to_all_before(node: Node) -> None:
    sent = requests(50)
    good, bad = [request.SerializeToString() for request in sent], b"\x0a\x00" * 5_001
    call = node.channel.stream_stream(STORE + "PublishStream")(iter([*good, bad, *good]))
    answers = [PublishResponse.FromString(await within(call.read())) for _ in sent]
    code, _ = await failure(call.read())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [outcomes(answer) for answer in answers] == [[Result.STORED] * 3] * 50
    hashes = [hash_of(request.messages[0]) for request in sent]
    assert [answer.results[0].message_hash for answer in answers] == hashes


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
            await node.store.Query(StoreQueryRequest())
    assert rejected() < most
    # An answer is larger than its results are expected to be, since each has a reason.
    assert node.context.answers.used > COPIES * RESULT_BYTES * (rejected() / 2)
    call.cancel()
    assert outcomes(await node.publish(item())) == [Result.STORED]


async def test_a_node_with_too_much_under_way_refuses_calls_and_holds_streams(node: Node) -> None:
    memory = node.context.requests
    give_back = memory.take("another", memory.limit)
    code, sentence = await failure(node.publish(item()))
    assert (code.name, f"{memory.limit:,} bytes" in sentence) == ("RESOURCE_EXHAUSTED", True)
    call = node.store.PublishStream()
    await call.write(requests(1)[0])
    waiting = asyncio.create_task(call.read())
    code, _ = await failure(node.publish(item()))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    code, _ = await failure(node.stream(STORE + "GetSdsMessages", bytes(COUNTED_REQUEST_BYTES + 1)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not waiting.done()
    others = asyncio.create_task(memory.acquire("others", memory.limit))
    crowded = node.store.PublishStream()
    await crowded.write(requests(1)[0])
    code, _ = await failure(crowded.read())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, "as much as there is waits already"
    others.cancel()
    give_back()
    assert outcomes(await within(waiting)) == [Result.STORED] * 3
    assert outcomes(await node.publish(item())) == [Result.STORED]
    call.cancel()


async def test_a_batch_waits_for_room_before_and_after_its_commit_and_is_as_old_as_it_came(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules, answers, store = node.rules, node.context.answers, DatabaseWriter.store
    policy, rules.policy = rules.policy, Policy(max_drift_ns=20 * 10**9)
    taken = AnswerSender(answers, "another", "ipv4:192.0.2.1:1")

    async def commit(*given: Any) -> Any:  # noqa: ANN401
        assert not answers.used
        taken.add(answers.limit)
        return await store(*given)

    async def answer_waits() -> None:
        async with asyncio.timeout(90):
            while not answers.waiting:
                assert outcomes(await node.publish(WakuMessageAndTopic())) == [Result.REJECTED]
        assert node.context.requests.used

    monkeypatch.setattr(DatabaseWriter, "store", commit)
    for publish in (node.store.Publish, lambda one: node.store.PublishStream(iter([one])).read()):
        taken.add(answers.limit)
        batch = [item(b"%d" % number) for number in range(UNCOUNTED_RESULTS + 1)]
        answer = asyncio.ensure_future(publish(PublishRequest(messages=batch)))
        await answer_waits()
        rules.lead_ns = 25 * 10**9
        taken.add(-answers.limit)
        await answer_waits()
        rules.lead_ns = 0
        taken.add(-answers.limit)
        assert outcomes(await within(answer)) == [Result.STORED] * len(batch)
    taken.close()
    rules.policy = policy


async def test_followers_of_one_commit_are_sent_one_page(node: Node, topic: str) -> None:
    asked = FollowRequest(filter=ContentFilter(content_topics=[topic])).SerializeToString()
    followers = [node.channel.unary_stream(STORE + "Follow")(asked) for _ in range(2)]
    begun = [await within(each.read()) for each in followers]
    await node.publish(item(content=topic))
    one, other = [await within(each.read()) for each in followers]
    for each in followers:
        each.cancel()
    assert one == other
    assert begun[0] != begun[1], "equal cursors would show that nothing was stored between"


async def test_unknown_fields_are_ignored_by_reads_and_dropped_from_messages(
    node: Node, topic: str
) -> None:
    unknown, sent = b"\xfa\x7f\x03abc", item(timestamp=NOW_NS, content=topic)
    published = sent.SerializeToString()
    request = b"\x0a" + bytes([len(published) + 6]) + published + unknown + unknown
    await node.unary(STORE + "Publish", request)
    query = StoreQueryRequest(include_data=True, content_topics=[topic])
    response = await node.unary(STORE + "Query", query.SerializeToString() + unknown)
    assert sent.message.SerializeToString() in response
    assert b"abc" not in response


def bearer(client: str) -> Metadata:
    return (("authorization", f"Bearer token-of-{client}"),)


async def test_old_messages_take_the_right_to_backfill(guarded_node: Node) -> None:
    node, policy = guarded_node, guarded_node.rules.policy
    node.rules.policy = Policy(max_drift_ns=20 * 10**9)
    for number, (client, source, expected, counted_as) in enumerate(
        (
            ("publisher", store_pb2.PUBLISH_SOURCE_NWAKU, "RSE", "client"),
            ("backfiller", store_pb2.PUBLISH_SOURCE_UNSPECIFIED, "RSE", "client"),
            ("backfiller", store_pb2.PUBLISH_SOURCE_RELAY, "SSE", "relay"),
            ("backfiller", store_pb2.PUBLISH_SOURCE_NWAKU, "SSR", "nwaku"),
            ("backfiller", 77, "RSE", "client"),
        )
    ):
        old_ns, payload = time.time_ns() - 3600 * 10**9, b"%d" % number
        messages = [item(payload, timestamp=old_ns), item(payload), item(ephemeral=True)]
        request = PublishRequest(messages=messages).SerializeToString()
        request += varint(4 << 3) + varint(source)
        before = node.count("storenode_messages_stored_total", source=counted_as)
        answer = await node.unary(STORE + "Publish", request, bearer(client))
        found = outcomes(PublishResponse.FromString(answer))
        assert "".join(NAMES[each][0] for each in found) == expected, (client, source)
        stored = node.count("storenode_messages_stored_total", source=counted_as) - before
        assert stored == expected.count("S")
    node.rules.policy = policy


async def test_a_rate_ends_a_stream_after_the_answers_before_it(guarded_node: Node) -> None:
    request = PublishRequest(messages=[item()] * 6).SerializeToString()
    stream = guarded_node.channel.stream_stream(STORE + "PublishStream")(
        iter([request, request]), metadata=bearer("small-Grpc")
    )
    assert len(PublishResponse.FromString(await within(stream.read())).results) == 6
    code, sentence = await failure(stream.read())
    found = code, "messages per second" in sentence
    assert found == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)


async def test_a_revoked_token_ends_a_stream_of_batches(guarded_node: Node) -> None:
    stream = guarded_node.channel.stream_stream(STORE + "PublishStream")(
        metadata=bearer("everything")
    )

    async def publish_on(message: WakuMessageAndTopic) -> None:
        with suppress(asyncio.InvalidStateError):  # its end is read below
            await within(stream.write(PublishRequest(messages=[message]).SerializeToString()))
        assert PublishResponse.FromString(await within(stream.read())).results

    await publish_on(item(b"before"))
    guarded_node.rules.access = access_of(publisher=CLIENTS["publisher"])
    code, _ = await failure(publish_on(item(b"too late")))
    assert code is grpc.StatusCode.UNAUTHENTICATED
