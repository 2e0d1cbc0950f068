import asyncio
import time
from contextlib import suppress
from typing import Any, Final

import grpc

from storenode.message.rules import Policy
from storenode.message.varint import varint
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_NWAKU,
    PUBLISH_SOURCE_RELAY,
    PUBLISH_SOURCE_UNSPECIFIED,
    PublishRequest,
    PublishResponse,
    PublishResult,
)
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.calls.conftest import access_of
from tests.integration.rpc.harness import (
    ADMIN,
    STORE,
    Metadata,
    Node,
    Rules,
    failure,
    item,
    serve,
    within,
)

STORED: Final = PublishResult.STORED
REJECTED: Final = PublishResult.REJECTED
EPHEMERAL: Final = PublishResult.EPHEMERAL


CLIENTS: Final = {
    "reader": 'rights = ["read"]',
    "publisher": 'rights = ["publish"]',
    "slow": 'rights = ["publish"]\nlimits = { messages_per_second = 10 }',
    "operator": 'rights = ["admin"]',
    "backfiller": 'rights = ["publish", "backfill"]',
    "everything": 'rights = ["read", "publish", "follow"]',
}


def at_one_moment() -> int:
    """Return a clock that stands, so that no second passes in which more may come."""
    return 0


def bearer(name: str) -> Metadata:
    return (("authorization", f"Bearer token-of-{name}"),)


async def publish(node: Node, name: str, *messages: WakuMessageAndTopic) -> PublishResponse:
    request = PublishRequest(messages=messages).SerializeToString()
    return PublishResponse.FromString(await node.unary(STORE + "Publish", request, bearer(name)))


async def test_old_messages_take_the_right_to_backfill(database_url: str) -> None:
    rules = Rules(policy=Policy(max_drift_ns=20 * 10**9), access=access_of(**CLIENTS))
    async with serve(database_url, rules=rules) as node:
        for number, (name, source, outcomes, counted_as) in enumerate(
            (
                ("publisher", PUBLISH_SOURCE_NWAKU, (REJECTED, STORED, EPHEMERAL), "client"),
                ("backfiller", PUBLISH_SOURCE_UNSPECIFIED, (REJECTED, STORED, EPHEMERAL), "client"),
                ("backfiller", PUBLISH_SOURCE_RELAY, (STORED, STORED, EPHEMERAL), "relay"),
                ("backfiller", PUBLISH_SOURCE_NWAKU, (STORED, STORED, REJECTED), "nwaku"),
                ("backfiller", 77, (REJECTED, STORED, EPHEMERAL), "client"),
            )
        ):
            old_ns, payload = time.time_ns() - 3600 * 10**9, b"%d" % number
            messages = [item(payload, timestamp=old_ns), item(payload), item(ephemeral=True)]
            request = PublishRequest(messages=messages)
            request.MergeFromString(varint(4 << 3) + varint(source))
            before = node.count("storenode_messages_stored_total", source=counted_as)
            answer = await node.unary(STORE + "Publish", request.SerializeToString(), bearer(name))
            results = PublishResponse.FromString(answer).results
            assert tuple(each.outcome for each in results) == outcomes, (name, source)
            stored = node.count("storenode_messages_stored_total", source=counted_as) - before
            assert stored == outcomes.count(STORED)


async def test_a_rate_ends_a_stream_after_the_answers_before_it(database_url: str) -> None:
    access = access_of(**CLIENTS)
    async with serve(database_url, rules=Rules(access, monotonic_ns=at_one_moment)) as node:
        request = PublishRequest(messages=[item()] * 6).SerializeToString()
        stream = node.channel.stream_stream(STORE + "PublishStream")(
            iter([request, request]), metadata=bearer("slow")
        )
        assert len(PublishResponse.FromString(await within(stream.read())).results) == 6
        code, sentence = await failure(stream.read())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "messages per second" in sentence


async def test_a_revoked_token_ends_the_streams_that_it_has_begun(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access_of(**CLIENTS))) as node:
        everything = bearer("everything")
        following = node.channel.unary_stream(STORE + "Follow")(b"", metadata=everything)
        publishing = node.channel.stream_stream(STORE + "PublishStream")(metadata=everything)
        await within(following.read())
        await publish_on(publishing, item(b"before"))
        assert await within(following.read())
        node.rules.access = access_of(publisher=CLIENTS["publisher"])
        assert len((await publish(node, "publisher", item(b"after"))).results) == 1
        for stream in (following.read(), publish_on(publishing, item(b"too late"))):
            code, _ = await failure(stream)
            assert code is grpc.StatusCode.UNAUTHENTICATED


async def publish_on(stream: Any, message: WakuMessageAndTopic) -> None:  # noqa: ANN401 - grpc.aio's
    """Publish a message on a stream, and wait for the answer."""
    with suppress(asyncio.InvalidStateError):  # its end is read below
        await within(stream.write(PublishRequest(messages=[message]).SerializeToString()))
    assert PublishResponse.FromString(await within(stream.read())).results


async def test_a_stream_of_batches_needs_the_right_to_publish(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access=access_of(**CLIENTS))) as node:

        async def stream(*metadata: tuple[str, str]) -> None:
            call = node.channel.stream_stream(STORE + "PublishStream")(iter(()), metadata=metadata)
            await within(call.read())
            await within(call.code())

        await stream(*bearer("publisher"))
        for metadata, expected in (
            (bearer("reader"), grpc.StatusCode.PERMISSION_DENIED),
            ((), grpc.StatusCode.UNAUTHENTICATED),
            ([("authorization", "Basic eA==")], grpc.StatusCode.UNAUTHENTICATED),
            ((*bearer("publisher"), *bearer("publisher")), grpc.StatusCode.INVALID_ARGUMENT),
        ):
            code, _ = await failure(stream(*metadata))
            assert code is expected
        node.rules.unready = "starting"
        code, _ = await failure(stream(*bearer("publisher")))
        assert code is grpc.StatusCode.UNAVAILABLE


async def get_status(node: Node, metadata: Metadata = ()) -> None:
    await node.unary(ADMIN + "GetStatus", b"", metadata)


async def test_only_the_open_admin_listener_serves_everybody(database_url: str) -> None:
    async with serve(database_url, listener="admin", open_admin=True) as node:
        await get_status(node)
        node.rules.access = access_of(**CLIENTS)
        code, _ = await failure(get_status(node))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        code, _ = await failure(get_status(node, bearer("everything")))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        await get_status(node, bearer("operator"))
    async with serve(database_url, listener="admin") as node:
        code, sentence = await failure(get_status(node))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "token file" in sentence
