import asyncio
import time
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import grpc
import pytest

from store.domain.access import Access, parse_token_file
from storenode.message.rules import Policy
from storenode.message.varint import varint
from storenode.wire.sds.v1.message_pb2 import HistoryEntry
from storenode.wire.sds.v1.message_pb2 import Message as SdsMessage
from storenode.wire.storenode.v1.store_pb2 import (
    PUBLISH_SOURCE_NWAKU,
    PUBLISH_SOURCE_RELAY,
    PUBLISH_SOURCE_UNSPECIFIED,
    CausalHistoryPage,
    FollowPage,
    FollowRequest,
    GetCausalHistoryRequest,
    GetSdsMessagesRequest,
    PublishRequest,
    PublishResponse,
    PublishResult,
    ScanPage,
    ScanRequest,
    SdsMessagesPage,
)
from storenode.wire.waku.store.v3.store_pb2 import StoreQueryRequest, StoreQueryResponse
from storenode.wire.waku.sync.transfer.v1.transfer_pb2 import WakuMessageAndTopic
from tests.integration.rpc.harness import (
    ADMIN,
    CONTENT,
    PUBSUB,
    STORE,
    Metadata,
    Node,
    Rules,
    failure,
    item,
    serve,
    within,
)

SECRET = "/secret/1/chat/proto"
STORED: Final = PublishResult.STORED
REJECTED: Final = PublishResult.REJECTED
EPHEMERAL: Final = PublishResult.EPHEMERAL
READS = ("Query", "Scan", "GetSdsMessages", "GetCausalHistory")
UNARY = ("Publish", "Query")


def token_file(**limits: int) -> Access:
    """Clients named like their rights; `app` may do all within the topics under /app/."""
    text = ""
    entries = {
        "reader": ['rights = ["read"]'],
        "publisher": ['rights = ["publish"]'],
        "follower": ['rights = ["follow"]'],
        "operator": ['rights = ["admin"]'],
        "backfiller": ['rights = ["publish", "backfill"]'],
        "everything": ['rights = ["read", "publish", "follow"]'],
        "app": ['rights = ["read", "publish", "follow"]', 'content_topics = ["/app/"]'],
    }
    for name, lines in entries.items():
        digest = sha256(f"token of {name}".encode()).hexdigest()
        text += f'[clients.{name}]\ntoken_sha256 = "{digest}"\n' + "\n".join(lines) + "\n"
    text += "[limits]\n" + "\n".join(f"{key} = {value}" for key, value in limits.items())
    return parse_token_file(text)


def at_one_moment() -> int:
    """A clock that stands, so that no second passes in which more may come."""
    return 0


def bearer(name: str) -> Metadata:
    return (("authorization", f"Bearer token of {name}"),)


async def call(node: Node, method: str, metadata: Metadata = ()) -> None:
    """An empty request; for a stream, until its first page."""
    path = (STORE if method != "GetStatus" else ADMIN) + method
    if method in (*UNARY, "GetStatus"):
        await node.unary(path, b"", metadata)
    elif method == "PublishStream":
        stream = node.channel.stream_stream(path)(iter(()), metadata=metadata)
        await within(stream.read())
        await within(stream.code())
    elif method == "Follow":
        stream = node.channel.unary_stream(path)(b"", metadata=metadata)
        await within(stream.read())
        stream.cancel()
    else:
        request = GetSdsMessagesRequest(channel_id="c").SerializeToString()
        await node.stream(path, b"" if method == "Scan" else request, metadata)


METHODS = {
    "Publish": "publisher",
    "PublishStream": "publisher",
    "Query": "reader",
    "Scan": "reader",
    "GetSdsMessages": "reader",
    "GetCausalHistory": "reader",
    "Follow": "follower",
}


@pytest.mark.parametrize("method", METHODS)
async def test_every_method_demands_a_token_and_its_right(database_url: str, method: str) -> None:
    async with serve(database_url, rules=Rules(access=token_file())) as node:
        for name in ("reader", "publisher", "follower", "operator"):
            if name == METHODS[method]:
                await call(node, method, bearer(name))
                continue
            code, sentence = await failure(call(node, method, bearer(name)))
            assert code is grpc.StatusCode.PERMISSION_DENIED, name
            assert f"client {name} lacks the right" in sentence
        strange: tuple[Metadata, ...] = (
            (),
            bearer("nobody"),
            (("authorization", "Basic eA=="),),
            (*bearer("reader"), *bearer("reader")),
        )
        for metadata in strange[:3]:
            code, sentence = await failure(call(node, method, metadata))
            assert code is grpc.StatusCode.UNAUTHENTICATED
            assert "token of" not in sentence
        code, _ = await failure(call(node, method, strange[3]))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_changed_token_file_holds_for_the_next_call(node: Node) -> None:
    await call(node, "Query")
    node.rules.access = token_file()
    code, _ = await failure(call(node, "Query"))
    assert code is grpc.StatusCode.UNAUTHENTICATED
    await call(node, "Query", bearer("reader"))


async def publish(node: Node, name: str, *messages: WakuMessageAndTopic) -> PublishResponse:
    request = PublishRequest(messages=messages).SerializeToString()
    return PublishResponse.FromString(await node.unary(STORE + "Publish", request, bearer(name)))


async def test_publishing_outside_a_client_s_topics_is_rejected(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access=token_file())) as node:
        response = await publish(node, "app", item(), item(content=SECRET))
        assert [result.outcome for result in response.results] == [
            PublishResult.STORED,
            PublishResult.REJECTED,
        ]
        assert "client app may not publish" in response.results[1].reason
        assert node.count(
            "storenode_messages_rejected_total", source="client", reason="outside_topics"
        ) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "source", "outcomes", "counted_as"),
    [
        ("publisher", PUBLISH_SOURCE_NWAKU, (REJECTED, STORED, EPHEMERAL), "client"),
        ("backfiller", PUBLISH_SOURCE_UNSPECIFIED, (REJECTED, STORED, EPHEMERAL), "client"),
        ("backfiller", PUBLISH_SOURCE_RELAY, (STORED, STORED, EPHEMERAL), "relay"),
        ("backfiller", PUBLISH_SOURCE_NWAKU, (STORED, STORED, REJECTED), "nwaku"),
        ("backfiller", 77, (REJECTED, STORED, EPHEMERAL), "client"),
    ],
)
async def test_old_messages_take_the_right_to_backfill(
    database_url: str, name: str, source: int, outcomes: tuple[int, ...], counted_as: str
) -> None:
    an_hour_ago = time.time_ns() - 3600 * 10**9
    messages = [item(b"old", timestamp=an_hour_ago), item(b"now"), item(ephemeral=True)]
    request = PublishRequest(messages=messages)
    request.MergeFromString(varint(4 << 3) + varint(source))
    rules = Rules(policy=Policy(max_drift_ns=20 * 10**9), access=token_file())
    async with serve(database_url, rules=rules) as node:
        answer = await node.unary(STORE + "Publish", request.SerializeToString(), bearer(name))
        results = PublishResponse.FromString(answer).results
        assert tuple(each.outcome for each in results) == outcomes
        stored = node.count("storenode_messages_stored_total", source=counted_as)
        assert stored == outcomes.count(STORED)


def sds(message_id: str, *parents: str) -> bytes:
    history = [HistoryEntry(message_id=parent) for parent in parents]
    return SdsMessage(
        message_id=message_id, channel_id="c", causal_history=history, content=b"x"
    ).SerializeToString()


async def test_what_a_client_may_not_read_is_not_there_on_any_path(database_url: str) -> None:
    async with serve(database_url, rules=Rules(access=token_file())) as node:
        app = bearer("app")
        stored = await publish(
            node,
            "everything",
            item(sds("hidden"), content=SECRET),
            item(sds("seen", "hidden")),
        )
        hidden, seen = [result.message_hash for result in stored.results]

        async def query(request: StoreQueryRequest) -> tuple[int, list[bytes]]:
            raw = await node.unary(STORE + "Query", request.SerializeToString(), app)
            response = StoreQueryResponse.FromString(raw)
            return response.status_code, [entry.message_hash for entry in response.messages]

        for request in (
            StoreQueryRequest(),
            StoreQueryRequest(message_hashes=[hidden, seen]),
            StoreQueryRequest(pubsub_topic=PUBSUB, content_topics=[SECRET, CONTENT]),
        ):
            assert await query(request) == (200, [seen])
        assert await query(StoreQueryRequest(pagination_cursor=hidden)) == (404, [])
        assert await query(StoreQueryRequest(pagination_cursor=seen)) == (200, [])

        scanned = await node.stream(STORE + "Scan", ScanRequest().SerializeToString(), app)
        pages = [ScanPage.FromString(page) for page in scanned]
        assert [entry.message_hash for page in pages for entry in page.messages] == [seen]

        from_beginning = FollowRequest(from_beginning=True).SerializeToString()
        following = node.channel.unary_stream(STORE + "Follow")(from_beginning, metadata=app)
        page = FollowPage.FromString(await within(following.read()))
        while not page.live and not page.messages:
            page = FollowPage.FromString(await within(following.read()))
        assert [entry.message_hash for entry in page.messages] == [seen]
        following.cancel()

        entries = [
            HistoryEntry(message_id="hidden"),
            HistoryEntry(message_id="hidden", retrieval_hint=hidden),
            HistoryEntry(message_id="seen"),
        ]
        lookup = GetSdsMessagesRequest(channel_id="c", entries=entries).SerializeToString()
        looked_up = SdsMessagesPage()
        for raw in await node.stream(STORE + "GetSdsMessages", lookup, app):
            looked_up.MergeFromString(raw)
        assert {one.stored.message_hash for one in looked_up.messages} == {seen}
        assert {one.message_id for one in looked_up.missing} == {"hidden"}

        walk = GetCausalHistoryRequest(
            channel_id="c", heads=[HistoryEntry(message_id="seen")]
        ).SerializeToString()
        walked = CausalHistoryPage()
        for raw in await node.stream(STORE + "GetCausalHistory", walk, app):
            walked.MergeFromString(raw)
        assert [one.stored.message_hash for one in walked.messages] == [seen]
        assert [one.message_id for one in walked.missing] == ["hidden"]


async def test_limits_of_the_token_file_are_named_when_they_are_passed(database_url: str) -> None:
    access = token_file(
        messages_per_second=10, request_bytes=2_000, concurrent_streams=1, message_bytes=300
    )
    async with serve(database_url, rules=Rules(access, monotonic_ns=at_one_moment)) as node:
        assert len((await publish(node, "publisher", *[item()] * 10)).results) == 10
        code, sentence = await failure(publish(node, "publisher", *[item()] * 10))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "10 messages per second" in sentence

        code, sentence = await failure(publish(node, "everything", item(b"x" * 3_000)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "at most 2,000" in sentence

        response = await publish(node, "everything", item(b"x" * 300))
        assert "at most 300" in response.results[0].reason

        following = node.channel.unary_stream(STORE + "Follow")(b"", metadata=bearer("follower"))
        await within(following.read())
        code, sentence = await failure(call(node, "Follow", bearer("follower")))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1 concurrent streams" in sentence
        following.cancel()


async def test_a_rate_ends_a_stream_after_the_answers_before_it(database_url: str) -> None:
    access = token_file(messages_per_second=10)
    async with serve(database_url, rules=Rules(access, monotonic_ns=at_one_moment)) as node:
        request = PublishRequest(messages=[item()] * 6).SerializeToString()
        stream = node.channel.stream_stream(STORE + "PublishStream")(
            iter([request, request]), metadata=bearer("publisher")
        )
        assert len(PublishResponse.FromString(await within(stream.read())).results) == 6
        code, sentence = await failure(stream.read())
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "messages per second" in sentence


async def test_a_revoked_token_ends_the_streams_that_it_has_begun(database_url: str) -> None:
    async with serve(database_url, rules=Rules(token_file())) as node:
        everything = bearer("everything")
        following = node.channel.unary_stream(STORE + "Follow")(b"", metadata=everything)
        publishing = node.channel.stream_stream(STORE + "PublishStream")(metadata=everything)
        await within(following.read())
        await publish_on(publishing, item(b"before"))
        assert await within(following.read())
        node.rules.access = parse_token_file(
            f'[clients.publisher]\ntoken_sha256 = "{sha256(b"token of publisher").hexdigest()}"\n'
            'rights = ["publish"]'
        )
        assert len((await publish(node, "publisher", item(b"after"))).results) == 1
        for stream in (following.read(), publish_on(publishing, item(b"too late"))):
            code, _ = await failure(stream)
            assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_other_topics_end_a_stream_that_can_be_called_again(database_url: str) -> None:
    async with serve(database_url, rules=Rules(token_file())) as node:
        following = node.channel.unary_stream(STORE + "Follow")(b"", metadata=bearer("everything"))
        await within(following.read())
        node.rules.access = token_file(requests_per_second=1_000)
        await publish(node, "publisher", item(b"the same topics"))
        assert await within(following.read())
        node.rules.access = parse_token_file(
            f'[clients.everything]\ntoken_sha256 = "{sha256(b"token of everything").hexdigest()}"\n'
            'rights = ["follow", "publish"]\ncontent_topics = ["/app/", "/test/"]'
        )
        await publish(node, "everything", item(b"fewer topics", content="/app/1/a/b"))
        code, sentence = await failure(following.read())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "topics of client everything have changed" in sentence


async def publish_on(stream: Any, message: WakuMessageAndTopic) -> None:  # noqa: ANN401 - grpc.aio's
    """Publish a message on a stream, and wait for the answer."""
    with suppress(asyncio.InvalidStateError):  # its end is read below
        await within(stream.write(PublishRequest(messages=[message]).SerializeToString()))
    assert PublishResponse.FromString(await within(stream.read())).results


async def test_only_the_open_admin_listener_serves_everybody(database_url: str) -> None:
    async with serve(database_url, listener="admin", open_admin=True) as node:
        await call(node, "GetStatus")
        node.rules.access = token_file()
        code, _ = await failure(call(node, "GetStatus"))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        code, _ = await failure(call(node, "GetStatus", bearer("everything")))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        await call(node, "GetStatus", bearer("operator"))
    async with serve(database_url, listener="admin") as node:
        code, sentence = await failure(call(node, "GetStatus"))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "token file" in sentence
